"""The fields of manifests, compared with those that API servers know: unknown, misplaced, and of wrong types. Pure.

`data/fields.json` has the fields and types of each release (hack/generate/field_tables.py). An API server rejects an
unknown field if it is asked to be strict, as kubectl does.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.render import words
from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.core.wire import Wire

_QUANTITY: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_NAMES: Final = {
    "s": "a string",
    "i": "an integer of 32 bits",
    "l": "an integer",
    "n": "a number",
    "b": "true or false",
    "q": "a quantity, such as 4 or 16Gi",
    "x": "an integer or a string",
    "t": "a time, as a string",
    "o": "an object",
}
_BITS: Final = {"i": 31, "l": 63}
_SHOWN: Final = 40
"""Characters of a value that a message shows."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A field that a release rejects."""

    path: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class KnownObject:
    """An object on the way to a field: its path, and the fields that it may have."""

    path: str
    fields: Mapping[str, str]


class FieldTable:
    """The fields of one release."""

    def __init__(self, types: Sequence[Mapping[str, str]], kinds: Mapping[str, str]) -> None:
        self._types = types
        self._kinds = kinds

    def problems(self, raw_object: Wire) -> list[FieldProblem]:
        """Return what the release rejects in an object; nothing for kinds that the table does not have."""
        code = self._kinds.get(f"{raw_object.get('apiVersion')} {raw_object.get('kind')}")
        return list(self._value(raw_object, code, "", ())) if code is not None else []

    def _value(self, value: Any, code: str, path: str, above: tuple[KnownObject, ...]) -> Iterator[FieldProblem]:
        if value is None or code == "*":
            return  # null is an absent value
        if code.startswith("[]"):
            if not isinstance(value, list):
                yield _wrong(path, value, "a list")
                return
            for index, inner in enumerate(value):
                yield from self._value(inner, code[2:], f"{path}[{index}]", above)
        elif code.startswith("{}"):
            if not isinstance(value, dict):
                yield _wrong(path, value, "an object")
                return
            for key, inner in value.items():
                yield from self._value(inner, code[2:], f"{path}.{key}", above)
        elif code.startswith("#"):
            if not isinstance(value, dict):
                yield _wrong(path, value, "an object")
                return
            yield from self._object(value, KnownObject(path, self._fields(code)), above)
        elif not _is_of(value, code):
            is_unquoted = code == "s" and isinstance(value, bool | int | float)
            yield _wrong(path, value, f"{_NAMES[code]}, in YAML in quotes" if is_unquoted else _NAMES[code])

    def _object(self, value: Wire, step: KnownObject, above: tuple[KnownObject, ...]) -> Iterator[FieldProblem]:
        for key, inner in value.items():
            at = f"{step.path}.{key}".lstrip(".")
            if key == "source" and ".resourceClaims[" in at:
                continue  # `pods.of_pod` has more to say about it
            if key in step.fields:
                yield from self._value(inner, step.fields[key], at, (*above, step))
            else:
                yield FieldProblem(at, "FieldUnknown", f"{at}: unknown field{self._hint(str(key), step, above)}")

    def _fields(self, code: str) -> Mapping[str, str]:
        return self._types[int(code[1:])]

    def _hint(self, key: str, step: KnownObject, above: Sequence[KnownObject]) -> str:
        """Return where the field belongs: below, above, or under another name; empty if nothing resembles it."""
        for name, code in step.fields.items():
            inner = code.removeprefix("[]")
            if inner.startswith("#") and key in self._fields(inner):
                return f"; write it below {name}"
        for outer in reversed(above):
            if key in outer.fields:
                place = f"below {outer.path}" if outer.path else "at the top"
                return f"; write it {place}, beside {', '.join(sorted(outer.fields)[:3])}"
        if near := words.nearest(key, step.fields):
            return f", did you mean {near}?"
        return f"; the fields here are {words.listed(sorted(step.fields), 8)}"


def _is_of(value: Any, code: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and float(value).is_integer()
    match code:
        case "s" | "t":
            return isinstance(value, str)
        case "b":
            return isinstance(value, bool)
        case "i" | "l":
            return is_whole and -(2 ** _BITS[code]) <= value < 2 ** _BITS[code]
        case "n":
            return is_number
        case "q":
            return is_number or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value.strip())))
        case "x":
            return isinstance(value, str) or is_whole
    return isinstance(value, dict)


def _wrong(path: str, value: Any, expected: str) -> FieldProblem:
    shown = json.dumps(value, default=str)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return FieldProblem(path, "FieldType", f"{path}: {shown}: write {expected}")


@functools.cache
def tables() -> Mapping[str, FieldTable]:
    """Return the table of each release that has one."""
    packed = json.loads(pkgutil.get_data("neuron_dra", "data/fields.json") or b"{}")
    table_by_release = {}
    for release, table in packed["releases"].items():
        table_by_release[release] = FieldTable(packed["types"], table["kinds"])
    return table_by_release


def of_object(where: str, raw_object: Wire, version: tuple[int, int] | None) -> Iterator[ManifestProblem]:
    """Yield the fields that an API server rejects.

    Without a `version`, what only some releases reject is a warning. Kubernetes adds fields and hardly removes any, so
    a release without a table rejects what all others reject.
    """
    table_by_release = tables()
    chosen = f"{version[0]}.{version[1]}" if version is not None else ""
    releases = [chosen] if chosen in table_by_release else list(table_by_release)
    rejecting: dict[tuple[str, str], list[str]] = defaultdict(list)
    first: dict[tuple[str, str], FieldProblem] = {}
    for release in releases:
        for problem in table_by_release[release].problems(raw_object):
            key = problem.path, problem.code
            rejecting[key].append(release)
            first[key] = problem
    for key, problem in first.items():
        if len(rejecting[key]) == len(releases):
            yield ManifestProblem(where, problem.code, problem.text)
        elif version is None:
            text = f"{problem.text} (on Kubernetes {words.listed(rejecting[key])})"
            yield ManifestProblem(where, problem.code, text, warning=True)
