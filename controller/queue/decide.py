"""What to write for workloads with a queue: Kueue's Workload, and the record in our own. Pure.

Each workload gets at most one write in a pass; the next pass sees its result. docs/kueue-protocol.md has the
protocol and its reasons. In short: quota is given back only when the nodes are free.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from controller.queue.admission import HeldNodes, QueueView, returns_at
from controller.queue.model import (
    IN_USE,
    NO_PLACE,
    POD_SET,
    REQUEUED_BY_KUEUE,
    KueueWorkload,
    body_for,
    spec_for,
)
from neuron_dra.core.ultraserver import GROUPS_AT_MOST
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.fleet.memo import Decision
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import SLOT_SIZES, QueueRecord, Workload, condition

WAITING: Final = ("Pending", "Failed")
"""The states of a workload that has no nodes."""

Conditions = Mapping[str, tuple[bool, str, str]]
"""By type: status, reason and message."""


@dataclass(frozen=True, slots=True)
class CreateKueueWorkload:
    """Create Kueue's Workload `body` for a workload."""

    workload: Workload
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """Change the spec of a Workload without quota."""

    kueue: KueueWorkload
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Change the status of a Workload.

    - `return_quota`: remove the admission.
    - `reclaimable`: pods whose quota is not needed any more; None leaves the number.
    - `gone`: first verify that the workload does not exist any more.
    """

    kueue: KueueWorkload
    conditions: Conditions
    return_quota: bool = False
    reclaimable: int | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class LetGo:
    """Remove our finalizer from a Workload; `delete` it, too."""

    kueue: KueueWorkload
    delete: bool = False


@dataclass(frozen=True, slots=True)
class RecordQueue:
    """Write `status.queue` of a workload."""

    workload: Workload
    record: QueueRecord


Write = CreateKueueWorkload | WriteSpec | WriteStatus | LetGo | RecordQueue


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """An Event on a workload. It is posted again when the message changes."""

    workload: Workload
    reason: str
    message: str


QueueDecision: TypeAlias = Decision[Write, QueueEvent]
"""The writes are by UID of the workload, or by namespace/name of what Kueue has left of one that is gone."""


def decide_one(view: QueueView, uid: str, workload: Workload | None) -> QueueDecision:
    """Return what to write for the workload with this UID; None: it is gone."""
    decision = QueueDecision()
    if workload is None:
        return QueueDecision(_after_the_end(view, uid))
    try:
        write = _Step(view, decision, workload).write()
    except Exception as err:  # one workload must not end the decisions about all others
        return QueueDecision(errors={workload.ref: err})
    if write is not None:
        decision.writes[uid] = write
    return decision


def _after_the_end(view: QueueView, uid: str) -> dict[str, Write]:
    """Return the next steps of the end of what Kueue has of a workload that is gone.

    Each is a write of its own: a copy in another namespace must not hold up the one that has quota.
    """
    if view.held(uid, None).some:
        return {}
    steps = {kueue_workload.ref: _finish(kueue_workload, gone=True) for kueue_workload in view.left_of(uid)}
    return {ref: step for ref, step in steps.items() if step is not None}


def _finish(kueue_workload: KueueWorkload, *, gone: bool = False) -> Write | None:
    """Return the next step of the end of a Workload whose nodes are free."""
    if not kueue_workload.finished:
        ended = {"Finished": (True, "Succeeded", "the reservation has ended, and its nodes are free")}
        return WriteStatus(kueue_workload, ended, gone=gone)
    return LetGo(kueue_workload) if IN_USE in kueue_workload.finalizers else None


class _Step:
    """The decision about one workload."""

    def __init__(self, view: QueueView, decision: QueueDecision, workload: Workload) -> None:
        self._view = view
        self._decision = decision
        self._workload = workload
        self._held: HeldNodes = view.held(workload.uid, workload)

    def write(self) -> Write | None:
        """Return the next write, None if there is none."""
        workload, held_nodes = self._workload, self._held
        kueue_workload = self._view.of(workload)
        if kueue_workload is None:
            return self._without()
        if kueue_workload.finished or workload.deleting or workload.expired:
            return None if held_nodes.some else _finish(kueue_workload)
        if kueue_workload.deleting:
            return None if held_nodes.some or IN_USE not in kueue_workload.finalizers else LetGo(kueue_workload)
        if kueue_workload.has_quota and kueue_workload.evicted:
            return None if held_nodes.some else _returned(kueue_workload)
        if workload.uid in self._view.unread:
            return None  # what it asks for is unknown
        return self._with_quota(kueue_workload) if kueue_workload.has_quota else self._queued(kueue_workload)

    def _without(self) -> Write | None:
        """Return the next write while Kueue's Workload does not exist."""
        workload = self._workload
        if workload.deleting or workload.expired or workload.problem or self._held.some:
            return None
        if workload.uid in self._view.unread:
            return None
        record = workload.queue_record
        if not workload.queue:
            return RecordQueue(workload, QueueRecord()) if record != QueueRecord() else None
        if workload.size not in SLOT_SIZES or not 1 <= workload.count <= GROUPS_AT_MOST:
            return None  # its condition says so
        return CreateKueueWorkload(workload, body_for(workload, self._view.priorities))

    def _queued(self, kueue_workload: KueueWorkload) -> Write | None:
        """Return the next write for a Workload that waits for quota."""
        workload, view = self._workload, self._view
        if self._held.some:
            return None  # the plan releases the nodes
        if not workload.queue:
            return LetGo(kueue_workload, delete=True)
        spec = spec_for(workload, view.priorities)
        if not _has(kueue_workload, spec):
            return WriteSpec(kueue_workload, spec)
        requeued = kueue_workload.condition("Requeued")
        if requeued.true or requeued.reason != NO_PLACE:
            return None
        record, moment = workload.queue_record, objects.time(requeued.since)
        if record.returned_at != moment:
            return RecordQueue(workload, replace(record, returned=record.returned + 1, returned_at=moment))
        until = returns_at(workload, kueue_workload, view.timing)
        if view.now < until:
            self._decision.moments.append(until)
            return None
        return WriteStatus(kueue_workload, {"Requeued": (True, "DelayEnded", "it looks for nodes again")})

    def _with_quota(self, kueue_workload: KueueWorkload) -> Write | None:
        """Return the next write for a Workload that has quota and is not evicted."""
        workload, held_nodes = self._workload, self._held
        if held_nodes.some and workload.queue != kueue_workload.queue:
            text = (
                f"the queue is {kueue_workload.queue} while nodes are reserved; the label "
                f"{workload.queue or 'is gone'} counts"
            )
            self._decision.notes.append(QueueEvent(workload, "QueueIsFixed", f"{text} when they are released"))
        record = workload.queue_record
        if kueue_workload.admitted and record.name != kueue_workload.queue:
            return RecordQueue(workload, replace(record, name=kueue_workload.queue))
        why = "" if held_nodes.some else self._why_return(kueue_workload)
        if why:
            return WriteStatus(kueue_workload, {"Evicted": (True, NO_PLACE, why)})
        groups = min(workload.count, kueue_workload.granted // workload.size if workload.size else 0)
        ready = held_nodes.bound >= groups > 0
        if ready and record.returned:
            return RecordQueue(workload, QueueRecord(kueue_workload.queue))
        changed = _readiness(kueue_workload, ready)
        free = kueue_workload.count - max(workload.count * workload.size, held_nodes.nodes)
        if free > kueue_workload.reclaimable and not held_nodes.is_uncertain:
            return WriteStatus(kueue_workload, changed, reclaimable=free)
        return WriteStatus(kueue_workload, changed) if changed else None

    def _why_return(self, kueue_workload: KueueWorkload) -> str:
        """Return why quota that no nodes use is given back; empty if it stays. Quota that waits hoards."""
        workload, timing = self._workload, self._view.timing
        if workload.queue != kueue_workload.queue:
            return "the workload has another queue"
        if not kueue_workload.admitted:
            return ""  # Kueue still decides
        if kueue_workload.unsupported or not kueue_workload.count:
            return f"the reservation cannot use it: {kueue_workload.unsupported or 'its pods were changed'}"
        if workload.instance_type != kueue_workload.instance_type:
            return f"the workload needs nodes of {workload.instance_type}"
        if workload.state not in WAITING:
            return ""
        ready = condition(workload.status, "Ready")
        since = max(kueue_workload.condition("Admitted").since, decode.time(ready.get("lastTransitionTime")))
        until = since + datetime.timedelta(seconds=timing.patience_s)
        if self._view.now < until:
            self._decision.moments.append(until)
            return ""
        return f"no nodes for it in {timing.patience_s:g} s: {ready.get('message')}"


def _returned(kueue_workload: KueueWorkload) -> WriteStatus:
    """Return the write that gives quota back, as Kueue's own reconcilers of jobs do."""
    evicted = kueue_workload.condition("Evicted")
    again = evicted.reason in REQUEUED_BY_KUEUE
    conditions = {
        "QuotaReserved": (False, "Pending", evicted.message),
        "Admitted": (False, "NoReservation", "the workload has no quota"),
        "Requeued": (again, evicted.reason or "Evicted", evicted.message),
        "PodsReady": (False, "WaitForStart", "no nodes are reserved"),
    }
    return WriteStatus(kueue_workload, conditions, return_quota=True, reclaimable=0)


def _readiness(kueue_workload: KueueWorkload, ready: bool) -> Conditions:
    """Return the condition PodsReady if it changes: True when all groups are Bound."""
    now = kueue_workload.condition("PodsReady")
    if now.true == ready and now.reason:
        return {}
    if ready:
        recovered = now.reason == "WaitForRecovery"
        return {"PodsReady": (True, "Recovered" if recovered else "Started", "all groups are reserved")}
    return {"PodsReady": (False, "WaitForRecovery" if now.true else "WaitForStart", "not all groups are reserved")}


def _has(kueue_workload: KueueWorkload, spec: Mapping[str, Any]) -> bool:
    """Return True if a Workload's spec is as wanted."""
    (pods,) = spec["podSets"]
    (instance_type,) = pods["template"]["spec"]["nodeSelector"].values()
    stored = (kueue_workload.queue, kueue_workload.count, kueue_workload.instance_type)
    if stored != (spec["queueName"], pods["count"], instance_type):
        return False
    name = (spec.get("priorityClassRef") or {}).get("name", "")
    return kueue_workload.priority_class == name and (not name or kueue_workload.priority == spec["priority"])


def apply_status(item: Mapping[str, Any], write: WriteStatus, now: datetime.datetime) -> dict[str, Any]:
    """Return Kueue's Workload as it was read, with its status changed. All else of the status stays: Kueue wrote it."""
    status = dict(item.get("status") or {})
    generation = int(item["metadata"].get("generation") or 0)
    stored = status.get("conditions") or []
    conditions = [condition for condition in stored if condition.get("type") not in write.conditions]
    for kind, (value, reason, message) in write.conditions.items():
        conditions.append(objects.new_condition(status, kind, value, reason, message, now, generation))
    status["conditions"] = conditions
    if write.return_quota:
        status.pop("admission", None)
    if write.reclaimable is not None:
        status["reclaimablePods"] = [{"name": POD_SET, "count": write.reclaimable}] if write.reclaimable else []
    return {**item, "status": status}
