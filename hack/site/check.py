"""Check the built site: links and anchors lead somewhere, and nothing is fetched from elsewhere.

mkdocs checks the links of Markdown; this reads what a browser gets, the theme's own pages included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from hack.site import pages

SITE: Final = pages.BUILD / "site"
_FETCHED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
"""Attributes with the address of something that a browser loads by itself."""
_LOADING: Final = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}
"""Relations of a <link> that a browser loads."""


@dataclass
class Page(HTMLParser):
    """What a page has: its anchors, its links, and what a browser fetches with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchor and the address of a tag."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _FETCHED and _FETCHED[tag] in given:
            self.fetched.append(given[_FETCHED[tag]])
        if tag == "link" and given.get("rel") in _LOADING:
            self.fetched.append(given.get("href", ""))


def read(folder: Path) -> dict[Path, Page]:
    """Return the pages of a built site."""
    found: dict[Path, Page] = {}
    for path in sorted(folder.rglob("*.html")):
        found[path] = Page()
        found[path].feed(path.read_text())
    return found


def problems(folder: Path) -> Iterator[str]:
    """Yield the links that lead nowhere, and what is fetched from another server or is missing."""
    found = read(folder)
    for path, each in found.items():
        name = path.relative_to(folder)
        yield from (f"{name}: {link} leads nowhere" for link in each.links if not _leads(link, path, found))
        yield from (f"{name}: {link} is fetched, and is no file of the site" for link in each.fetched
                    if not _is_file(link, path, folder))  # fmt: skip


def _leads(link: str, path: Path, found: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return False
    return not parts.fragment or target not in found or unquote(parts.fragment) in found[target].anchors


def _is_file(link: str, path: Path, folder: Path) -> bool:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return True
    base = folder if parts.path.startswith("/") else path.parent
    return not parts.netloc and (base / unquote(parts.path).lstrip("/")).exists()


def main() -> int:
    """Print the problems of build/site; return 1 if there is one."""
    found = list(problems(SITE))
    for text in found:
        print(f"site: {text}", file=sys.stderr)
    if not found:
        print(f"site: {SITE.relative_to(pages.ROOT)}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
