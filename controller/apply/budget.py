"""Limits how many writes one pass makes for workloads that only wait, so that thousands of them delay no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from controller.decisions.actions import Action, SetFinalizers, WriteWorkloadStatus
from controller.decisions.fair_share import FairShare

WAITING_WRITES: Final = 250
"""About a second of a pass: the API server takes a few hundred writes a second."""


def within(actions: Sequence[Action], waits: Callable[[Action], bool]) -> tuple[tuple[Action, ...], bool]:
    """Return the writes of this pass, and whether others are left for the next one.

    Writes that move a workload forward are all made, in the plan's order. Of those for workloads that only wait, the
    first ones of each namespace are, which are those of the oldest, with as many of one namespace as of the others: a
    new workload gets its finalizer in this way. A write that is not due (`waits`) uses nothing of the budget.
    """
    forward = {owner for action in actions if not _only_waits(action) for owner in action.owners}
    share: FairShare[int] = FairShare(WAITING_WRITES)
    left: set[int] = set()
    for place, action in enumerate(actions):
        if not _only_waits(action) or waits(action) or not forward.isdisjoint(action.owners):
            continue
        is_admitted, replaced = share.admits(place, getattr(action, "namespace", ""))
        left.update(replaced if is_admitted else (place,))
    kept = tuple(action for place, action in enumerate(actions) if place not in left)
    return kept, bool(left)


def _only_waits(action: Action) -> bool:
    """Return True if the workload of this write gets and loses nothing by it."""
    if isinstance(action, WriteWorkloadStatus):
        return action.status.get("state") == "Pending" and action.before.get("state") in (None, "Pending")
    return isinstance(action, SetFinalizers) and bool(action.finalizers)
