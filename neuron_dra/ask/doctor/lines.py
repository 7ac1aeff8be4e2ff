"""The lines of `doctor`: one for each check, with what is wrong and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_LONGEST: Final = 1000  # letters of a text: messages are written by other programs


class CheckState(Enum):
    """The result of a check. What could not be seen is unknown, never ok."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Line:
    """The result of one check.

    `area` is a short word for what was checked, `code` is stable, for programs; `todo` says what to do.
    """

    state: CheckState
    area: str
    code: str
    text: str
    todo: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the line for `-o json` and `-o yaml`."""
        return {
            "state": self.state.value,
            "area": self.area,
            "code": self.code,
            "text": printable(self.text),
            "toDo": printable(self.todo),
        }


def ok(area: str, text: str, code: str = "") -> Line:
    """Return the line of a check that found nothing wrong."""
    return Line(CheckState.OK, area, code or "Ok", text)


def wrong(area: str, code: str, text: str, todo: str) -> Line:
    """Return the line of a check that found something."""
    return Line(CheckState.WRONG, area, code, text, todo)


def unknown(area: str, text: str, todo: str = "") -> Line:
    """Return the line of a check that could not be done."""
    return Line(CheckState.UNKNOWN, area, "Unknown", text, todo)


def from_wire(wire_line: object) -> Line:
    """Return a line that another release may have written. Raises ValueError."""
    if not isinstance(wire_line, Mapping) or not all(isinstance(wire_line.get(key), str) for key in ("state", "text")):
        raise ValueError("a line without state and text")
    area, code, todo = (str(wire_line.get(key) or "") for key in ("area", "code", "toDo"))
    return Line(CheckState(wire_line["state"]), area, code, wire_line["text"], todo)


def printable(text: str) -> str:
    """Return a text in one line, without control characters: a terminal obeys those, and other programs wrote it."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[:_LONGEST]}..."


def exit_code(lines: Iterable[Line]) -> int:
    """Return 0 if everything is ok, otherwise 1."""
    return int(any(line.state is not CheckState.OK for line in lines))


def to_wire(lines: Sequence[Line]) -> dict[str, Any]:
    """Return all lines for `-o json` and `-o yaml`."""
    return {"checks": [line.to_wire() for line in lines]}
