"""The functions a selector may call, and the names of those that Kubernetes has and this evaluator has not.

Source: the CEL standard library, and apiserver's pkg/cel/library of Kubernetes 1.37.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from neuron_dra.simulate import quantity, semver
from neuron_dra.simulate.cel_values import EvaluationError, Optional, Uint, equal, type_name
from neuron_dra.simulate.quantity import Quantity
from neuron_dra.simulate.semver import Semver

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"
MAX_INCLUDES: Final = 48  # the longest list `includes` looks at; resource.k8s.io/v1


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature: CEL type names, "dyn" for any. A method's first argument is its receiver."""

    arguments: tuple[str, ...]
    result: str
    call: Callable[..., Any]

    def accepts(self, types: Iterable[str]) -> bool:
        """True when arguments of these types (static or of values) may be passed."""
        given = tuple(types)
        return len(given) == len(self.arguments) and all(
            wanted == have or "dyn" in (wanted, have) for wanted, have in zip(self.arguments, given, strict=True)
        )


def _int64(value: float) -> int:
    if not -(2**63) <= value < 2**63:
        raise EvaluationError("integer overflow")
    return int(value)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as err:
        raise EvaluationError(str(err)) from err


def _parses(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def _to_int(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise EvaluationError(f"type conversion error from 'string' to 'int': {text!r}")
    return _int64(int(text))


def _to_bool(text: str) -> bool:
    if text in ("true", "True", "TRUE", "t", "1"):
        return True
    if text in ("false", "False", "FALSE", "f", "0"):
        return False
    raise EvaluationError(f"type conversion error from 'string' to 'bool': {text!r}")


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


def _double(text: str) -> float:
    return float(_parsed(float, text))


def regex(pattern: str) -> Any:
    """Compile a regular expression. Raises EvaluationError."""
    import re2  # type: ignore[import-untyped]  # comes with cel-python; RE2 is what the API server uses

    try:
        return re2.compile(pattern)
    except re2.error as err:
        raise EvaluationError(f"invalid regular expression {pattern!r}: {err}") from err


def _find(text: str, pattern: str) -> str:
    match = regex(pattern).search(text)
    return str(match.group(0)) if match else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [str(match.group(0)) for match in regex(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise EvaluationError(f"index out of range: {start}, {stop}")
    return text[start:stop]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text]
    if separator == "":
        head = list(text) if limit < 0 or limit >= len(text) else [*text[: limit - 1], text[limit - 1 :]]
        return [str(part) for part in head]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def _index_of(items: list[Any], wanted: Any, *, last: bool = False) -> int:
    order = range(len(items) - 1, -1, -1) if last else range(len(items))
    return next((index for index in order if equal(items[index], wanted)), -1)


def _includes(value: Any, wanted: Any) -> bool:
    if not isinstance(value, list):
        return equal(value, wanted)
    if len(value) > MAX_INCLUDES:
        raise EvaluationError(f"includes: the list is longer than {MAX_INCLUDES}")
    return contains(value, wanted)


def _extreme(pick: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def choose(items: list[Any]) -> Any:
        if not items:
            raise EvaluationError("min/max called on an empty list")
        return _ordered(items, pick)

    return choose


def _ordered(items: list[Any], work: Callable[[list[Any]], Any]) -> Any:
    try:
        return work(items)
    except TypeError as err:
        raise EvaluationError("no such overload: the elements have no order") from err


def contains(items: list[Any], wanted: Any) -> bool:
    """CEL's `in` on a list."""
    return any(equal(item, wanted) for item in items)


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _value(option: Optional) -> Any:
    if not option.present:
        raise EvaluationError("optional.none() dereference")
    return option.value


def _non_zero(value: Any) -> Optional:
    return Optional(value, present=True) if value or isinstance(value, Quantity | Semver) else Optional()


def _rows(*rows: tuple[str, str, Callable[..., Any]]) -> dict[str, tuple[Overload, ...]]:
    """Read lines of "name(argument types)", result, call."""
    table: dict[str, tuple[Overload, ...]] = {}
    for form, result, call in rows:
        name, _, arguments = form.removesuffix(")").partition("(")
        types = tuple(
            {"Quantity": QUANTITY, "Semver": SEMVER, "optional": "optional_type"}.get(a, a)
            for a in arguments.split(", ")
        )
        overload = Overload(
            types if arguments else (), {"Quantity": QUANTITY, "Semver": SEMVER}.get(result, result), call
        )
        table[name] = (*table.get(name, ()), overload)
    return table


def _semver(text: str, normalize: bool = False) -> Semver:
    return semver.parse(text, normalize=normalize)


_SIZES = tuple((f"size({kind})", "int", len) for kind in ("string", "bytes", "list", "map"))

FUNCTIONS: Final = _rows(
    *_SIZES,
    ("matches(string, string)", "bool", lambda text, pattern: regex(pattern).search(text) is not None),
    ("dyn(dyn)", "dyn", lambda value: value),
    ("string(string)", "string", str),
    ("string(bool)", "string", _to_string),
    ("string(int)", "string", _to_string),
    ("string(uint)", "string", _to_string),
    ("string(double)", "string", _to_string),
    ("int(int)", "int", int),
    ("int(uint)", "int", _int64),
    ("int(double)", "int", lambda value: _int64(math.trunc(value)) if math.isfinite(value) else _int64(2.0**63)),
    ("int(string)", "int", _to_int),
    ("uint(uint)", "uint", Uint),
    ("uint(int)", "uint", lambda value: Uint(value) if value >= 0 else _int64(2.0**63)),
    ("double(double)", "double", float),
    ("double(int)", "double", float),
    ("double(uint)", "double", float),
    ("double(string)", "double", _double),
    ("bool(bool)", "bool", bool),
    ("bool(string)", "bool", _to_bool),
    ("quantity(string)", "Quantity", lambda text: _parsed(quantity.parse, text)),
    ("isQuantity(string)", "bool", _parses(quantity.parse)),
    ("sign(Quantity)", "int", lambda a: a.sign),  # documented as a method, but Kubernetes has it as a function only
    ("semver(string)", "Semver", lambda text: _parsed(_semver, text)),
    ("semver(string, bool)", "Semver", lambda text, fix: _parsed(lambda given: _semver(given, fix), text)),
    ("isSemver(string)", "bool", _parses(_semver)),
    ("isSemver(string, bool)", "bool", lambda text, fix: _parses(lambda given: _semver(given, fix))(text)),
    ("optional.of(dyn)", "optional_type", lambda value: Optional(value, present=True)),
    ("optional.none()", "optional_type", Optional),
    ("optional.ofNonZeroValue(dyn)", "optional_type", _non_zero),
    ("sets.contains(list, list)", "bool", lambda a, b: all(contains(a, item) for item in b)),
    ("sets.intersects(list, list)", "bool", lambda a, b: any(contains(a, item) for item in b)),
    (
        "sets.equivalent(list, list)",
        "bool",
        lambda a, b: all(contains(a, item) for item in b) and all(contains(b, item) for item in a),
    ),
)

METHODS: Final = _rows(
    *_SIZES,
    ("contains(string, string)", "bool", lambda text, part: part in text),
    ("startsWith(string, string)", "bool", str.startswith),
    ("endsWith(string, string)", "bool", str.endswith),
    ("matches(string, string)", "bool", lambda text, pattern: regex(pattern).search(text) is not None),
    ("find(string, string)", "string", _find),
    ("findAll(string, string)", "list", _find_all),
    ("findAll(string, string, int)", "list", _find_all),
    ("charAt(string, int)", "string", _char_at),
    ("indexOf(string, string)", "int", str.find),
    ("lastIndexOf(string, string)", "int", str.rfind),
    ("indexOf(list, dyn)", "int", _index_of),
    ("lastIndexOf(list, dyn)", "int", lambda items, wanted: _index_of(items, wanted, last=True)),
    ("lowerAscii(string)", "string", lambda text: "".join(c.lower() if c.isascii() else c for c in text)),
    ("upperAscii(string)", "string", lambda text: "".join(c.upper() if c.isascii() else c for c in text)),
    ("replace(string, string, string)", "string", str.replace),
    ("replace(string, string, string, int)", "string", str.replace),
    ("split(string, string)", "list", _split),
    ("split(string, string, int)", "list", _split),
    ("substring(string, int)", "string", _substring),
    ("substring(string, int, int)", "string", _substring),
    ("trim(string)", "string", str.strip),
    ("join(list)", "string", lambda items: _ordered(items, "".join)),
    ("join(list, string)", "string", lambda items, separator: _ordered(items, separator.join)),
    ("includes(dyn, dyn)", "bool", _includes),
    ("isSorted(list)", "bool", lambda items: _ordered(items, lambda given: given == sorted(given))),
    ("sum(list)", "dyn", lambda items: _ordered(items, sum)),
    ("min(list)", "dyn", _extreme(min)),
    ("max(list)", "dyn", _extreme(max)),
    ("isGreaterThan(Quantity, Quantity)", "bool", lambda a, b: a > b),
    ("isLessThan(Quantity, Quantity)", "bool", lambda a, b: a < b),
    ("compareTo(Quantity, Quantity)", "int", _compare),
    ("add(Quantity, Quantity)", "Quantity", lambda a, b: a + b),
    ("add(Quantity, int)", "Quantity", lambda a, b: a + Quantity(Fraction(b))),
    ("sub(Quantity, Quantity)", "Quantity", lambda a, b: a - b),
    ("sub(Quantity, int)", "Quantity", lambda a, b: a - Quantity(Fraction(b))),
    ("isInteger(Quantity)", "bool", lambda a: a.is_integer),
    ("asInteger(Quantity)", "int", lambda a: int(a.value) if a.is_integer else _int64(2.0**63)),
    ("asApproximateFloat(Quantity)", "double", lambda a: float(a.value)),
    ("isGreaterThan(Semver, Semver)", "bool", lambda a, b: a > b),
    ("isLessThan(Semver, Semver)", "bool", lambda a, b: a < b),
    ("compareTo(Semver, Semver)", "int", _compare),
    ("major(Semver)", "int", lambda a: a.major),
    ("minor(Semver)", "int", lambda a: a.minor),
    ("patch(Semver)", "int", lambda a: a.patch),
    ("orValue(optional, dyn)", "dyn", lambda option, other: option.value if option.present else other),
    ("or(optional, optional)", "optional_type", lambda option, other: option if option.present else other),
    ("hasValue(optional)", "bool", lambda option: option.present),
    ("value(optional)", "dyn", _value),
)

NAMESPACES: Final = frozenset({"optional", "sets"})

# Known to the API server, not to us. Whoever uses one is told so; the selector is never taken for false.
UNSUPPORTED: Final = frozenset(
    word
    for line in (
        "timestamp duration bytes type ip cidr isIP isCIDR url isURL format strings lists math base64 validate named",
        "getHost getHostname getPort getScheme getEscapedPath getQuery family isCanonical containsIP containsCIDR",
        "getDate getDayOfMonth getDayOfWeek getDayOfYear getFullYear getHours getMilliseconds getMinutes getMonth",
        "getSeconds quote reverse distinct flatten slice sort sortBy range first last optMap optFlatMap existsOne",
        "transformList transformMap transformMapEntry masked prefixLength isUnspecified isLoopback",
        "isLinkLocalUnicast isLinkLocalMulticast isGlobalUnicast",
    )
    for word in line.split()
)


def call(overloads: tuple[Overload, ...], name: str, values: list[Any]) -> Any:
    """Call the overload that fits the values. Raises EvaluationError when none does."""
    types = [type_name(value) for value in values]
    for overload in overloads:
        if overload.accepts(types):
            return overload.call(*values)
    raise EvaluationError(f"no such overload: {name}({', '.join(types)})")
