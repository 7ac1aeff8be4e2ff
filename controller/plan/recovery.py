"""What fails under a workload, since when, and what its failureStrategy makes of it. Pure.

Since when is read off the objects, so that it survives the controller: the Node's Ready condition, and for what nodes
publish, `faults` in the allocation. A fault that is over for a moment starts anew; what a node does not say is neither.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.observe import decode
from controller.observe.model import (
    PublishedNode,
    Reservation,
    Workload,
    shortened,
)
from controller.plan import (
    objects,
    outage,
    placement,
    releasing,
    restart_limit,
)
from controller.plan.context import PlanningContext, joined
from neuron_dra.core.ultraserver import Fault, Phase, object_name

TEXTS = {
    "NodeGone": "nodes are gone",
    "NodeReplaced": "nodes were replaced by others of the same name",
    "NodeNotReady": "nodes are not Ready",
    "UltraServerChanged": "nodes that say they are in another UltraServer now",
    "TagLost": "nodes whose devices do not show the reservation any more, so that no pod can start there",
    "ShapeChanged": "nodes that publish other devices than the ResourceClaimTemplate asks for",
    "DeviceUnhealthy": "nodes with unhealthy or missing devices",
    "LinkDown": "links that the group needs are down on",
    "NodeCordoned": "cordoned nodes, where no pod can start",
    "NodeTainted": "nodes that were tainted, where no pod can start that does not tolerate it",
    "SliceMissing": "nodes publish no slice",
    "ForeignClaim": "claims of others are allocated on nodes of this workload; delete their pods",
}
"""What can be wrong with a reserved node, the worst first."""

UNSCHEDULABLE = "PodsUnschedulable"
"""Nothing is wrong with the nodes themselves, and yet pods of the workload cannot be placed there."""

MOVED_FROM = ("UltraServerChanged", "TagLost", "ShapeChanged", "NodeCordoned")
"""MigrateAffected moves away from these; RestartAll only reports them: a driver that is rolled back drops every tag."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with a node of a slot. At `acts_at` the strategy acts on it; None is never."""

    reason: str
    name: str
    acts_at: datetime.datetime | None


def note_faults(context: PlanningContext, workload: Workload) -> None:
    """Keep in the workload's bound slots since when their nodes have lost what the slots need."""
    for one in context.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            faults = tuple(_faults(context, workload, one))
            if faults != one.allocation.faults:
                context.holdings.change(one, faults=faults)


def _faults(context: PlanningContext, workload: Workload, one: Reservation) -> Iterable[Fault]:
    allocation = one.allocation
    since = {(fault.node, fault.reason): fault for fault in allocation.faults}
    slot = [found for each in allocation.nodes if (found := context.holdings.published(each, allocation)) is not None]
    asked = asked_for(context, workload)
    for name in allocation.nodes:
        for reason, fine in _judged(context, workload, one, name, slot, asked):
            before = since.get((name, reason))
            if fine is False:
                yield before or Fault(name, reason, objects.time(context.now))
            elif fine is None and before:
                yield before


def _judged(
    context: PlanningContext, workload: Workload, one: Reservation, name: str, slot: Sequence[PublishedNode], asked: str
) -> Iterable[tuple[str, bool | None]]:
    """What a reserved node may have lost, and whether it has it; None while the node does not say.

    `slot` are the nodes of the slot that publish, and `asked` is what the workload's template asks for.
    """
    allocation = one.allocation
    node, published = context.nodes.get(name), context.holdings.published(name, allocation)
    whole = published if published is not None and published.complete and published.kind else None
    yield "DeviceUnhealthy", None if whole is None else not whole.sick_devices
    yield "LinkDown", None if whole is None else placement.links_up(whole, allocation.node_count, slot)
    identity = None if whole is None else whole.ultraserver_id
    yield "UltraServerChanged", None if identity is None else object_name(identity) == one.ultraserver
    if allocation.phase is Phase.BOUND:
        shown = None if whole is None or whole.tag is None else whole.tag.allocation_id
        yield "TagLost", None if whole is None else shown == allocation.allocation_id
        yield "ShapeChanged", None if whole is None or not asked else whole.kind == asked
        if workload.moves_on_cordon:
            yield "NodeCordoned", None if node is None else node.schedulable


def asked_for(context: PlanningContext, workload: Workload) -> str:
    """What the workload's template asks for, neuron_node or neuron_device; empty if there is none that says so."""
    kinds = {each.kind for each in context.snapshot.templates_of(workload.uid) if not each.deleting} - {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _closed(context: PlanningContext, one: Reservation) -> Iterable[Trouble]:
    """Nodes that are cordoned or tainted. A taint of all nodes of a group sets them aside for pods that tolerate it."""
    nodes = [node for name in one.allocation.nodes if (node := context.nodes.get(name)) is not None]
    of_all = set.intersection(*({*node.taints} for node in nodes)) if nodes else set()
    for node in nodes:
        if not node.schedulable:
            yield Trouble("NodeCordoned", node.name, None)
        elif {*node.taints} - of_all:
            yield Trouble("NodeTainted", node.name, None)


def troubles(context: PlanningContext, workload: Workload, one: Reservation) -> list[Trouble]:
    """Return what is wrong with the nodes of a slot now. No grace period began before the last outage was over."""
    holdings, allocation = context.holdings, one.allocation
    calm = outage.over_since(workload, context.now)
    found = []
    for name in allocation.nodes:
        node = context.nodes.get(name)
        published = holdings.published(name, allocation)
        if node is None:
            found.append(Trouble("NodeGone", name, context.now))
        elif not holdings.is_there(name, allocation):
            found.append(Trouble("NodeReplaced", name, context.now))
        elif not node.ready:
            since = max(node.ready_changed, calm)
            found.append(Trouble("NodeNotReady", name, since + context.limits.node_failure_grace))
        if not (published and published.kind) and holdings.is_there(name, allocation):
            found.append(Trouble("SliceMissing", name, None))
    seen = {*seen_now(context, workload, one)} if allocation.faults else set()
    for fault in allocation.faults:
        since = max(decode.time(fault.since), calm)
        if fault.reason == "TagLost":
            since += context.limits.tag_timeout  # a plugin that starts again may publish first
            context.look_again(since)
            if context.now < since:
                continue
        acts = (fault.node, fault.reason) in seen and _acts(workload, fault.reason)
        found.append(Trouble(fault.reason, fault.node, since + context.limits.fault_grace if acts else None))
    noted = {(each.reason, each.name) for each in found}
    found += [each for each in _closed(context, one) if (each.reason, each.name) not in noted]
    found += [Trouble("ForeignClaim", use.holder, None) for use in holdings.foreign(allocation)]
    return found


def _acts(workload: Workload, reason: str) -> bool:
    """The workload's strategy acts on faults of this kind; NoOp, which never does, says so itself."""
    return reason not in MOVED_FROM or workload.strategy != "RestartAll"


def seen_now(context: PlanningContext, workload: Workload, one: Reservation) -> Iterable[tuple[str, str]]:
    """The faults that nodes show at this moment, and not only before they fell silent."""
    return ((fault.node, fault.reason) for fault in _faults(context, workload, one.changed(faults=())))


def broken(context: PlanningContext, workload: Workload) -> set[str]:
    """Return the allocation ids of the bound slots on which the workload's strategy acts now: none in an outage."""
    if workload.strategy not in ("RestartAll", "MigrateAffected") or context.outage is not None:
        return set()
    found = set()
    for one in context.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            moments = [each.acts_at for each in troubles(context, workload, one) if each.acts_at is not None]
            for moment in moments:
                context.look_again(moment)
            if moments and min(moments) <= context.now:
                found.add(one.allocation.allocation_id)
    return found


def damage(context: PlanningContext, workload: Workload, *more: str) -> tuple[str, str] | None:
    """What is wrong with the nodes on which pods of the workload may be: a reason and a message, or None."""
    holdings = context.holdings
    leaving = holdings.leaving(workload.uid)
    bound = [each for each in holdings.of(workload.uid) if each.allocation.phase is Phase.BOUND]
    found = [trouble for each in (*bound, *leaving) for trouble in troubles(context, workload, each)]
    reasons = [reason for reason in TEXTS if any(trouble.reason == reason for trouble in found)]
    unschedulable = context.snapshot.unschedulable.get(workload.uid, "") if bound else ""
    if not (reasons or unschedulable):
        return None
    texts = []
    for reason in reasons:
        names = list(dict.fromkeys(trouble.name for trouble in found if trouble.reason == reason))
        texts.append(f"{TEXTS[reason]}: {shortened(names)}")
    reason, prospect = _prospect(context, workload, [t for t in found if t.acts_at is not None], bound)
    return reason or (*reasons, UNSCHEDULABLE)[0], joined(*texts, unschedulable, prospect, *more)


def _prospect(
    context: PlanningContext, workload: Workload, found: list[Trouble], bound: list[Reservation]
) -> tuple[str, str]:
    """What the strategy does about it, and when; the reason is empty unless that is worse than what is wrong."""
    moments = [trouble.acts_at for trouble in found if trouble.acts_at is not None]
    if not moments:
        return "", ""
    if context.outage is not None:
        return "", context.outage.message
    if workload.strategy == "NoOp":
        return "", "failureStrategy NoOp only reports it: delete the workload and create it again to leave the node"
    if min(moments) > context.now:
        return "", f"{workload.strategy} acts at {objects.time(min(moments))}, unless it is over by then"
    if workload.strategy == "RestartAll" and workload.restarting is None:
        return restart_limit.waits(context, workload, bound)
    return "", ""


# -- MigrateAffected ---------------------------------------------------------------------------------------------------


def replace(
    context: PlanningContext, workload: Workload, indices: set[int], kind: str | None, near: Iterable[placement.Slot]
) -> placement.Shortage | None:
    """Reserve a new slot for each broken one that has none, for all of them or for none; return why none."""
    holdings = context.holdings
    coming = {each.allocation.ultraserver_index for each in holdings.pending(workload.uid)}
    wanted = sorted(indices - coming)
    if not wanted:
        return None
    free = context.free_slots.free(workload.instance_type, workload.size)
    chosen = placement.choose(free, len(wanted), kind=kind, near=tuple(near))
    if chosen is None:
        return _in_place(context, workload, wanted) or context.free_slots.shortage(workload, len(wanted))
    for index, slot in zip(wanted, chosen, strict=True):
        holdings.reserve(workload, index, slot, context.now)
    return None


def _in_place(context: PlanningContext, workload: Workload, wanted: list[int]) -> placement.Shortage | None:
    """Release broken slots first, where nothing is wrong but that their instances were replaced at the same place.

    Without a spare group there is no other way, and the slots are free to be reserved anew. None: that does not help.
    """
    live = context.holdings.live(workload.uid)
    slots = [live[index] for index in wanted]
    for one in slots:
        reasons = {each.reason for each in troubles(context, workload, one) if each.acts_at is not None}
        own = context.free_slots.of_nodes({*one.allocation.nodes}, workload.instance_type, workload.size)
        if reasons != {"NodeReplaced"} or context.holdings.foreign(one.allocation) or not own:
            return None
    for one in slots:
        context.holdings.drain(one)
    names = tuple(name for one in slots for name in one.allocation.nodes)
    text = f"no spare group: releases nodes, to reserve them anew: {shortened(names)}"
    return placement.Shortage("WaitingForRelease", text)


def drain_replaced(context: PlanningContext, workload: Workload, indices: set[int]) -> set[int]:
    """Close each broken slot whose replacement has answered, not earlier; return the indices.

    A slot from which nothing can be evicted now stays as it is: its nodes may come back.
    """
    closed = set()
    coming = {each.allocation.ultraserver_index: each for each in context.holdings.pending(workload.uid)}
    for index, one in context.holdings.live(workload.uid).items():
        answered = index in indices and index in coming and context.holdings.has_answered(coming[index].allocation)
        if answered and releasing.out_of_reach(context, workload.uid, (one,)) is None:
            context.holdings.drain(one)
            closed.add(index)
    return closed


def held_up(context: PlanningContext, workload: Workload) -> tuple[str, str] | None:
    """What keeps slots that are to be left from closing: a reason and a message."""
    coming = {each.allocation.ultraserver_index for each in context.holdings.pending(workload.uid)}
    live = context.holdings.live(workload.uid)
    old = [one for index, one in live.items() if index in coming and one.allocation.phase is Phase.BOUND]
    found = (releasing.out_of_reach(context, workload.uid, (one,)) for one in old)
    return next((each for each in found if each is not None), None)


def moves(context: PlanningContext, workload: Workload) -> str:
    """Say which slots are being replaced by which."""
    holdings = context.holdings
    old = {
        each.allocation.ultraserver_index: each.allocation
        for each in (*holdings.live(workload.uid).values(), *holdings.leaving(workload.uid))
        if each.allocation.phase is not Phase.PENDING
    }
    texts = []
    for each in holdings.pending(workload.uid):
        index, new = each.allocation.ultraserver_index, each.allocation
        if index in old:
            texts.append(f"group {index} moves from {shortened(old[index].nodes)} to {shortened(new.nodes)}")
            if index == 0 and workload.count > 1:
                texts.append(
                    f"rank 0 moves too: running pods of other groups keep NEURON_DRA_RANK0_NODE={old[0].nodes[0]} "
                    "until they are created anew"
                )
    return joined(*texts)
