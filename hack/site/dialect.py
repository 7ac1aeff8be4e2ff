"""Pages as GitHub renders them, rewritten for MkDocs, which has another dialect of Markdown. Pure.

GitHub takes lists and tables without an empty line above them, and nested lists with two or three spaces. MkDocs' parser
takes them as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

INDENT: Final = 4
"""Spaces for each level of a list that MkDocs' parser expects."""
_ITEM: Final = re.compile(r"( *)([-*]|\d+\.) +(?=\S)")
_FENCE: Final = re.compile(r" *(```|~~~)")


@dataclass
class _Writer:
    """The lines that were written, and the columns at which the texts of the open lists begin."""

    lines: list[str] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    fence: str = ""

    def write(self, line: str) -> None:
        """Write a line of the page."""
        if self.fence:
            self._in_fence(line)
        elif not line.strip():
            self.lines.append("")
        elif found := _ITEM.match(line):
            self._item(line, found)
        else:
            self._text(line)

    def _in_fence(self, line: str) -> None:
        self.lines.append(self._shifted(line))
        if line.strip() == self.fence:
            self.fence = ""

    def _item(self, line: str, found: re.Match[str]) -> None:
        self._close(len(found[1]))
        if not self.columns:
            self._separate(_is_of_a_list)
        self.lines.append(" " * INDENT * len(self.columns) + f"{found[2]} {line[found.end() :]}")
        self.columns.append(found.end())

    def _text(self, line: str) -> None:
        self._close(len(line) - len(line.lstrip(" ")))
        if line.lstrip().startswith("|"):
            self._separate(_is_of_a_table)
        if fence := _FENCE.match(line):
            self.fence = fence[1]
        self.lines.append(self._shifted(line))

    def _close(self, indent: int) -> None:
        """End the lists whose text begins right of this column."""
        while self.columns and indent < self.columns[-1]:
            self.columns.pop()

    def _separate(self, belongs: Callable[[str], bool]) -> None:
        """Write an empty line, unless there is one or the line above belongs to the same block."""
        above = self.lines[-1] if self.lines else ""
        if above and not belongs(above):
            self.lines.append("")

    def _shifted(self, line: str) -> str:
        if not self.columns or not line.strip():
            return line
        column = self.columns[-1]
        rest = line[column:] if not line[:column].strip() else line.lstrip(" ")
        return " " * INDENT * len(self.columns) + rest


def _is_of_a_list(line: str) -> bool:
    return _ITEM.match(line) is not None or line.startswith(" ")


def _is_of_a_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def for_mkdocs(text: str) -> str:
    """Return a page of GitHub's Markdown in the dialect of MkDocs."""
    writer = _Writer()
    for line in text.splitlines():
        writer.write(line)
    return "\n".join(writer.lines) + "\n"
