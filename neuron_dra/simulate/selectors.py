"""CEL selectors of device classes and requests, evaluated once for equal devices.

The engine is imported for the first of them: commands that evaluate none start in half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from neuron_dra.simulate.failures import SelectorError

if TYPE_CHECKING:
    from neuron_dra.simulate.cel_engine import Attributes, Selector


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Compile, once per distinct text. Raises CompileError or UnsupportedError."""
    from neuron_dra.simulate import cel_engine

    return cel_engine.Selector(expression)


def device_value(driver: str, attributes: Attributes, capacity: Mapping[str, str], *, multiple: bool = False) -> Any:
    """Return the CEL variable `device`, as `cel_engine.device_value` describes it. Raises EvaluationError."""
    from neuron_dra.simulate import cel_engine

    return cel_engine.device_value(driver, attributes, capacity, multiple=multiple)


class Selectors:
    """Evaluates selectors on devices, once per distinct expression and device value.

    A device value is identified by `key`: equal keys must mean equal driver, attributes and capacity. Errors are cached
    too: a failing selector costs one evaluation, not one per node.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[str, object], bool | SelectorError] = {}
        self._last: tuple[object, Any] = (object(), None)  # a device meets all selectors of its request in a row
        self.evaluations = 0  # results that were not cached

    def matches(self, expression: str, key: object, device: Callable[[], Any]) -> bool:
        """Return True if the device matches; `device` makes the value of `key` when it is needed.

        Raises CompileError, EvaluationError or UnsupportedError.
        """
        outcome = self._results.get((expression, key))
        if outcome is None:
            self.evaluations += 1
            try:
                outcome = compile_selector(expression).matches(self._value(key, device))
            except SelectorError as err:
                outcome = err
            self._results[expression, key] = outcome
        if isinstance(outcome, SelectorError):
            raise outcome
        return outcome

    def _value(self, key: object, device: Callable[[], Any]) -> Any:
        if self._last[0] != key:
            self._last = (key, device())
        return self._last[1]
