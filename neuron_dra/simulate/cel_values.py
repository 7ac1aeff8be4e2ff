"""CEL values, their equality and their errors.

int, double, string, bytes, bool, null, list and map are Python's int, float, str, bytes, bool, None, list and dict;
the rest is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_dra.simulate.quantity import Quantity
from neuron_dra.simulate.semver import Semver


class SelectorError(Exception):
    """A selector that cannot be judged. The scheduler then fails the pod, whatever other nodes offer."""


class CompileError(SelectorError):
    """The API server would refuse the expression."""


class EvaluationError(SelectorError):
    """The expression failed on a device, for example because an attribute is absent."""


class UnsupportedError(SelectorError):
    """Kubernetes knows this, the simulator does not: the answer is unknown, and never "no match"."""


class Uint(int):
    """CEL's unsigned integer, a type of its own."""


@dataclass(frozen=True, slots=True)
class Optional:
    """`optional.of(x)` or, with `present` false, `optional.none()`."""

    value: Any = None
    present: bool = False


class Domains(dict[str, dict[str, Any]]):
    """`device.attributes` and `device.capacity`: an unknown domain reads as an empty map, but `in` tells the truth."""

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (Uint, "uint"),
    (int, "int"),
    (float, "double"),
    (str, "string"),
    (bytes, "bytes"),
    (type(None), "null_type"),
    (list, "list"),
    (dict, "map"),
    (Quantity, "kubernetes.Quantity"),
    (Semver, "kubernetes.Semver"),
    (Optional, "optional_type"),
)
NUMERIC = frozenset({"int", "uint", "double"})


def type_name(value: Any) -> str:
    """The CEL name of a value's type."""
    for python_type, name in _TYPES:
        if isinstance(value, python_type):
            return name
    return type(value).__name__


def equal(left: Any, right: Any) -> bool:
    """CEL's `==` at run time: numbers compare across their types, other types that differ are unequal."""
    a, b = type_name(left), type_name(right)
    if a != b:
        return a in NUMERIC and b in NUMERIC and bool(left == right)
    if a == "list":
        return len(left) == len(right) and all(equal(x, y) for x, y in zip(left, right, strict=True))
    if a == "map":
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if a == "optional_type":
        return left.present == right.present and equal(left.value, right.value)
    return bool(left == right)
