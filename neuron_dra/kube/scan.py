"""Finds values in JSON text without decoding it: no recursion, any nesting, any bytes in strings.

The API server passes some values through as it received them, such as a claim's opaque parameters. These may have
escapes and bytes that no decoder accepts, and nesting that ends one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from neuron_dra.core import user_text

Span = tuple[int, int]
"""Begin and end of a value in the text."""

EACH: Final = "*"
"""In a path: each element of a list."""

_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_STRING_AT: Final = re.compile(_STRING, re.DOTALL)
_SCALAR_AT: Final = re.compile(rb'[^\s,:"{}\[\]]++')
_BRACKETS: Final = rb"([{\[]++|[}\]]++)"  # all that open, or all that close: deep nesting is one match
_TO_BRACKETS: Final = re.compile(rb'(?:[^"{}\[\]]*+' + _STRING + rb')*+[^"{}\[\]]*+' + _BRACKETS, re.DOTALL)
_OPENING: Final = b"{["


class NotJson(ValueError):
    """The text is not JSON, or it ends too early."""


def end_of(raw: bytes, start: int) -> int:
    """Return the end of the value that begins at `start`. Raises NotJson if it has no end."""
    first_byte = raw[start : start + 1]
    if first_byte and first_byte in _OPENING:
        return _end_of_brackets(raw, start)
    match = (_STRING_AT if first_byte == b'"' else _SCALAR_AT).match(raw, start)
    if match is None:
        raise NotJson(f"no value at byte {start}")
    return match.end()


def _end_of_brackets(raw: bytes, start: int) -> int:
    depth, position = 0, start
    while True:
        match = _TO_BRACKETS.match(raw, position)
        if match is None:
            raise NotJson(f"the value at byte {start} has no end")
        position, end = match.span(1)
        if raw[position] in _OPENING:
            depth += end - position
        elif depth > end - position:
            depth -= end - position
        else:
            return position + depth
        position = end


def members(raw: bytes, start: int = 0) -> Iterator[tuple[str, Span]]:
    """Yield name and value of each member of the object at `start`; nothing if it is not an object. Raises NotJson."""
    position = _first(raw, start, b"{}")
    while position is not None:
        end = end_of(raw, position)
        name = _text(raw[position:end])
        colon = _skip_space(raw, end)
        if raw[colon : colon + 1] != b":":
            raise NotJson(f"no colon at byte {colon}")
        value = _skip_space(raw, colon + 1)
        end = end_of(raw, value)
        yield name, (value, end)
        position = _next(raw, end, b"}")


def elements(raw: bytes, start: int = 0) -> Iterator[Span]:
    """Yield each element of the list at `start`; nothing if it is not a list. Raises NotJson."""
    position = _first(raw, start, b"[]")
    while position is not None:
        end = end_of(raw, position)
        yield position, end
        position = _next(raw, end, b"]")


def find(raw: bytes, path: tuple[str, ...], start: int = 0) -> Iterator[Span]:
    """Yield the values at a path of names, such as ("spec", "config", EACH, "opaque"). Raises NotJson."""
    if not path:
        start = _skip_space(raw, start)
        yield start, end_of(raw, start)
        return
    step, inner_path = path[0], path[1:]
    if step == EACH:
        for begin, _ in elements(raw, start):
            yield from find(raw, inner_path, begin)
        return
    for name, (begin, _) in members(raw, start):
        if name == step:
            yield from find(raw, inner_path, begin)


def _first(raw: bytes, start: int, brackets: bytes) -> int | None:
    """Return the begin of the first entry between brackets; None without one."""
    start = _skip_space(raw, start)
    if raw[start : start + 1] != brackets[:1]:
        return None
    position = _skip_space(raw, start + 1)
    if raw[position : position + 1] == brackets[1:]:
        return None
    return position


def _next(raw: bytes, end: int, closing: bytes) -> int | None:
    """Return the begin of the entry after the one that ends at `end`; None after the last. Raises NotJson."""
    position = _skip_space(raw, end)
    separator = raw[position : position + 1]
    if separator == closing:
        return None
    if separator != b",":
        raise NotJson(f"no comma at byte {position}")
    return _skip_space(raw, position + 1)


def _skip_space(raw: bytes, position: int) -> int:
    match = _SPACE.match(raw, position)
    if match is not None:
        return match.end()
    return position


def _text(literal: bytes) -> str:
    """Return the name in a JSON string. Bytes that are not UTF-8 become U+FFFD, as in the API server."""
    if b"\\" not in literal:
        return literal[1:-1].decode(errors="replace")
    try:
        return str(json.loads(literal.decode(errors="replace")))
    except ValueError as err:
        raise NotJson(f"not a name: {user_text.shown(literal)}") from err
