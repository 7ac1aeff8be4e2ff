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
REFUSALS: Final = frozenset(each.name for each in vocabulary.EVENTS if each.of == "Job") - {"WorkloadExists"}
"""Reasons of Events on a job: the controller reserves nothing more for it."""
WAITS: Final = ("WaitingForQuota", "QuotaRevoked", "GrowthNeedsQuota", "QueueDeactivated", "QueueFinished")
"""Reasons of reservations that wait for their queue; free nodes do not help them."""
_HELPED: Final = ("WaitingForQuota", "GrowthNeedsQuota")
"""Those that more quota helps."""


def facts(world: World, reservation: WorkloadView) -> tuple[tuple[str, str], ...]:
    """Return the job of a reservation and its place in the queue, as far as they are known."""
    found = Facts()
    for owner in reservation.metadata.owner_references:
        found.add("job", f"{owner.kind} {owner.name}")
    everyone = [KueueWorkloadView.of(each) for each in world.snapshot.all("Workload")]
    own = next((each for each in everyone if _is_of(each, reservation)), None)
    if own is None:
        return found.done()
    queue = own.spec.queue_name
    others = [each for each in everyone if each is not own and _same_queue(each, own)]
    users = sorted(_name(each) for each in others if _is_true(each, "QuotaReserved"))
    if _is_true(own, "QuotaReserved"):
        found.add("queue", f"{queue}, where it has quota")
    else:
        found.add("queue", f"{queue}, {_place(own, others)}")
        found.add("quota", f"used by {words.listed(users, 4)}" if users else "no other one of this queue uses it")
    ready = reservation.status.condition("Ready")
    if ready is not None and ready.reason in _HELPED:
        ends = f"the end of {words.listed(users, 2)}, " if users else ""
        found.add("helps", f"{ends}a larger quota, or a spec.priorityClassName with a higher value")
    return found.done()


def of_job(world: World, kind: str, name: str, namespace: str) -> Wire | None:
    """Return the reservation that a job owns; None without one."""
    for item in world.snapshot.all(RESERVATION):
        meta = WorkloadView.of(item).metadata
        if meta.namespace == namespace and any(owner.name == name for owner in meta.owners(kind)):
            return item
    return None


def refusal(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a job for which the controller reserves nothing, from its newest Event; None without."""
    found: list[EventView] = []
    for item in world.snapshot.all("Event"):
        event = EventView.of(item)
        about = event.involved_object
        same = (about.kind, about.name, about.namespace) == (kind, name, namespace)
        if same and event.reason in REFUSALS:
            found.append(event)
    if not found:
        return None
    last = max(found, key=lambda each: each.seen_at)
    return Report(subject, "reserves no nodes", (Finding(last.reason, last.message),))


def _is_of(item: KueueWorkloadView, reservation: WorkloadView) -> bool:
    uid = reservation.metadata.uid
    return bool(uid) and any(owner.uid == uid for owner in item.metadata.owner_references)


def _same_queue(each: KueueWorkloadView, own: KueueWorkloadView) -> bool:
    here = each.metadata.namespace == own.metadata.namespace
    return here and each.spec.queue_name == own.spec.queue_name and not _is_true(each, "Finished")


def _place(own: KueueWorkloadView, others: Sequence[KueueWorkloadView]) -> str:
    """Return where a Workload is among those that wait: higher priority first, then the older one."""
    waiting = [each for each in others if not _is_true(each, "QuotaReserved")]
    before = sorted((each for each in waiting if _order(each) < _order(own)), key=_order)
    place = f"place {len(before) + 1} of {len(waiting) + 1} that wait"
    if before:
        return f"{place}, after {words.listed((_name(each) for each in before), 4)}"
    return place


def _order(item: KueueWorkloadView) -> tuple[int, str, str]:
    return -item.spec.priority, str(item.metadata.creation_timestamp or ""), item.metadata.name


def _name(item: KueueWorkloadView) -> str:
    """Return what has a Workload: its owner, or the Workload itself."""
    for owner in item.metadata.owner_references:
        kind = "workload" if owner.kind == RESERVATION else owner.kind
        return f"{kind} {owner.name}"
    return f"Workload {item.metadata.name}"


def _is_true(item: KueueWorkloadView, kind: str) -> bool:
    return any(each.type == kind and each.status == "True" for each in item.status.conditions)
