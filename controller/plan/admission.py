"""What a queue of Kueue allows a workload: the gate between `controller.queue` and the plan. Pure.

A workload without a queue is not in `known.admissions`, and passes. What a queue revokes: see `revocation`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller.observe.model import Known, Workload
from controller.plan.placement import Shortage

WAITS_FOR_QUEUE: Final = frozenset(
    {
        "QueueRequired",
        "QueueUnknown",
        "WaitingForQuota",
        "QueueFeatureUnsupported",
        "QueueFinished",
        "QueueDeactivated",
        "QuotaRevoked",
        "QuotaGivenBack",
    }
)
"""The reasons of workloads without nodes that wait for their queue."""


def refusal(known: Known, workload: Workload, indices: Collection[int]) -> Shortage | None:
    """Return why the groups of these indices may not be reserved; None if they may."""
    found = known.admissions.get(workload.uid)
    if found is None or max(indices) < found.groups:
        return None
    return Shortage(found.reason, found.message)
