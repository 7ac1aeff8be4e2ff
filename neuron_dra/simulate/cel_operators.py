"""What CEL's operators and macros do with values, and which types they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from neuron_dra.simulate.cel_functions import contains
from neuron_dra.simulate.cel_values import NUMERIC, Domains, EvaluationError, Optional, Uint, equal, type_name

_ORDERED = frozenset({"string", "bytes", "bool"})


@dataclass(frozen=True, slots=True)
class _Failed:
    error: EvaluationError


def attempt(run: Callable[[Any], Any], scope: Any) -> Any:
    """The value of a cel.bind; an error is kept and raised where the name is used, if it is."""
    try:
        return run(scope)
    except EvaluationError as err:
        return _Failed(err)


def settled(value: Any) -> Any:
    """A name's value; raises the error that a cel.bind kept."""
    if isinstance(value, _Failed):
        raise value.error
    return value


def may_hold_elements(kind: str) -> bool:
    """Can a value of this static type be selected from or indexed?"""
    return kind in ("dyn", "map", "list", "optional_type") or kind.startswith("map of")


def may_be_iterated(kind: str) -> bool:
    """Can a macro range over this static type?"""
    return kind in ("dyn", "map", "list") or kind.startswith("map of")


def truth(value: Any) -> bool:
    """A condition's value. Raises EvaluationError when it is no bool."""
    if isinstance(value, bool):
        return value
    raise EvaluationError(f"no such overload: a condition of type {type_name(value)}")


def decide(left: Callable[[Any], Any], right: Callable[[Any], Any], scope: Any, *, decisive: bool) -> bool:
    """`&&` (decisive False) or `||` (decisive True): an error counts only if the other side does not decide."""
    try:
        if truth(left(scope)) is decisive:
            return decisive
    except EvaluationError:
        if truth(right(scope)) is decisive:
            return decisive
        raise
    return truth(right(scope))


def element(holder: Any, key: Any) -> Any:
    """`holder.key` and `holder[key]`. Raises EvaluationError: no such key, or nothing to look into."""
    if isinstance(holder, dict):
        try:
            return holder[key]
        except (KeyError, TypeError):
            raise EvaluationError(
                f"no such key: {key}. Guard the attribute with has(), or use .? and orValue(): "
                "a device without it fails the pod on every node"
            ) from None
    if isinstance(holder, list) and isinstance(key, int | float) and not isinstance(key, bool):
        if key != int(key) or not 0 <= key < len(holder):
            raise EvaluationError(f"index out of bounds: {key}")
        return holder[int(key)]
    raise EvaluationError(f"no such overload: {type_name(holder)} has no element {key!r}")


def optional_element(holder: Any, key: Any) -> Optional:
    """`holder.?key` and `holder[?key]`, and any further step into an optional."""
    if isinstance(holder, Optional):
        if not holder.present:
            return holder
        holder = holder.value
    if isinstance(holder, Domains):
        return Optional(holder[key], present=True)
    if isinstance(holder, dict):
        return Optional(holder[key], present=True) if key in holder else Optional()
    if isinstance(holder, list) and isinstance(key, int):
        return Optional(holder[key], present=True) if 0 <= key < len(holder) else Optional()
    raise EvaluationError(f"no such overload: {type_name(holder)} has no element {key!r}")


def has_field(holder: Any, name: str) -> bool:
    """`has(holder.name)`."""
    if isinstance(holder, Optional):
        return holder.present and has_field(holder.value, name)
    if isinstance(holder, Domains):
        return True  # every domain has a map, if an empty one
    if isinstance(holder, dict):
        return name in holder
    raise EvaluationError(f"no such overload: {type_name(holder)} has no field {name!r}")


def negative(value: Any) -> Any:
    """Unary minus."""
    kind = type_name(value)
    if kind not in ("int", "double"):
        raise EvaluationError(f"no such overload: -{kind}")
    return _checked(-value, kind)


def _checked(value: Any, kind: str) -> Any:
    if kind == "double":
        return float(value)
    low, high = (0, 2**64) if kind == "uint" else (-(2**63), 2**63)
    if not low <= value < high:
        raise EvaluationError("unsigned integer overflow" if kind == "uint" else "integer overflow")
    return Uint(value) if kind == "uint" else int(value)


def _arithmetic(symbol: str, work: Callable[[Any, Any], Any], kinds: frozenset[str]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        a, b = type_name(left), type_name(right)
        if a != b or a not in kinds:
            raise EvaluationError(f"no such overload: {a} {symbol} {b}")
        value = work(left, right)
        return _checked(value, a) if a in NUMERIC else value

    return apply


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        if right:
            return left / right
        return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    if right == 0:
        raise EvaluationError("division by zero")
    whole = abs(int(left)) // abs(int(right))
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: Any, right: Any) -> Any:
    if right == 0:
        raise EvaluationError("modulus by zero")
    rest = abs(int(left)) % abs(int(right))
    return rest if left >= 0 else -rest


def _compared(symbol: str, work: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def apply(left: Any, right: Any) -> bool:
        a, b = type_name(left), type_name(right)
        if (a == b and a in _ORDERED) or (a in NUMERIC and b in NUMERIC):
            return work(left, right)
        raise EvaluationError(f"no such overload: {a} {symbol} {b}")

    return apply


def _in(item: Any, holder: Any) -> bool:
    if isinstance(holder, dict):
        try:
            return item in holder
        except TypeError:
            return False
    if isinstance(holder, list):
        return contains(holder, item)
    raise EvaluationError(f"no such overload: in {type_name(holder)}")


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": _compared("<", lambda left, right: left < right),
    "<=": _compared("<=", lambda left, right: left <= right),
    ">": _compared(">", lambda left, right: left > right),
    ">=": _compared(">=", lambda left, right: left >= right),
    "in": _in,
    "+": _arithmetic("+", lambda left, right: left + right, NUMERIC | {"string", "bytes", "list"}),
    "-": _arithmetic("-", lambda left, right: left - right, NUMERIC),
    "*": _arithmetic("*", lambda left, right: left * right, NUMERIC),
    "/": _arithmetic("/", _divide, NUMERIC),
    "%": _arithmetic("%", _remainder, frozenset({"int", "uint"})),
}
_SUMMANDS = {
    "+": NUMERIC | {"string", "bytes", "list"},
    "-": NUMERIC,
    "*": NUMERIC,
    "/": NUMERIC,
    "%": frozenset({"int", "uint"}),
}


def result_type(operator: str, left: str, right: str) -> str | None:
    """The static type of `left operator right`; None where the API server finds no overload."""
    known = "dyn" not in (left, right)
    if operator == "in":
        return "bool" if may_be_iterated(right) else None
    if operator in ("==", "!="):
        return None if known and left != right and {left, right} - {"map"} else "bool"
    if operator in ("<", "<=", ">", ">="):
        fits = (left == right and left in _ORDERED) or {left, right} <= NUMERIC
        return "bool" if fits or (not known and {left, right} - {"dyn"} <= _ORDERED | NUMERIC) else None
    kinds = {left, right} - {"dyn"}
    if len(kinds) > 1 or not kinds <= _SUMMANDS[operator]:
        return None
    return kinds.pop() if kinds else "dyn"


def items(source: Any) -> list[Any]:
    """What a macro ranges over: a list's elements, or a map's keys in order."""
    if isinstance(source, list):
        return source
    if isinstance(source, dict):
        return sorted(source, key=str)
    raise EvaluationError(f"got {type_name(source)}, expected iterable type")


Evaluate = Callable[[Any], Any]


def _all(values: Iterable[Any], condition: Evaluate, *, decisive: bool = False) -> bool:
    error: EvaluationError | None = None
    for value in values:
        try:
            if truth(condition(value)) is decisive:
                return decisive
        except EvaluationError as err:
            error = err
    if error is not None:
        raise error
    return not decisive


def _exists_one(values: Iterable[Any], condition: Evaluate) -> bool:
    return sum(truth(condition(value)) for value in values) == 1


def _map(values: Iterable[Any], first: Evaluate, second: Evaluate | None = None) -> list[Any]:
    if second is None:
        return [first(value) for value in values]
    return [second(value) for value in values if truth(first(value))]


MACROS: dict[str, Callable[..., Any]] = {
    "all": _all,
    "exists": lambda values, condition: _all(values, condition, decisive=True),
    "exists_one": _exists_one,
    "map": _map,
    "filter": lambda values, condition: [value for value in values if truth(condition(value))],
}
