"""Limits how many writes one pass makes for workloads that only wait, so that thousands of them delay no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from controller.decisions.actions import Action, SetFinalizers, WriteWorkloadStatus

WAITING_WRITES: Final = 250
"""About a second of a pass: the API server takes a few hundred writes a second."""


def within(actions: Sequence[Action], waits: Callable[[Action], bool]) -> tuple[tuple[Action, ...], bool]:
    """Return the writes of this pass, and whether others are left for the next one.

    Writes that move a workload forward are all made, in the plan's order. Of those for workloads that only wait, the
    first ones are, which are those of the oldest. A write that is not due (`waits`) uses nothing of the budget.
    """
    forward = {owner for action in actions if not _only_waits(action) for owner in action.owners}
    kept: list[Action] = []
    used = 0
    left = False
    for action in actions:
        counts = _only_waits(action) and forward.isdisjoint(action.owners) and not waits(action)
        if counts and used == WAITING_WRITES:
            left = True
            continue
        used += counts
        kept.append(action)
    return tuple(kept), left


def _only_waits(action: Action) -> bool:
    """Return True if the workload of this write gets and loses nothing by it."""
    if isinstance(action, WriteWorkloadStatus):
        return action.status.get("state") == "Pending" and action.before.get("state") in (None, "Pending")
    return isinstance(action, SetFinalizers) and bool(action.finalizers)
