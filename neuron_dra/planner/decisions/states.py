"""The states of a workload and the phases of a reservation, as tables. Pure.

The steps are in docs/architecture-controller.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from neuron_dra.core.ultraserver import Phase


class State(StrEnum):
    """A state of a workload; it equals the text in the API.

    It follows from what the plan sees, not from the state before it, so there is no table of state transitions.
    """

    PENDING = "Pending"
    ALLOCATING = "Allocating"
    ALLOCATED = "Allocated"
    PARTIALLY_ALLOCATED = "PartiallyAllocated"
    FAILED = "Failed"
    DEALLOCATING = "Deallocating"


PROGRESSING: Final = frozenset({State.ALLOCATING, State.PARTIALLY_ALLOCATED, State.DEALLOCATING})
"""The states in which a workload's condition Progressing is True."""

NEXT_PHASES: Final[dict[Phase, frozenset[Phase | None]]] = {
    Phase.PENDING: frozenset({Phase.BOUND, Phase.DRAINING, None}),
    Phase.BOUND: frozenset({Phase.DRAINING}),
    Phase.DRAINING: frozenset({None}),
}
"""The phases that may follow each phase of a reservation. None: the reservation is removed and its nodes are free.

Pods may run on Bound nodes, so these are never freed at once: Draining closes them first.
"""


def check_step(before: Phase, after: Phase | None) -> None:
    """Raise ValueError if a reservation cannot go from one phase to the other.

    `after` None means that the reservation is removed.
    """
    if after not in NEXT_PHASES[before]:
        raise ValueError(f"a reservation cannot go from {before.value} to {after.value if after else 'free'}")
