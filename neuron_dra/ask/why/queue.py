"""A reservation's job, and its place in Kueue's queue: what it waits for, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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


def facts(world: World, reservation: Wire) -> tuple[tuple[str, str], ...]:
    """Return the job of a reservation and its place in the queue, as far as they are known."""
    found = Facts()
    for owner in reservation["metadata"].get("ownerReferences") or ():
        found.add("job", f"{owner.get('kind')} {owner.get('name')}")
    own = _of(world, reservation)
    if own is None:
        return found.done()
    queue = str((own.get("spec") or {}).get("queueName") or "")
    others = [each for each in world.snapshot.all("Workload") if each is not own and _same_queue(each, own)]
    users = sorted(_name(each) for each in others if _is_true(each, "QuotaReserved"))
    if _is_true(own, "QuotaReserved"):
        found.add("queue", f"{queue}, where it has quota")
    else:
        found.add("queue", f"{queue}, {_place(own, others)}")
        found.add("quota", f"used by {words.listed(users, 4)}" if users else "no other one of this queue uses it")
    if _reason(reservation) in _HELPED:
        ends = f"the end of {words.listed(users, 2)}, " if users else ""
        found.add("helps", f"{ends}a larger quota, or a spec.priorityClassName with a higher value")
    return found.done()


def of_job(world: World, kind: str, name: str, namespace: str) -> Wire | None:
    """Return the reservation that a job owns; None without one."""
    for each in world.snapshot.all(RESERVATION):
        if (each["metadata"].get("namespace") or "") != namespace:
            continue
        owners = each["metadata"].get("ownerReferences") or ()
        if any((owner.get("kind"), owner.get("name")) == (kind, name) for owner in owners):
            return each
    return None


def refusal(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a job for which the controller reserves nothing, from its newest Event; None without."""
    found: list[Wire] = []
    for event in world.snapshot.all("Event"):
        about = event.get("involvedObject") or {}
        same = (about.get("kind"), about.get("name"), about.get("namespace") or "") == (kind, name, namespace)
        if same and event.get("reason") in REFUSALS:
            found.append(event)
    if not found:
        return None
    last = max(found, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    return Report(subject, "reserves no nodes", (Finding(str(last["reason"]), str(last.get("message"))),))


def _of(world: World, reservation: Wire) -> Wire | None:
    """Return Kueue's Workload of a reservation."""
    uid = reservation["metadata"].get("uid")
    for each in world.snapshot.all("Workload"):
        owners = each["metadata"].get("ownerReferences") or ()
        if uid and any(owner.get("uid") == uid for owner in owners):
            return each
    return None


def _same_queue(each: Wire, own: Wire) -> bool:
    here = each["metadata"].get("namespace") == own["metadata"].get("namespace")
    names = [(item.get("spec") or {}).get("queueName") for item in (each, own)]
    return here and names[0] == names[1] and not _is_true(each, "Finished")


def _place(own: Wire, others: Sequence[Wire]) -> str:
    """Return where a Workload is among those that wait: higher priority first, then the older one."""
    waiting = [each for each in others if not _is_true(each, "QuotaReserved")]
    before = sorted((each for each in waiting if _order(each) < _order(own)), key=_order)
    place = f"place {len(before) + 1} of {len(waiting) + 1} that wait"
    return f"{place}, after {words.listed((_name(each) for each in before), 4)}" if before else place


def _order(item: Wire) -> tuple[int, str, str]:
    priority = int((item.get("spec") or {}).get("priority") or 0)
    return -priority, str(item["metadata"].get("creationTimestamp") or ""), str(item["metadata"]["name"])


def _name(item: Wire) -> str:
    """Return what has a Workload: its owner, or the Workload itself."""
    for owner in item["metadata"].get("ownerReferences") or ():
        kind = "workload" if owner.get("kind") == RESERVATION else owner.get("kind")
        return f"{kind} {owner.get('name')}"
    return f"Workload {item['metadata']['name']}"


def _is_true(item: Wire, kind: str) -> bool:
    return any(each.get("type") == kind and each.get("status") == "True" for each in _conditions(item))


def _reason(item: Wire) -> str:
    return next((str(each.get("reason")) for each in _conditions(item) if each.get("type") == "Ready"), "")


def _conditions(item: Wire) -> Sequence[Mapping[str, object]]:
    found: Sequence[Mapping[str, object]] = (item.get("status") or {}).get("conditions") or ()
    return found
