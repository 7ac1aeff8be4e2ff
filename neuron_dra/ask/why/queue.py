"""A reservation's job, and its place in Kueue's queue: what it waits for, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuron_dra.ask.read.pod_views import KueueWorkloadView
from neuron_dra.ask.read.views import EventView, WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, Report
from neuron_dra.ask.world.world import World
from neuron_dra.core import vocabulary
from neuron_dra.core.wire import Wire

RESERVATION: Final = "NeuronUltraServerWorkload"
REFUSALS: Final = frozenset(event.name for event in vocabulary.EVENTS if event.of == "Job") - {"WorkloadExists"}
"""Reasons of Events on a job: the controller reserves nothing more for it."""
WAITS: Final = ("WaitingForQuota", "QuotaRevoked", "GrowthNeedsQuota", "QueueDeactivated", "QueueFinished")
"""Reasons of reservations that wait for their queue; free nodes do not help them."""
_HELPED: Final = ("WaitingForQuota", "GrowthNeedsQuota")
"""Those that more quota helps."""


def facts(world: World, reservation: WorkloadView) -> tuple[tuple[str, str], ...]:
    """Return the job of a reservation and its place in the queue, as far as they are known."""
    job_facts = Facts()
    for owner in reservation.metadata.owner_references:
        job_facts.add("job", f"{owner.kind} {owner.name}")
    kueue_workloads = [KueueWorkloadView.of(raw_workload) for raw_workload in world.snapshot.all("Workload")]
    own_workload = next((workload for workload in kueue_workloads if _is_of(workload, reservation)), None)
    if own_workload is None:
        return job_facts.done()
    queue = own_workload.spec.queue_name
    others = [workload for workload in kueue_workloads if workload is not own_workload]
    others_in_queue = [workload for workload in others if _same_queue(workload, own_workload)]
    with_quota = sorted(_name(workload) for workload in others_in_queue if _is_true(workload, "QuotaReserved"))
    if _is_true(own_workload, "QuotaReserved"):
        job_facts.add("queue", f"{queue}, where it has quota")
    else:
        job_facts.add("queue", f"{queue}, {_place(own_workload, others_in_queue)}")
        text = "no other one of this queue uses it"
        if with_quota:
            text = f"used by {words.listed(with_quota, 4)}"
        job_facts.add("quota", text)
    ready = reservation.status.condition("Ready")
    if ready is not None and ready.reason in _HELPED:
        ends = f"the end of {words.listed(with_quota, 2)}, " if with_quota else ""
        job_facts.add("helps", f"{ends}a larger quota, or a spec.priorityClassName with a higher value")
    return job_facts.done()


def of_job(world: World, kind: str, name: str, namespace: str) -> Wire | None:
    """Return the reservation that a job owns; None without one."""
    for raw_reservation in world.snapshot.all(RESERVATION):
        meta = WorkloadView.of(raw_reservation).metadata
        if meta.namespace == namespace and any(owner.name == name for owner in meta.owners(kind)):
            return raw_reservation
    return None


def refusal(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a job for which the controller reserves nothing, from its newest Event; None without."""
    refusals: list[EventView] = []
    for raw_event in world.snapshot.all("Event"):
        event = EventView.of(raw_event)
        about = event.involved_object
        same = (about.kind, about.name, about.namespace) == (kind, name, namespace)
        if same and event.reason in REFUSALS:
            refusals.append(event)
    if not refusals:
        return None
    last = max(refusals, key=lambda event: event.seen_at)
    return Report(subject, "reserves no nodes", (Finding(last.reason, last.message),))


def _is_of(workload: KueueWorkloadView, reservation: WorkloadView) -> bool:
    uid = reservation.metadata.uid
    return bool(uid) and any(owner.uid == uid for owner in workload.metadata.owner_references)


def _same_queue(workload: KueueWorkloadView, own_workload: KueueWorkloadView) -> bool:
    if workload.metadata.namespace != own_workload.metadata.namespace or _is_true(workload, "Finished"):
        return False
    return workload.spec.queue_name == own_workload.spec.queue_name


def _place(own_workload: KueueWorkloadView, others: Sequence[KueueWorkloadView]) -> str:
    """Return where a Workload is among those that wait: higher priority first, then the older one."""
    waiting = [workload for workload in others if not _is_true(workload, "QuotaReserved")]
    before = sorted((workload for workload in waiting if _order(workload) < _order(own_workload)), key=_order)
    place = f"place {len(before) + 1} of {len(waiting) + 1} that wait"
    if before:
        return f"{place}, after {words.listed((_name(workload) for workload in before), 4)}"
    return place


def _order(workload: KueueWorkloadView) -> tuple[int, str, str]:
    return -workload.spec.priority, str(workload.metadata.creation_timestamp or ""), workload.metadata.name


def _name(workload: KueueWorkloadView) -> str:
    """Return what has a Workload: its owner, or the Workload itself."""
    for owner in workload.metadata.owner_references:
        kind = "workload" if owner.kind == RESERVATION else owner.kind
        return f"{kind} {owner.name}"
    return f"Workload {workload.metadata.name}"


def _is_true(workload: KueueWorkloadView, kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in workload.status.conditions)
