"""Evaluates the CEL rules of a CRD on a value of a manifest, with the simulator's engine. Pure."""

from __future__ import annotations

import functools
from typing import Any

from cel_expr_python import cel

from neuron_dra.simulate import cel_engine


@functools.cache
def _engine() -> Any:
    return cel_engine.environment({"self": cel.Type.DYN})


def evaluate(expression: str, value: Any) -> Any:
    """Return the value of an expression about `self`; None if it has none."""
    result = _engine().compile(expression).eval(data={"self": value})
    if result.type() == cel.Type.ERROR:
        return None
    return result.value()
