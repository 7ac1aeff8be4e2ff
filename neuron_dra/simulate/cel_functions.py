"""The functions of Kubernetes' CEL that the engine does not have: quantities, versions, regular expressions and lists.

Source: pkg/cel/library of Kubernetes' apiserver, 1.37. The engine passes values as Python's own types; quantities and
versions travel as messages with one text field, in a form that is equal for equal values. An exception in one of
these functions is a CEL error, which `||` and `&&` absorb like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any, Final

import re2  # the regular expressions of the API server
from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from neuron_dra.core import semver
from neuron_dra.core.semver import Semver
from neuron_dra.simulate import quantity
from neuron_dra.simulate.quantity import Quantity

# The libraries that the engine lacks begin with one of these names: unsupported, which is not false.
UNSUPPORTED: Final = frozenset({"ip", "isIP", "cidr", "isCIDR", "url", "isURL", "format"})

POOL: Final = descriptor_pool.DescriptorPool()
_FILE = descriptor_pb2.FileDescriptorProto(name="neuron_dra/cel.proto", package="kubernetes", syntax="proto3")
for _name in ("Quantity", "Semver", "Nothing"):
    # A field named "in" cannot be selected in CEL, so selectors cannot read it.
    _FILE.message_type.add(name=_name).field.add(
        name="in", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    )
POOL.AddSerializedFile(_FILE.SerializeToString())
_QUANTITY, _SEMVER = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"kubernetes.{name}")) for name in ("Quantity", "Semver")
)
QUANTITY: Final = cel.Type("kubernetes.Quantity")
SEMVER: Final = cel.Type("kubernetes.Semver")

# Fleets repeat their values, so each text is read once.
_parse_quantity = lru_cache(maxsize=4096)(quantity.parse)
_parse_semver = lru_cache(maxsize=4096)(semver.parse)
_READERS: Final = {_QUANTITY: _parse_quantity, _SEMVER: _parse_semver}


@lru_cache(maxsize=4096)
def quantity_message(text: str) -> Any:
    """Return the message of a quantity. Raises ValueError."""
    return _to_cel(quantity.parse(text))


@lru_cache(maxsize=4096)
def semver_message(text: str, normalize: bool = False) -> Any:
    """Return the message of a version. Raises ValueError."""
    return _to_cel(semver.parse(text, normalize=normalize))


def _to_cel(value: Any) -> Any:
    if isinstance(value, Quantity):
        return _QUANTITY(**{"in": str(value)})
    if isinstance(value, Semver):
        return _SEMVER(**{"in": str(value)})
    return value


def _from_cel(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_cel(item) for item in value]
    read = _READERS.get(type(value))
    if read:
        return read(getattr(value, "in"))
    return value


def regex(pattern: str) -> Any:
    """Compile a regular expression. Raises ValueError."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as err:
        raise ValueError(f"invalid regular expression {pattern!r}: {err}") from err


def _find(text: str, pattern: str) -> str:
    match = regex(pattern).search(text)
    if match:
        return str(match.group(0))
    return ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    matches = [str(match.group(0)) for match in regex(pattern).finditer(text)]
    if limit < 0:
        return matches
    return matches[:limit]


def _substring(text: str, start: int, end: int) -> str:
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"index out of range: {start}, {end}")
    return text[start:end]


def _equal(left: Any, right: Any) -> bool:
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)  # true is not 1


def _index_of(items: list[Any], sought: Any) -> int:
    return next((index for index, item in enumerate(items) if _equal(item, sought)), -1)


def _last_index_of(items: list[Any], sought: Any) -> int:
    return next((index for index in range(len(items) - 1, -1, -1) if _equal(items[index], sought)), -1)


def _is_valid(parse: Callable[..., Any]) -> Callable[..., bool]:
    def check(*arguments: Any) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return check


def _compare(left: Any, right: Any) -> int:
    if type(left) is not type(right):
        raise TypeError("no such overload")
    return int(left > right) - int(left < right)


def _sum(items: list[Any]) -> Any:
    total = sum(items[1:], items[0]) if items else 0
    if isinstance(total, int) and not -(2**63) <= total < 2**63:
        raise OverflowError("integer overflow")
    return total


def _as_integer(amount: Quantity) -> int:
    if not amount.is_integer:
        raise ValueError("cannot convert value to integer")
    return int(amount.value)


T = cel.Type
_COMPARABLE = (T.INT, T.UINT, T.DOUBLE, T.BOOL, T.STRING, T.BYTES, T.DURATION, T.TIMESTAMP)
_SUMMABLE = (T.INT, T.UINT, T.DOUBLE, T.DURATION)
# The engine converts results to the type of the signature that has the function. No expression has this type.
_ANY_LIST = T.List(cel.Type("kubernetes.Nothing"))
Signatures = tuple[tuple[Any, ...], ...]  # the types of the parameters, then of the result
_IS_SORTED: Signatures = tuple((T.List(item), T.BOOL) for item in _COMPARABLE)
_ONE_OF_COMPARABLE: Signatures = tuple((T.List(item), item) for item in _COMPARABLE)
_ONE_OF_SUMMABLE: Signatures = tuple((T.List(item), item) for item in _SUMMABLE)

# Ordering across numeric types: Kubernetes' environment has it, the engine's evaluation too, its checker has not.
REDECLARED: Final = ("_<_", "_<=_", "_>_", "_>=_")
_NUMERIC = (T.INT, T.UINT, T.DOUBLE)
_ORDERED = tuple(product(_NUMERIC, _NUMERIC)) + tuple((item, item) for item in _COMPARABLE if item not in _NUMERIC)

SUBSTRING: Final = "@substring"  # no selector can call a function of this name

# A row is a name (of a method, if it begins with a dot), a function and its signatures. At run time the engine
# distinguishes only kinds, such as list and message, so one function serves all signatures of a row.
Rows = tuple[tuple[str, Callable[..., Any], Signatures], ...]
_NEW: Rows = (
    ("quantity", quantity_message, ((T.STRING, QUANTITY),)),
    ("isQuantity", _is_valid(quantity_message), ((T.STRING, T.BOOL),)),
    ("sign", lambda amount: amount.sign, ((QUANTITY, T.INT),)),
    ("semver", semver_message, ((T.STRING, SEMVER),)),
    ("semver", semver_message, ((T.STRING, T.BOOL, SEMVER),)),
    ("isSemver", _is_valid(semver_message), ((T.STRING, T.BOOL),)),
    ("isSemver", _is_valid(semver_message), ((T.STRING, T.BOOL, T.BOOL),)),
    (".isGreaterThan", lambda a, b: _compare(a, b) > 0, ((QUANTITY, QUANTITY, T.BOOL), (SEMVER, SEMVER, T.BOOL))),
    (".isLessThan", lambda a, b: _compare(a, b) < 0, ((QUANTITY, QUANTITY, T.BOOL), (SEMVER, SEMVER, T.BOOL))),
    (".compareTo", _compare, ((QUANTITY, QUANTITY, T.INT), (SEMVER, SEMVER, T.INT))),
    (".add", lambda a, b: a + b, ((QUANTITY, QUANTITY, QUANTITY),)),
    (".add", lambda a, b: a + Quantity(b), ((QUANTITY, T.INT, QUANTITY),)),
    (".sub", lambda a, b: a - b, ((QUANTITY, QUANTITY, QUANTITY),)),
    (".sub", lambda a, b: a - Quantity(b), ((QUANTITY, T.INT, QUANTITY),)),
    (".isInteger", lambda amount: amount.is_integer, ((QUANTITY, T.BOOL),)),
    (".asInteger", _as_integer, ((QUANTITY, T.INT),)),
    (".asApproximateFloat", lambda amount: float(amount.value), ((QUANTITY, T.DOUBLE),)),
    (".major", lambda version: version.major, ((SEMVER, T.INT),)),
    (".minor", lambda version: version.minor, ((SEMVER, T.INT),)),
    (".patch", lambda version: version.patch, ((SEMVER, T.INT),)),
    (".find", _find, ((T.STRING, T.STRING, T.STRING),)),
    (".findAll", _find_all, ((T.STRING, T.STRING, T.List(T.STRING)),)),
    (".findAll", _find_all, ((T.STRING, T.STRING, T.INT, T.List(T.STRING)),)),
    (f".{SUBSTRING}", _substring, ((T.STRING, T.INT, T.INT, T.STRING),)),
    (
        ".isSorted",
        lambda items: items == sorted(items),
        ((_ANY_LIST, T.BOOL), *_IS_SORTED),
    ),
    (".min", min, ((_ANY_LIST, T.DYN), *_ONE_OF_COMPARABLE)),
    (".max", max, ((_ANY_LIST, T.DYN), *_ONE_OF_COMPARABLE)),
    (".sum", _sum, ((_ANY_LIST, T.DYN), *_ONE_OF_SUMMABLE)),
)
# These add to functions of the engine. No parameter is T.DYN: an optional there would crash the engine.
_ADDED: Rows = tuple(
    (name, function, ((T.List(item), item, T.INT),))
    for name, function in ((".indexOf", _index_of), (".lastIndexOf", _last_index_of))
    for item in (T.INT, T.UINT, T.DOUBLE, T.BOOL, T.STRING, T.BYTES, SEMVER, T.List(T.DYN))
)


def _on_values(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _to_cel(function(*map(_from_cel, arguments)))


def declarations() -> list[Any]:
    """Return the functions whose names the engine does not have, and REDECLARED, for `NewEnv(functions=...)`."""
    declared = [cel.FunctionDecl(name, overloads) for name, overloads in _overloads(_NEW).items()]
    for name in REDECLARED:
        overloads = [cel.Overload(f"{name}{number}", T.BOOL, list(pair), False) for number, pair in enumerate(_ORDERED)]
        declared.append(cel.FunctionDecl(name, overloads))
    return declared


def extension() -> Any:
    """Return the additions to the engine's functions; load them after the engine's own extensions."""
    includes = cel.Overload("includes", T.BOOL, [T.DYN, T.DYN], True)  # `cel_tree` replaces it
    added = {**_overloads(_ADDED), "includes": [includes]}
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, overloads) for name, overloads in added.items()])


def _overloads(rows: Rows) -> dict[str, list[Any]]:
    overloads: dict[str, list[Any]] = {}
    for form, function, signatures in rows:
        name = form.removeprefix(".")
        overloads_of_name = overloads.setdefault(name, [])
        for index, (*parameters, result) in enumerate(signatures):
            implementation = {} if index else {"impl": _on_values(function)}
            overload_id = f"{name}_{len(overloads_of_name)}"
            overload = cel.Overload(overload_id, result, parameters, name != form, **implementation)
            overloads_of_name.append(overload)
    return overloads
