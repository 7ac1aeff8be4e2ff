"""Reads bodies as the API server does, which is written in Go.

Opaque values pass through byte by byte. Elsewhere, bytes that are not UTF-8 and halves of surrogate pairs become
U+FFFD.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from neuron_dra.kube import objects

T = TypeVar("T")

_PLACE: Final = b"opaque value of a body, number "
_DEEPEST: Final = 10_000  # brackets, as in Go's encoding/json
_PAIR_OR_HALF: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_BRACKET: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)


def decode(raw: bytes) -> Any:
    """Return the value in a body; an opaque value that Python cannot decode and encode is a msgspec.Raw.

    Raises ValueError.
    """
    if (value := _decoded(raw)) is not None:
        return value
    spans = []
    for span, _ in objects.opaque_values(raw):
        if _decoded(raw[slice(*span)]) is None:
            spans.append(span)
    parts: list[bytes] = []
    kept: list[msgspec.Raw] = []
    position = 0
    for begin, end in spans:
        parts += [raw[position:begin], b'"%s%d"' % (_PLACE, len(kept))]
        kept.append(_checked(raw[begin:end]))
        position = end
    with_places = b"".join([*parts, raw[position:]])
    return _filled(msgspec.json.decode(_as_go_reads(with_places)), kept)


def copied(value: T) -> T:
    """Return a copy of a JSON value; several times faster than copy.deepcopy."""
    try:
        copy: T = msgspec.json.decode(msgspec.json.encode(value))
        return copy
    except (ValueError, OverflowError, RecursionError):
        again: T = _copied(value)
        return again


def is_object(value: Any) -> bool:
    """Return True if an opaque value is a JSON object."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).lstrip()[:1] == b"{"
    return isinstance(value, dict)


def size(value: Any) -> int:
    """Return the length of an opaque value in bytes."""
    if isinstance(value, msgspec.Raw):
        return len(bytes(value))
    return len(msgspec.json.encode(value))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return value


def _as_go_reads(raw: bytes) -> bytes:
    text = _PAIR_OR_HALF.sub(lambda match: match[1] or b"\\ufffd", raw)
    return text.decode(errors="replace").encode()


def _decoded(raw: bytes) -> Any:
    """Return a value that can be decoded and encoded; None for any other."""
    try:
        value = msgspec.json.decode(raw)
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError):
        return None
    return value


def _filled(value: Any, kept: list[msgspec.Raw]) -> Any:
    """Return the value with the opaque values in their places."""
    if isinstance(value, dict):
        return {key: _filled(entry, kept) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, kept) for entry in value]
    is_place = isinstance(value, str) and value.startswith(_PLACE.decode())
    if is_place:
        return kept[int(value.removeprefix(_PLACE.decode()))]
    return value


def _checked(raw: bytes) -> msgspec.Raw:
    """Return an opaque value. Raises ValueError if Go cannot decode it."""
    try:
        msgspec.json.decode(_as_go_reads(raw))
    except RecursionError:
        if _depth(raw) > _DEEPEST:
            raise ValueError("exceeded max depth") from None
    return msgspec.Raw(raw)


def _depth(raw: bytes) -> int:
    steps = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
    return max(accumulate(steps.get(match[0], 0) for match in _BRACKET.finditer(raw)))
