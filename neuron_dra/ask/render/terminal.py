"""Output of the commands: wrapped text, colors on a terminal, JSON and YAML."""

from __future__ import annotations

import json
import os
import shutil
import string
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

WIDTH: Final = 80
_LEAST: Final = 16
"""Characters of the last column that are worth a line of their own beside the others."""
API_VERSION: Final = "cli.neuron.aws.com/v1"
"""Of what `-o json` and `-o yaml` print: docs/output.md has the fields."""
_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def colored(text: str, style: str) -> str:
    """Return the text in a style on a terminal; unchanged elsewhere, and with NO_COLOR."""
    if not style or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    codes = ";".join(_CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def width() -> int:
    """Return the width of the terminal, at least 40; WIDTH without one."""
    if sys.stdout.isatty():
        return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)
    return WIDTH


def wrapped(text: str, *, first: str = "", rest: str = "") -> list[str]:
    """Return a text as lines that fit; `first` and `rest` are put before them."""
    lines = textwrap.wrap(
        _printable(text),
        width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]


def _printable(text: str) -> str:
    """Return a text without characters that would change the terminal: messages of a cluster may have any."""
    if text.isprintable():
        return text
    shown = []
    for character in text:
        is_usual = character.isprintable() or character in string.whitespace
        shown.append(character if is_usual else character.encode("unicode_escape").decode())
    return "".join(shown)


def advice(text: str, *, first: str, rest: str) -> list[str]:
    """Return what to do as lines that fit; a terminal shows a command in one piece, so that it can be copied."""
    lines = wrapped(text, first=first, rest=rest)
    whole = f"    {text}"
    is_command = text.startswith(("kubectl ", "neuron-dra "))
    if len(lines) > 1 and is_command and is_terminal() and len(whole) <= width():
        return [first.rstrip(), whole]
    return lines


def table(rows: Sequence[Sequence[str]], gap: str = "  ", indent: str = "", hosts: int | None = None) -> list[str]:
    """Return rows as aligned columns; `hosts` is the column with names of nodes.

    On a terminal that is too narrow, names of nodes lose their domain, and the last column is wrapped.
    """
    if not rows:
        return []
    space = width() - len(indent)
    if is_terminal() and hosts is not None and _extent(rows, gap) > space:
        rows = _without_domains(rows, hosts)
    if is_terminal() and _extent(rows, gap) > space:
        lines = _folded(rows, gap, space)
    else:
        lines = _aligned(rows, gap)
    return [indent + line for line in lines]


def fits(rows: Sequence[Sequence[str]], indent: str = "", hosts: int | None = None) -> bool:
    """Return True if a table is no wider than the terminal, if need be without domains; True without a terminal."""
    if not is_terminal():
        return True
    if hosts is not None:
        rows = _without_domains(rows, hosts)
    return _extent(rows, "  ") + len(indent) <= width()


def is_terminal() -> bool:
    """Return True if a person sees the output, rather than a program or a file."""
    return sys.stdout.isatty()


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]


def _extent(rows: Sequence[Sequence[str]], gap: str) -> int:
    return max(map(len, _aligned(rows, gap)))


def _aligned(rows: Sequence[Sequence[str]], gap: str) -> list[str]:
    widths = _widths(rows)
    lines = []
    for row in rows:
        lines.append(gap.join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
    return lines


def _without_domains(rows: Sequence[Sequence[str]], column: int) -> Sequence[Sequence[str]]:
    """Return the rows with the first part of each node's name, if that tells the nodes apart; addresses stay whole."""
    names = {row[column] for row in rows}
    short = {name.partition(".")[0] for name in names}
    if len(short) < len(names) or any(map(str.isdecimal, short)):
        return rows
    short_rows = []
    for row in rows:
        short_rows.append([*row[:column], row[column].partition(".")[0], *row[column + 1 :]])
    return short_rows


def _folded(rows: Sequence[Sequence[str]], gap: str, space: int) -> list[str]:
    """Return rows whose last column is wrapped: below itself, or below the row where no space is left for it."""
    fronts = _aligned([row[:-1] for row in rows], gap)
    start = max(map(len, fronts)) + len(gap)
    beside = space - start >= _LEAST
    indent = " " * (start if beside else len(gap) * 2)
    lines = []
    for row, front in zip(rows, fronts, strict=True):
        cells = textwrap.wrap(row[-1], space - len(indent), break_long_words=False, break_on_hyphens=False)
        if beside:
            cells[:1] = [f"{front:<{start}}{cells[0]}"] if cells else [front]
        else:
            cells.insert(0, front)
        lines += [cells[0], *(indent + cell for cell in cells[1:])]
    return lines


def columns(lines: Sequence[str], gap: str = "    ") -> list[str]:
    """Return lines side by side, each column from top to bottom, where the terminal has room for it."""
    number = across(lines, gap)
    if number < 2:
        return list(lines)
    height = -(-len(lines) // number)
    size = max(map(len, lines))
    joined = []
    for place in range(height):
        row = [line.ljust(size) for line in lines[place::height]]
        joined.append(gap.join(row).rstrip())
    return joined


def across(lines: Sequence[str], gap: str = "    ") -> int:
    """Return how many of these lines fit side by side on the terminal; 1 without one."""
    if not lines or not is_terminal():
        return 1
    longest = max(map(len, lines)) + len(gap)
    return max(1, (width() + len(gap)) // longest)


def write(lines: Sequence[str]) -> None:
    """Write lines to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_data(kind: str, data: Mapping[str, Any] | Sequence[Any], form: str, **beside: Any) -> None:
    """Write an answer as JSON or YAML, in the shape of all answers: an object with a kind, or a list with items.

    `beside` are more fields; `answers.py` has the fields of each kind.
    """
    whole = dict(data) if isinstance(data, Mapping) else {"items": list(data)}
    name = kind if isinstance(data, Mapping) else f"{kind}List"
    answer = {"apiVersion": API_VERSION, "kind": name, **whole, **beside}
    if form == "json":
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    import yaml

    sys.stdout.write(yaml.safe_dump(answer, sort_keys=False, width=120, allow_unicode=True))
