"""Draw sentences and rows of the pages for users: `python -m hack.reports.sentences HASH [NUMBER]`.

Whoever checks the pages against the code does not choose what is checked: the hash of the commit with the pages does. The
drawn ones have the smallest SHA-256 of hash, page and text.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from typing import Final

from hack.reports import words
from hack.site import pages

SHORTEST: Final = 5
"""Words of a sentence: below are links and captions."""
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_HEADER_OF_A_TABLE: Final = re.compile(r"^\|.*\n[|: -]+$", re.MULTILINE)
_BEGINS_A_PART: Final = re.compile(r"^ *(?:- |\d+\. )")
_END: Final = re.compile(r"(?<=[.?!])(?:\*\*)? +(?=[A-Z`*\[])")


def parts(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and rows of a page, each in one line."""
    lines: list[str] = []
    prose = _HEADER_OF_A_TABLE.sub("", _FENCE.sub("", text))
    for line in [*prose.splitlines(), ""]:
        is_row = line.startswith("|")
        if lines and (is_row or not line.strip() or line.startswith("#") or _BEGINS_A_PART.match(line)):
            yield " ".join(lines)
            lines = []
        if is_row:
            yield line.strip()
        elif line.strip() and not line.startswith("#"):
            lines.append(line.strip())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and rows of a page, in their order."""
    for part in parts(text):
        found = [part] if part.startswith("|") else _END.split(part)
        yield from (each for each in found if len(each.split()) >= SHORTEST)


def drawn(by_page: dict[str, str], commit: str, number: int) -> list[tuple[str, str]]:
    """Return pages and sentences that a hash draws, those with the smallest digests first."""
    every = {(name, each) for name, text in by_page.items() for each in sentences(text)}
    return sorted(every, key=lambda one: hashlib.sha256("\n".join((commit, *one)).encode()).digest())[:number]


def main() -> int:
    """Print what a hash draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the hash of the commit that has the pages")
    parser.add_argument("number", type=int, nargs="?", default=40, help="how many (default %(default)s)")
    args = parser.parse_args()
    names = words.for_users(words.counted(""), "")
    by_page = {name: (pages.ROOT / name).read_text() for name in names}
    for name, each in drawn(by_page, args.commit, args.number):
        print(f"{name}: {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
