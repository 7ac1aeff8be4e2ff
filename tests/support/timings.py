"""Quicker timings for programs that run in the test's process.

quicker(Timing(), kubelet={"health_s": 0.2}, client={"watch": {"silence_s": 0.2}})

Plugins in the test's process get the fixture `timing`: a module has one of its own, and a test replaces it by
`with_timing`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import pytest

from neuron_dra.kube.timing import ClientTiming
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming, PrepareTiming

T = TypeVar("T")


def quicker(timing: T, **changes: Any) -> T:
    """Return `timing` with other values; those of a group are a dictionary."""
    values = {
        name: quicker(getattr(timing, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return dataclasses.replace(timing, **values)  # type: ignore[type-var]


def names(timing: Any, group: str = "") -> Iterator[str]:
    """Yield the names of a timing's fields, with those of the groups that they are in."""
    for field in dataclasses.fields(timing):
        value = getattr(timing, field.name)
        if dataclasses.is_dataclass(value):
            yield from names(value, f"{group}{field.name}.")
        else:
            yield f"{group}{field.name}"


QUICK_CLIENT: Final = quicker(
    ClientTiming(), clock_s=0.0, watch={"retry_s": (0.01, 0.1), "short_s": 0.05}, events={"retry_s": (0.01, 0.1)}
)
"""A client whose watches and Events try again within fractions of a second."""

QUICK: Final = quicker(
    DEFAULT_TIMING,
    hardware={"period_s": 0.05},
    publish={"gather_s": 0.02, "retry_s": (0.05, 0.5), "leaving": {"check_s": (0.1, 0.1)}},
)
"""A plugin that reads hardware, gathers changes and tries again within fractions of a second."""

QUICK_RESERVATIONS: Final = quicker(
    DEFAULT_TIMING,
    ultraserver={"probe_s": (0.2, 3600.0), "rejection_wait_s": 0.4, "refresh_s": 0.1, "recheck_s": 0.1},
)
"""A plugin that notices changes of its node's reservation, and rejects claims, within fractions of a second."""

IMPATIENT: Final = quicker(PrepareTiming(), fetch_patience_s=0.0)
"""Transactions that do not read a claim again after the API server failed."""


def with_timing(timing: PluginTiming, **changes: Any) -> pytest.MarkDecorator:
    """Return a mark: the test's plugin has this timing, with `changes` as in `quicker`."""
    return pytest.mark.parametrize("timing", [pytest.param(quicker(timing, **changes), id="timed")])
