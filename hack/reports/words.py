"""Count the words of the documentation, by page: `python -m hack.reports.words [REVISION...]`.

A page is for users if it is behind one of the first three doors of mkdocs.yml and no program writes it. Words in blocks of
code are not counted: they are commands, manifests and output.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

from hack.generate import docs
from hack.site import pages

BEFORE_THE_DOORS: Final = ("architecture", "contract", "release", "style", "testbed", "virtual-fleet")
"""Pages that were for contributors when no mkdocs.yml said so."""
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def words(text: str) -> int:
    """Return the number of words outside of blocks of code."""
    return len(_FENCE.sub("", text).split())


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=pages.ROOT, check=True, capture_output=True, text=True).stdout


def counted(revision: str) -> dict[str, int]:
    """Return the words of README and of each page in docs, at a revision; of the working tree without one."""
    if not revision:
        files = ["README.md", *(str(path.relative_to(pages.ROOT)) for path in (pages.ROOT / "docs").rglob("*.md"))]
        return {name: words((pages.ROOT / name).read_text()) for name in sorted(files)}
    names = _git("ls-tree", "-r", "--name-only", revision, "README.md", "docs").splitlines()
    return {name: words(_git("show", f"{revision}:{name}")) for name in names if name.endswith(".md")}


def for_users(names: Iterable[str], revision: str) -> list[str]:
    """Return those of the pages that people who use the driver read, and that are written by hand."""
    doors = "" if not revision else _git("ls-tree", "--name-only", revision, "mkdocs.yml")
    inside = {f"docs/{name}.md" for name in BEFORE_THE_DOORS}
    if doors or not revision:
        inside = {f"docs/{name}" for name in [*pages.doors().values()][-1]}
    generated = {f"docs/{name}" for name in docs.PAGES}
    return [name for name in names if name.count("/") < 2 and name not in inside | generated]


def main(revisions: list[str]) -> int:
    """Print the words of each page, and the sums, at each revision and in the working tree."""
    columns = [*revisions, ""]
    found = [counted(each) for each in columns]
    of_users = [for_users(counts, each) for counts, each in zip(found, columns, strict=True)]
    print("| page | " + " | ".join(each or "now" for each in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for name in sorted({page for each in of_users for page in each}):
        cells = [counts.get(name, "") if name in users else "" for counts, users in zip(found, of_users, strict=True)]
        print(f"| {name.removeprefix('docs/')} | " + " | ".join(map(str, cells)) + " |")
    sums = [sum(counts[name] for name in users) for counts, users in zip(found, of_users, strict=True)]
    print("| **for users, by hand** | " + " | ".join(map(str, sums)) + " |")
    print("| **all pages** | " + " | ".join(str(sum(counts.values())) for counts in found) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
