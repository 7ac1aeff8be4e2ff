"""The failure strategies: one table. An entry says what is done about faults; `recovery` has the faults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuron_dra.planner.fleet.view import Strategy
from neuron_dra.planner.plan import restart_all, restart_limit

NO_OP: Final = Strategy("NoOp")

_TABLE: Final = (
    NO_OP,
    Strategy(
        "RestartAll",
        acts=True,
        on_every_fault=False,
        instead=restart_all.begin,
        outlook=restart_limit.outlook,
    ),
    Strategy("MigrateAffected", acts=True, replaces=True),
)

STRATEGIES: Final[Mapping[str, Strategy]] = {strategy.name: strategy for strategy in _TABLE}
"""By the name in spec.allocationPolicy.failureStrategy; one that is not known only reports faults."""

NAMES: Final = (*STRATEGIES, "ReplaceAffected")
"""The names that users may write: the last one is that of AWS's operator for MigrateAffected."""
