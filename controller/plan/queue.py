"""Who waits for whom: first come, first served, and for how long one that waits may hold others back. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from controller.observe import decode
from controller.observe.model import (
    SLOT_SIZES,
    Reservation,
    Workload,
    condition,
)
from controller.plan import objects, placement
from controller.plan.context import PlanningContext
from controller.plan.holdings import Holdings
from neuron_dra.core.ultraserver import Phase

Turn = tuple[bool, bool, datetime.datetime, str]


def turn(workload: Workload, holdings: Holdings, now: datetime.datetime) -> Turn:
    """First who gives back, then who has all that it asks for, then first come, first served.

    A workload that grows queues from the moment at which it asked for more.
    """
    grows = _grows(workload, holdings)
    settled = bool(holdings.of(workload.uid)) and not grows
    since = waits_since(workload, now) if grows else workload.created
    return not workload.deleting, not settled, since, workload.ref


def _grows(workload: Workload, holdings: Holdings) -> bool:
    """It has nodes that pods may use, and asks for more groups than it ever had."""
    held = holdings.of(workload.uid)
    if not any(each.allocation.phase is Phase.BOUND for each in held):
        return False
    return grown_to(workload, {each.allocation.ultraserver_index: each for each in held}) < workload.count


def grown_to(workload: Workload, live: Mapping[int, Reservation]) -> int:
    """How many groups a workload was told that it has: more than that is growth, less is repair."""
    told = [each.allocation.world_size for each in live.values() if each.allocation.world_size]
    return max(told) // max(1, workload.size) if told else len(live)


def waits_since(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Since when a workload has not had what it asks for, as far as its status says."""
    ready = condition(workload.status, "Ready")
    if ready.get("status") == "True":
        return now
    return max(workload.created, decode.time(ready.get("lastTransitionTime")))


def held_back(context: PlanningContext, workload: Workload) -> Workload | None:
    """The workload that comes first; None where there is none, or when this one has waited for it long enough."""
    first = context.starving.get(workload.instance_type)
    until = waits_since(workload, context.now) + context.limits.starvation_limit
    if first is None or context.now >= until:
        return None
    context.look_again(until)
    return first


def comes_first(context: PlanningContext, first: Workload) -> placement.Shortage:
    """Why a workload waits that others could pass, but this one not."""
    until = hold_back_ends(context, first)
    return placement.Shortage(
        "WaitsForOlder",
        f"workload {first.ref} has waited longer for {first.count} x {first.size} nodes and comes first, until "
        f"{objects.time(until)} at the latest",
    )


def hold_back_ends(context: PlanningContext, workload: Workload) -> datetime.datetime:
    """Until when a workload that waits may hold others back."""
    return waits_since(workload, context.now) + context.limits.starvation_threshold + context.limits.starvation_limit


def hold_back(context: PlanningContext, workload: Workload) -> None:
    """Have a workload that has waited for long, and could be served, hold others of its type back for a while."""
    begins = waits_since(workload, context.now) + context.limits.starvation_threshold
    ends = hold_back_ends(context, workload)
    if begins <= context.now < ends:
        context.starving.setdefault(workload.instance_type, workload)
    for moment in (begins, ends):
        context.look_again(moment)


def exceeds_fleet(
    context: PlanningContext, workload: Workload, live: Mapping[int, Reservation], kind: str | None
) -> int | None:
    """Return the largest serverCount that all healthy UltraServers together have; None if that is enough."""
    free_slots, size = context.free_slots, workload.size
    mine = {name for each in live.values() for name in each.allocation.nodes}
    usable = len(free_slots.of_nodes(mine, workload.instance_type, size))
    largest = len(live) + free_slots.capacity(workload.instance_type, size, kind) - usable
    return None if workload.count <= largest else largest


def impossible(context: PlanningContext, workload: Workload, missing: int, largest: int) -> placement.Shortage:
    """Say what is short, and that only more UltraServers, healthier ones or another request will end it."""
    shortage = context.free_slots.shortage(workload, missing)
    kind, size, free_slots = workload.instance_type, workload.size, context.free_slots
    if not free_slots.has_type(kind):
        return shortage
    if largest:
        advice = f"set spec.serverCount to at most {largest}"
    else:
        others = {each: free_slots.capacity(kind, each, None) for each in SLOT_SIZES if each != size}
        found = " and ".join(f"{number} of {each}" for each, number in others.items() if number)
        advice = f"there are {found}" if found else "there are none of any other size"
    groups = f"{largest} group{'s' if largest != 1 else ''} of {size}"
    text = f"all healthy UltraServers together have {groups} for it: {advice}, or add or repair nodes"
    reason = "ExceedsFleet" if workload.count > free_slots.members(kind) // size else shortage.reason
    return placement.Shortage(reason, f"{shortage.message}; {text}; it holds no other workload back")
