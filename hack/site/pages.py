"""Gather the pages of the documentation site in build/site-pages: `make site` builds it from them.

README, CONTRIBUTING, CHANGELOG and SECURITY are pages of the site too, so no text stands twice. A link to another file of
the repository leads to NEURON_DRA_REPOSITORY, the address of the repository; without one it becomes plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hack.site import dialect

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build"
OUTSIDE: Final = {
    "README.md": "docs/index.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "CHANGELOG.md": "docs/changelog.md",
    "SECURITY.md": "docs/report.md",
}
"""Pages at the top of the repository, and where the site has them."""
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FOREIGN: Final = re.compile(r"[a-z]+:")
_CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


class DeadLinkError(ValueError):
    """A page has a link to a file that does not exist."""


def sources() -> dict[str, Path]:
    """Return the pages: their path in the repository, as the site places them, and their file."""
    found = {moved: ROOT / name for name, moved in OUTSIDE.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        found[str(path.relative_to(ROOT))] = path
    return found


def rewritten(text: str, name: str, path: Path, repository: str) -> str:
    """Return the text of a page for the site; `name` is its place there, such as docs/reports/scale.md.

    Raises DeadLinkError if it has a link to a file that does not exist.
    """
    folder = posixpath.dirname(str(path.relative_to(ROOT)))

    def link(found: re.Match[str]) -> str:
        target = found[3]
        if not target or _FOREIGN.match(target):
            return found[0]
        wanted = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / wanted).exists():
            raise DeadLinkError(f"{path.relative_to(ROOT)}: {target} does not exist")
        address = _address(wanted, posixpath.dirname(name), repository)
        if not address:
            return found[2]
        return f"{found[1]}[{found[2]}]({address}{found[4] or ''})"

    return dialect.for_mkdocs(_outside_code(text, link))


def _address(wanted: str, folder: str, repository: str) -> str:
    """Return the link from a folder of the site to a path of the repository; empty if nothing shows that path."""
    if (ROOT / wanted / "README.md").exists():
        wanted = f"{wanted}/README.md"
    moved = OUTSIDE.get(wanted, wanted)
    if moved.startswith("docs/") and (ROOT / wanted).is_file():
        return posixpath.relpath(moved, folder)
    return f"{repository.rstrip('/')}/blob/main/{wanted}" if repository else ""


def _outside_code(text: str, change: Callable[[re.Match[str]], str]) -> str:
    """Return a text with its links changed, except those in blocks of code."""
    parts = _CODE.split(text)
    prose = [LINK.sub(change, part) for part in parts[::2]]
    code = [*parts[1::2], ""]
    return "".join(f"{one}{other}" for one, other in zip(prose, code, strict=True))


def gather(folder: Path, environment: Mapping[str, str]) -> int:
    """Write all pages, and the pictures, into a folder that is emptied first; return the number of pages."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "*.toml"))
    (folder / "assets").mkdir()
    shutil.copy(Path(__file__).with_name("search-worker.js"), folder / "assets/iframe-worker.js")
    found = sources()
    for name, path in found.items():
        file = folder / Path(name).relative_to("docs")
        file.parent.mkdir(parents=True, exist_ok=True)
        text = rewritten(path.read_text(), name, path, environment.get("NEURON_DRA_REPOSITORY", ""))
        file.write_text(text)
    return len(found)


def doors() -> dict[str, list[str]]:
    """Return the pages behind each door of mkdocs.yml, by the door's name, in their order."""
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return {name: list(_pages(inside)) for each in nav for name, inside in each.items()}


def _pages(inside: Any) -> list[str]:
    if isinstance(inside, str):
        return [inside]
    values = inside.values() if isinstance(inside, dict) else inside
    return [page_name for each in values for page_name in _pages(each)]


def main() -> int:
    """Write build/site-pages; return 1 if a link leads nowhere."""
    try:
        number = gather(BUILD / "site-pages", os.environ)
    except DeadLinkError as err:
        print(f"site: {err}", file=sys.stderr)
        return 1
    print(f"site: {number} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
