"""What Kueue allows each workload with a queue, for the plan. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from controller.queue.model import NO_PLACE, KueueWorkload, name_for
from controller.timing import QueueTiming
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.observed.model import JOBS_QUEUED, QUEUE_LABEL, Admission, Workload
from neuron_dra.planner.plan import isolation

REQUIRED: Final = (
    f'the namespace requires a queue (its label neuron.aws.com/reserve-for-jobs is "{JOBS_QUEUED}"): add the label '
    f"{QUEUE_LABEL} with the name of a LocalQueue"
)


@dataclass(frozen=True, slots=True)
class HeldNodes:
    """What a workload has of nodes.

    - `some`: it has reservations of any phase, or may have some that cannot be seen.
    - `groups`: the highest index of its Pending and Bound groups, plus 1; `bound`: the number of Bound ones.
    - `nodes`: in reservations of any phase.
    - `is_uncertain`: it may have others, because a write of its reservations is not answered yet.
    """

    some: bool = False
    groups: int = 0
    bound: int = 0
    nodes: int = 0
    is_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class QueueView:
    """What decisions about queues depend on.

    - `kueue`: the Workloads of Kueue that name a workload as their controller: by UID of the workload, then by their
      own namespace/name. Anyone may copy a UID, so a UID alone proves nothing.
    - `unknown`: why they are not known; empty if they are.
    - `held`: returns what the workload with a UID has; the workload is None if it is gone.
    - `required`: namespaces in which every new reservation needs a queue.
    - `unsettled`: UIDs of workloads for which a write had no answer.
    - `uncertain`: those whose reservations are being written.
    - `unreadable`: UIDs of workloads whose Workload of Kueue cannot be read.
    - `unread`: UIDs of workloads that cannot be read themselves.
    """

    kueue: Mapping[str, Mapping[str, KueueWorkload]]
    unknown: str
    held: Callable[[str, Workload | None], HeldNodes]
    required: Collection[str]
    unsettled: Collection[str]
    priorities: Mapping[str, int]
    timing: QueueTiming
    now: datetime.datetime
    unreadable: frozenset[str] | set[str] = frozenset()
    unread: frozenset[str] = frozenset()
    uncertain: frozenset[str] = frozenset()

    def of(self, workload: Workload) -> KueueWorkload | None:
        """Return the Workload of Kueue that counts for a workload."""
        kueue_workload = self.kueue.get(workload.uid, {}).get(f"{workload.namespace}/{name_for(workload)}")
        return kueue_workload if kueue_workload is not None and kueue_workload.owner == workload.identity else None

    def left_of(self, uid: str) -> list[KueueWorkload]:
        """Return the Workloads of Kueue that are left of a workload that is gone."""
        by_key = sorted(self.kueue.get(uid, {}).items())
        return [kueue_workload for _, kueue_workload in by_key if kueue_workload.name == name_for(kueue_workload.owner)]


def admission_or_error(view: QueueView, workload: Workload) -> Admission | None:
    """Return what a workload's queue allows; None without a queue. An error keeps what is reserved."""
    try:
        return admission_of(view, workload)
    except Exception as err:  # one workload must not end the plans for all others
        text = f"the controller cannot decide about its queue: {isolation.named(err)}; {isolation.ADVICE}"
        return Admission(view.held(workload.uid, workload).groups, False, Reason.INTERNAL_ERROR, text)


def admission_of(view: QueueView, workload: Workload) -> Admission | None:
    """Return what a workload's queue allows; None without a queue."""
    kueue_workload, held_nodes = view.of(workload), view.held(workload.uid, workload)
    queued = kueue_workload is not None or bool(workload.queue_record.name)
    if not queued and not workload.queue:
        if workload.namespace in view.required and not held_nodes.some:
            return Admission(0, False, "QueueRequired", REQUIRED)
        return None
    if workload.uid in view.unreadable:
        text = f"Kueue's Workload {name_for(workload)} cannot be read; what is reserved stays so"
        return Admission(held_nodes.groups, False, "QueueUnknown", text)
    if not queued and held_nodes.some:
        return None  # the label came after the nodes; it counts once they are released
    if view.unknown or workload.uid in view.unsettled:
        text = view.unknown or "the answer to a write of Kueue's Workload is not known yet"
        return Admission(held_nodes.groups, False, "QueueUnknown", f"{text}; what is reserved stays so")
    if kueue_workload is None:
        text = f"queue {workload.queue or workload.queue_record.name}: Kueue's Workload does not exist yet"
        return Admission(0, True, "WaitingForQuota", text)
    if not kueue_workload.admitted:
        return Admission(0, True, *_why_not(view, workload, kueue_workload))
    if kueue_workload.unsupported:
        text = f"{_named(kueue_workload)} uses {kueue_workload.unsupported}"
        return Admission(0, True, "QueueFeatureUnsupported", text)
    if not kueue_workload.count:
        text = f"{_named(kueue_workload)} has pods that the controller did not write: delete it"
        return Admission(0, True, "QueueFeatureUnsupported", text)
    if workload.queue_record.name != kueue_workload.queue:
        # First the record: it shows that these nodes have quota even if Kueue's Workload is lost.
        return Admission(held_nodes.groups, False, "WaitingForQuota", f"{_named(kueue_workload)} is admitted")
    if workload.instance_type != kueue_workload.instance_type:
        text = (
            f"{_named(kueue_workload)} has quota for {kueue_workload.instance_type}: it is given back, and requested "
            "anew"
        )
        return Admission(0, False, "GrowthNeedsQuota", text)
    text = (
        f"{_named(kueue_workload)} is admitted with {kueue_workload.granted} nodes, and cannot get more while it has "
        "quota: lower serverCount again, or write another workload for the rest"
    )
    return Admission(kueue_workload.granted // workload.size if workload.size else 0, False, "GrowthNeedsQuota", text)


def _named(kueue_workload: KueueWorkload) -> str:
    return f"Kueue's Workload {kueue_workload.name} in queue {kueue_workload.queue}"


def _why_not(view: QueueView, workload: Workload, kueue_workload: KueueWorkload) -> tuple[str, str]:
    """Return why nothing may be reserved, as a reason and a message."""
    name = _named(kueue_workload)
    if kueue_workload.finished:
        return "QueueFinished", f"{name} is Finished: delete it to queue again, or delete this workload"
    if not kueue_workload.active:
        return "QueueDeactivated", f"{name} is not active: set its spec.active to true to queue again"
    evicted, requeued = kueue_workload.condition("Evicted"), kueue_workload.condition("Requeued")
    if kueue_workload.has_quota and kueue_workload.evicted:
        return "QuotaRevoked", f"{name} is evicted ({evicted.reason}): {evicted.message}"
    if not requeued.true and requeued.reason == NO_PLACE:
        at = objects.time(returns_at(workload, kueue_workload, view.timing))
        return "QuotaGivenBack", f"{name} gave its quota back, because no nodes were free; it queues again at {at}"
    text = kueue_workload.condition("QuotaReserved").message or "Kueue has not looked at it yet"
    return "WaitingForQuota", f"{name}: {text}"


def returns_at(workload: Workload, kueue_workload: KueueWorkload, timing: QueueTiming) -> datetime.datetime:
    """Return when a Workload that gave its quota back queues again; each time in a row later."""
    record, since = workload.queue_record, kueue_workload.condition("Requeued").since
    times = record.returned
    if record.returned_at != objects.time(since):
        times += 1  # this return is not recorded yet
    doublings = min(max(times - 1, 0), 30)
    wait_s = min(timing.first_return_s * 2**doublings, timing.longest_return_s)
    return since + datetime.timedelta(seconds=wait_s)
