"""Evaluates the CEL rules of a CRD on a value of a manifest, with the simulator's engine. Pure."""

from __future__ import annotations

import functools
from typing import Any

from cel_expr_python import cel

from neuron_dra.simulate import cel_engine, cel_functions


@functools.cache
def _engine() -> Any:
    return cel.NewEnv(
        cel_functions.POOL,
        config=cel.NewEnvConfigFromYaml(cel_engine.CONFIG),
        variables={"self": cel.Type.DYN},
        extensions=[cel_functions.extension()],
        functions=cel_functions.declarations(),
    )


def evaluate(expression: str, value: Any) -> Any:
    """Return the value of an expression about `self`; None if it has none."""
    result = _engine().compile(expression).eval(data={"self": value})
    if result.type() == cel.Type.ERROR:
        return None
    return result.value()
