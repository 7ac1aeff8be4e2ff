"""Output of the commands: wrapped text, colors on a terminal, JSON and YAML."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

WIDTH: Final = 80
API_VERSION: Final = "cli.neuron.aws.com/v1"
"""Of what `-o json` and `-o yaml` print: docs/command-line.md has the fields."""
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
        text, width(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return lines or [first.rstrip()]


def table(rows: Sequence[Sequence[str]], gap: str = "  ", indent: str = "") -> list[str]:
    """Return rows as aligned columns."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    found = []
    for row in rows:
        found.append(indent + gap.join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip())
    return found


def write(lines: Sequence[str]) -> None:
    """Write lines to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_data(kind: str, data: Mapping[str, Any] | Sequence[Any], form: str, **beside: Any) -> None:
    """Write an answer as JSON or YAML, in the shape of all answers: an object with a kind, or a list with items.

    `beside` are more fields; `answers.py` has the fields of each kind.
    """
    whole = dict(data) if isinstance(data, Mapping) else {"items": list(data)}
    name = kind if isinstance(data, Mapping) else f"{kind}List"
    value = {"apiVersion": API_VERSION, "kind": name, **whole, **beside}
    if form == "json":
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
        return
    import yaml

    sys.stdout.write(yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True))
