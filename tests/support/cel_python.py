"""cel-python evaluates CEL selectors: an implementation that shares no code with the one in use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import celpy
from celpy import celtypes
from celpy.evaluation import CELEvalError, Context

from neuron_dra.core.wire import Obj

_TYPES: Final = {"bool": celtypes.BoolType, "int": celtypes.IntType, "string": celtypes.StringType}


class _Domains(celtypes.MapType):
    """Has an empty map for an unknown domain, as Kubernetes has, but does not contain it."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if key in self else celtypes.MapType()


class Judge:
    """Evaluates selectors on devices."""

    def __init__(self) -> None:
        limit = sys.getrecursionlimit()
        self._environment = celpy.Environment()
        sys.setrecursionlimit(limit)  # cel-python changes it for the whole process

    def program(self, expression: str) -> celpy.Runner:
        """Parse an expression. Raises CELParseError."""
        return self._environment.program(self._environment.compile(expression))

    def result(self, program: celpy.Runner, device: Context) -> bool | None:
        """Return the result for a `device_value`, or None for an error."""
        try:
            found = program.evaluate(device)
        except CELEvalError:
            return None
        assert isinstance(found, celtypes.BoolType | bool), found
        return bool(found)


def device_value(driver: str, attributes: Mapping[str, Obj], capacities: Mapping[str, str]) -> Context:
    """Return the variables of a selector. Attributes and capacities of other types than cel-python's are names only."""
    return {
        "device": _map({
            "driver": celtypes.StringType(driver),
            "allowMultipleAllocations": celtypes.BoolType(False),
            "attributes": _domains(driver, {name: _value(value) for name, value in attributes.items()}),
            "capacity": _domains(driver, {name: celtypes.StringType(text) for name, text in capacities.items()}),
        })
    }  # fmt: skip


def _domains(driver: str, values: Mapping[str, Any]) -> celtypes.MapType:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, _, local = name.rpartition("/")
        domains.setdefault(domain or driver, {})[local] = value
    return _Domains({celtypes.StringType(domain): _map(inside) for domain, inside in domains.items()})


def _map(values: Mapping[str, Any]) -> celtypes.MapType:
    return celtypes.MapType({celtypes.StringType(name): value for name, value in values.items()})


def _value(attribute: Obj) -> Any:
    [(kind, value)] = attribute.items()
    if isinstance(value, list):
        return celtypes.ListType([_value({kind.removesuffix("s"): item}) for item in value])
    return _TYPES.get(kind, celtypes.StringType)(value)
