"""Texts that users write, in messages: cut, and without characters that would change a terminal or forge a log line."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 60
_CUT: Final = "..."


def shown(value: object, longest: int = LONGEST) -> str:
    """Return a value as Python writes it, so a text in quotes, of at most `longest` characters."""
    return printable(repr(value), longest)


def printable(text: str, longest: int = LONGEST) -> str:
    """Return a text of at most `longest` characters on one line; what cannot be printed is escaped."""
    if len(text) > longest:
        text = text[: longest - len(_CUT)] + _CUT
    if text.isprintable():
        return text
    escaped = []
    for character in text:
        escaped.append(character if character.isprintable() else character.encode("unicode_escape").decode())
    return printable("".join(escaped), longest)


def is_plain(text: str, longest: int = LONGEST) -> bool:
    """Return whether `printable` leaves a text as it is."""
    return len(text) <= longest and text.isprintable()
