"""CEL selectors of device classes and requests, as the scheduler evaluates them.

Source of the meanings: dynamic-resource-allocation/cel of Kubernetes 1.37. Kubernetes' cost limit is not reproduced:
the length of an expression and the iterations of its macros are limited instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from neuron_dra.simulate import cel_compile, cel_syntax, quantity, semver
from neuron_dra.simulate.cel_values import (
    CompileError,
    Domains,
    EvaluationError,
    SelectorError,
    UnsupportedError,
    type_name,
)

__all__ = [
    "CompileError",
    "EvaluationError",
    "Selector",
    "SelectorError",
    "Selectors",
    "UnsupportedError",
    "compile_selector",
]

Attributes = Mapping[str, Mapping[str, Any]]
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}


class Selector:
    """One compiled expression."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._run = cel_compile.Compiler(expression).compile(cel_syntax.parse(expression))

    def matches(self, device: Mapping[str, Any]) -> bool:
        """Evaluate on the value that `device_value` made. Raises EvaluationError."""
        try:
            result = self._run({"device": device})
        except RecursionError as err:
            raise EvaluationError("the expression is nested too deeply") from err
        if not isinstance(result, bool):
            raise EvaluationError(f"CEL result of type {type_name(result)} could not be converted to bool")
        return result


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Compile, once per distinct text. Raises CompileError or UnsupportedError."""
    return Selector(expression)


def device_value(
    driver: str, attributes: Attributes, capacity: Mapping[str, str], *, multiple: bool = False
) -> Mapping[str, Any]:
    """The CEL variable `device`.

    `attributes` is the API's form, {name: {"string": …}}; `capacity` is {name: quantity}. Unqualified names are in the
    driver's domain. Raises EvaluationError for a value that is none.
    """
    by_domain, capacities = Domains(), Domains()
    for name, attribute in attributes.items():
        domain, local = qualified(name, driver)
        by_domain.setdefault(domain, {})[local] = _attribute(name, attribute)
    for name, text in capacity.items():
        domain, local = qualified(name, driver)
        try:
            capacities.setdefault(domain, {})[local] = quantity.parse(text)
        except ValueError as err:
            raise EvaluationError(f"capacity {name}: {err}") from err
    return {
        "driver": driver,
        "attributes": by_domain,
        "capacity": capacities,
        "allowMultipleAllocations": multiple,
    }


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Split a published name into domain and identifier; the driver's name is the default domain."""
    domain, slash, local = name.rpartition("/")
    return (domain, local) if slash else (driver, local)


def _attribute(name: str, attribute: Mapping[str, Any]) -> Any:
    for kind, value in attribute.items():
        if value is None:
            continue
        try:
            if kind in _LISTS:
                return [_scalar(_LISTS[kind], item) for item in value]
            return _scalar(kind, value)
        except ValueError as err:
            raise EvaluationError(f"attribute {name}: {err}") from err
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _scalar(kind: str, value: Any) -> Any:
    if kind == "version":
        return semver.parse(str(value))
    if kind in ("int", "bool", "string"):
        return value
    raise ValueError(f"unsupported attribute type {kind!r}")


class Selectors:
    """Evaluates selectors on devices, once per distinct (expression, device value).

    A device value is identified by `key`: equal keys must mean equal driver, attributes and capacity. Errors are
    remembered as well, so that a bad selector costs one evaluation, not one per node.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[str, object], bool | SelectorError] = {}
        self.evaluations = 0  # how many were really made

    def matches(self, expression: str, key: object, device: Any) -> bool:
        """True when the device fits; `device` is called for the value when it must be evaluated.

        Raises CompileError, EvaluationError or UnsupportedError.
        """
        known = self._results.get((expression, key))
        if known is None:
            self.evaluations += 1
            try:
                known = compile_selector(expression).matches(device())
            except SelectorError as err:
                known = err
            self._results[expression, key] = known
        if isinstance(known, SelectorError):
            raise known
        return known
