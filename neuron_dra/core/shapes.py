"""The types of fields in objects from files, which no API server has validated.

A shape is a type, a list of one shape, or a mapping of fields. Missing fields are valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def wrong(value: Any, shape: Any, path: str = "") -> str:
    """Return which field of `value` has the wrong type; empty if all are right."""
    first_wrong = _wrong(value, shape)
    if first_wrong is None:
        return ""
    inner, problem = first_wrong
    return f"{(path + inner).removeprefix('.')} {problem}"


def _wrong(value: Any, shape: Any) -> tuple[str, str] | None:
    """Return the path of the first wrong field, and what is wrong with it. Snapshots have 100,000s of values."""
    if value is None:
        return None
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return "", f"is {called(value)}: it must be an object"
        if not shape and (odd := [name for name in value if not isinstance(name, str)]):
            return "", f"has the key {called(odd[0])}: it must be a string"
        for field, part_shape in shape.items():
            part = value.get(field)
            if part is not None and (wrong_part := _wrong(part, part_shape)) is not None:
                return f".{field}{wrong_part[0]}", wrong_part[1]
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return "", f"is {called(value)}: it must be a list"
        if None in value:
            return "", "has an empty entry"
        for number, part in enumerate(value):
            if (wrong_part := _wrong(part, shape[0])) is not None:
                return f"[{number}]{wrong_part[0]}", wrong_part[1]
        return None
    if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
        return None
    words = {str: "a string", int: "a whole number", bool: "true or false"}
    return "", f"is {called(value)}: it must be {words[shape]}"


def fitting(value: Any, shape: Any) -> Any:
    """Return a value without its parts of a wrong type; what has the right type is returned as it is."""
    if _wrong(value, shape) is None:
        return value
    if isinstance(shape, Mapping):
        members = value.items() if isinstance(value, Mapping) else ()
        fitting_fields = {}
        for name, member in members:
            if _may_fit(member, shape.get(name)):
                fitting_fields[name] = fitting(member, shape[name]) if name in shape else member
        return fitting_fields
    entries = value if isinstance(value, list) else ()
    return [fitting(entry, shape[0]) for entry in entries if entry is not None and _may_fit(entry, shape[0])]


def _may_fit(value: Any, shape: Any) -> bool:
    """Return True if a value has the right type, apart from its parts."""
    if shape is None or value is None:
        return True
    if isinstance(shape, Mapping | list):
        return isinstance(value, Mapping if isinstance(shape, Mapping) else list)
    return _wrong(value, shape) is None


def called(value: object) -> str:
    """Return a value for a message, cut to 40 characters."""
    text = repr(value)
    if len(text) <= 40:
        return text
    return f"{text[:40]}..."


class CompiledShape:
    """A shape, compiled to a check that takes a twentieth of the time of `wrong` on values that have the shape.

    In place of a shape, it may be given a type of msgspec, which accepts less: null, for example, in no field.
    """

    def __init__(self, shape: Any) -> None:
        self._type = _compiled(shape)

    def has(self, value: Any) -> bool:
        """Return True if `value` has the shape; if this returns False, `wrong` decides."""
        try:
            msgspec.convert(value, self._type)
        except (msgspec.ValidationError, RecursionError):
            return False
        return True


def _compiled(shape: Any) -> Any:
    """Return the type of values of a shape."""
    if isinstance(shape, Mapping):
        if not shape:
            return dict[str, Any]
        fields = [(name, _compiled(part_shape) | None, None) for name, part_shape in shape.items()]
        return msgspec.defstruct("Fields", fields, gc=False)
    if isinstance(shape, list):
        return list[_compiled(shape[0])]  # type: ignore[misc]
    return shape
