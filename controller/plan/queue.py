"""The order of workloads: by priority, then first come, first served; how long a waiting one may block others. Pure.

A workload of higher priority is planned earlier, so one of lower priority never holds it back. Reserved nodes stay with
those that have them.

Each workload may hold others back for a time. A tenant that makes new requests for the whole fleet again and again
would do so for ever. So a namespace has a *turn*: it lasts for `starvation_limit`, whichever of its workloads hold
others back. After that none of them does, until those that waited then had their turn, and for at least as long again.
Deleted objects show nothing of the past: the loop keeps the turns between plans, and a new leader begins without them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from controller.observe import decode
from controller.observe.model import (
    SLOT_SIZES,
    Reservation,
    Turn,
    Workload,
    condition,
)
from controller.plan import objects, placement
from controller.plan.actions import Verdict
from controller.plan.context import PlanningContext
from controller.plan.holdings import Holdings
from neuron_dra.core.ultraserver import Phase

WAITING = ("WaitsForOlder", "InsufficientCapacity", "CapacitySplit", "CreatingUltraServers")
"""The reasons of workloads that wait for nodes which the fleet has."""

Order = tuple[bool, bool, int, datetime.datetime, str]


def order(workload: Workload, holdings: Holdings, priorities: Mapping[str, int], now: datetime.datetime) -> Order:
    """Return the sort key: workloads that release, then complete ones, then by priority, then first come, first served.

    A workload that grows queues from the time of its request to grow. The value of a class that does not exist is 0.
    """
    grows = _grows(workload, holdings)
    settled = bool(holdings.of(workload.uid)) and not grows
    since = waits_since(workload, now) if grows else workload.created
    return not workload.deleting, not settled, -priorities.get(workload.priority_class, 0), since, workload.ref


def class_problem(workload: Workload, priorities: Mapping[str, int]) -> str:
    """Return what is wrong with the workload's PriorityClass, for its message; empty if nothing is."""
    name = workload.priority_class
    if not name or name in priorities:
        return ""
    return f"PriorityClass {name} does not exist or cannot be read: it waits with priority 0"


def _grows(workload: Workload, holdings: Holdings) -> bool:
    """Return True if it has Bound nodes and requests more groups than it has."""
    held = holdings.of(workload.uid)
    if not any(each.allocation.phase is Phase.BOUND for each in held):
        return False
    return opened(held) < workload.count


def opened(held: Iterable[Reservation]) -> int:
    """Return how many groups are or were open for pods, by the highest index of these reservations.

    A request beyond that is growth, within it repair.
    """
    indices = [each.allocation.ultraserver_index for each in held if each.allocation.phase is not Phase.PENDING]
    return max(indices, default=-1) + 1


def waits_since(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Return the time since which the workload has not been Ready, from its status; `now` for one that is Ready."""
    ready = condition(workload.status, "Ready")
    if ready.get("status") == "True":
        return now
    return max(workload.created, decode.time(ready.get("lastTransitionTime")))


def starving_workload(context: PlanningContext, workload: Workload) -> Workload | None:
    """Return the starving workload of the same type that goes first.

    None without one, or if this workload has waited for it for `starvation_limit`.
    """
    first = context.starving.get(workload.instance_type)
    until = waits_since(workload, context.now) + context.limits.starvation_limit
    if first is None or context.now >= until:
        return None
    context.look_again(until)
    if first.namespace != workload.namespace:
        _note_turn(context, first)
    return first


def _note_turn(context: PlanningContext, first: Workload) -> None:
    """Note that a workload holds back one of another namespace."""
    turn = context.turns.get((first.instance_type, first.namespace))
    began = context.now if turn is None else min(turn.began, context.now)  # the clock may have been set back
    context.turns[first.instance_type, first.namespace] = Turn(began, context.now)


def _turn_until(context: PlanningContext, workload: Workload) -> datetime.datetime:
    """Return until when workloads of this namespace may hold back others."""
    turn = context.turns.get((workload.instance_type, workload.namespace))
    return (context.now if turn is None else turn.began) + context.limits.starvation_limit


def turns(context: PlanningContext, verdicts: Mapping[str, Verdict]) -> dict[tuple[str, str], Turn]:
    """Return the turns that have not ended for the next plan, given what this one decided."""
    return {key: turn for key, turn in context.turns.items() if not _is_over(context, key, turn, verdicts)}


def _is_over(context: PlanningContext, key: tuple[str, str], turn: Turn, verdicts: Mapping[str, Verdict]) -> bool:
    """Return True if the others had their turn, and as long a time has passed."""
    pause = min(turn.last, context.now) + context.limits.starvation_limit
    if context.now < pause:
        context.look_again(pause)
        return False
    instance_type, namespace = key
    return not any(
        _waits_for_its_turn(context, each, turn, verdicts.get(each.uid))
        for each in context.index.workloads
        if each.instance_type == instance_type and each.namespace != namespace
    )


def _waits_for_its_turn(context: PlanningContext, workload: Workload, turn: Turn, verdict: Verdict | None) -> bool:
    """Return True if a workload waits since that turn, and its own time to hold others back is not over."""
    if verdict is None or verdict.reason not in WAITING:
        return False
    return waits_since(workload, context.now) <= turn.last and context.now < starving_until(context, workload)


def waits_for_older(context: PlanningContext, first: Workload) -> placement.Shortage:
    """Return the shortage of a workload that must not pass a starving one."""
    until = min(starving_until(context, first), _turn_until(context, first))
    return placement.Shortage(
        "WaitsForOlder",
        f"workload {first.ref} has waited longer for {first.count} x {first.size} nodes and goes first, until "
        f"{objects.time(until)} at the latest",
    )


def starving_until(context: PlanningContext, workload: Workload) -> datetime.datetime:
    """Return until when a starving workload holds others back."""
    return waits_since(workload, context.now) + context.limits.starvation_threshold + context.limits.starvation_limit


def note_starving(context: PlanningContext, workload: Workload) -> None:
    """Note that the workload is starving, if it has waited for long enough: it then holds back others of its type."""
    begins = waits_since(workload, context.now) + context.limits.starvation_threshold
    ends = min(starving_until(context, workload), _turn_until(context, workload))
    if begins <= context.now < ends:
        context.starving.setdefault(workload.instance_type, workload)
    for moment in (begins, ends):
        context.look_again(moment)


def exceeds_fleet(
    context: PlanningContext, workload: Workload, live: Mapping[int, Reservation], kind: str | None
) -> int | None:
    """Return the largest serverCount that all healthy UltraServers together allow.

    None if the spec is within it. Slots of other workloads count as available, because they will be released; the
    workload's own `live` slots count too.
    """
    free_slots, size = context.free_slots, workload.size
    mine = {name for each in live.values() for name in each.allocation.nodes}
    usable = len(free_slots.of_nodes(mine, workload.instance_type, size))
    largest = len(live) + free_slots.capacity(workload.instance_type, size, kind) - usable
    return None if workload.count <= largest else largest


def unsatisfiable(context: PlanningContext, workload: Workload, missing: int, largest: int) -> placement.Shortage:
    """Return the shortage of a workload that the whole fleet cannot hold, with what would help."""
    shortage = context.free_slots.shortage(workload, missing)
    kind, size, free_slots = workload.instance_type, workload.size, context.free_slots
    if not free_slots.has_type(kind):
        return shortage
    if largest:
        advice = f"set spec.serverCount to at most {largest}"
    else:
        others = {each: free_slots.capacity(kind, each, None) for each in SLOT_SIZES if each != size}
        found = " and ".join(f"{number} of {each}" for each, number in others.items() if number)
        advice = f"there are {found}" if found else "there are none of other sizes"
    groups = f"{largest} group{'s' if largest != 1 else ''} of {size}"
    text = f"all healthy UltraServers together have {groups}: {advice}, or add or repair nodes"
    reason = "ExceedsFleet" if workload.count > free_slots.members(kind) // size else shortage.reason
    return placement.Shortage(reason, f"{shortage.message}; {text}; it holds no other workload back")
