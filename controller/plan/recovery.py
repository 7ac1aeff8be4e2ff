"""Finds faults of a workload's nodes and plans what its failureStrategy does about them. Pure.

Fault start times come from the objects, so they survive the controller: the Node's Ready condition, and `faults` in the
allocation for what nodes publish. A fault that ends and returns starts again. Missing information neither starts nor
ends a fault.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
    places,
    releasing,
    restart_limit,
)
from controller.plan.context import PlanningContext, join_texts
from neuron_dra.core.ultraserver import Fault, Phase, object_name


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: what messages say of it, and whether RestartAll, too, acts where MigrateAffected does.

    It does not where a fault may concern every node at once: a driver rollback drops every tag.
    """

    text: str
    restarts: bool = True


FAULTS: Final[Mapping[str, FaultKind]] = {
    "NodeGone": FaultKind("nodes are gone"),
    "NodeReplaced": FaultKind("nodes were replaced by others with the same name"),
    "NodeNotReady": FaultKind("nodes are not Ready"),
    "UltraServerChanged": FaultKind("nodes that now publish another UltraServer", restarts=False),
    "TagLost": FaultKind(
        "nodes whose devices no longer show the reservation, so that no pod can start there", restarts=False
    ),
    "ShapeChanged": FaultKind(
        "nodes that publish other devices than the ResourceClaimTemplate requests", restarts=False
    ),
    "DeviceUnhealthy": FaultKind("nodes with unhealthy or missing devices"),
    "LinkDown": FaultKind("links that the group needs are down on"),
    "NodeCordoned": FaultKind("cordoned nodes, where no pod can start", restarts=False),
    "NodeTainted": FaultKind("tainted nodes, where only pods that tolerate the taint can start"),
    "SliceMissing": FaultKind("nodes that publish no ResourceSlice"),
    "ForeignClaim": FaultKind("claims of other pods are allocated on nodes of this workload; delete these pods"),
}
"""The faults of a reserved node by reason, the worst first."""

UNSCHEDULABLE = "PodsUnschedulable"
"""The nodes have no fault, but pods of the workload cannot be scheduled to them."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of a node of a slot.

    `reason` is a key of FAULTS, `name` the Node's. The strategy acts on the fault at `acts_at`; None means never.
    """

    reason: str
    name: str
    acts_at: datetime.datetime | None


def note_faults(context: PlanningContext, workload: Workload) -> None:
    """Record in the workload's bound slots when the faults of their nodes began.

    The times are part of the allocation in the NeuronUltraServer, so another replica continues the grace periods.
    """
    for one in context.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            faults = tuple(_faults(context, workload, one))
            if faults != one.allocation.faults:
                context.holdings.change(one, faults=faults)


def _faults(context: PlanningContext, workload: Workload, one: Reservation) -> Iterable[Fault]:
    """Yield the faults of a slot's nodes, each with its recorded start time, or `now` for a new one.

    A fault whose state is unknown stays if it was recorded.
    """
    allocation = one.allocation
    since = {(fault.node, fault.reason): fault for fault in allocation.faults}
    seen = (context.holdings.published(each, allocation) for each in allocation.nodes)
    slot = [published for published in seen if published is not None]
    asked = template_kind(context, workload)
    for name in allocation.nodes:
        for reason, fine in _checks(context, workload, one, name, slot, asked):
            before = since.get((name, reason))
            if fine is False:
                yield before or Fault(name, reason, objects.time(context.now))
            elif fine is None and before:
                yield before


def _checks(
    context: PlanningContext, workload: Workload, one: Reservation, name: str, slot: Sequence[PublishedNode], asked: str
) -> Iterable[tuple[str, bool | None]]:
    """Yield the faults that a reserved node could have, each with True if the node is fine and None if it is unknown.

    `slot` are the nodes of the slot that publish; `asked` is the resourceType that the workload's template requests.
    """
    allocation = one.allocation
    node, published = context.nodes.get(name), context.holdings.published(name, allocation)
    whole = published if published is not None and published.complete and published.kind else None
    yield "DeviceUnhealthy", None if whole is None else not whole.device_faults
    yield "LinkDown", None if whole is None else placement.links_up(whole, allocation.node_count, slot)
    identity = None if whole is None else whole.ultraserver_id
    yield "UltraServerChanged", None if identity is None else object_name(identity) == one.ultraserver
    if allocation.phase is Phase.BOUND:
        shown = None if whole is None or whole.tag is None else whole.tag.allocation_id
        yield "TagLost", None if whole is None else shown == allocation.allocation_id
        yield "ShapeChanged", None if whole is None or not asked else whole.kind == asked
        if workload.moves_on_cordon:
            yield "NodeCordoned", None if node is None else node.schedulable


def template_kind(context: PlanningContext, workload: Workload) -> str:
    """Return the resourceType that the workload's template requests, neuron_node or neuron_device; empty if unknown."""
    kinds = {each.kind for each in context.index.templates_of(workload.uid) if not each.deleting} - {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _cordons_and_taints(context: PlanningContext, one: Reservation) -> Iterable[NodeFault]:
    """Yield cordoned and tainted nodes. A taint that all nodes of a group have is deliberate, and no fault."""
    known = (context.nodes.get(name) for name in one.allocation.nodes)
    nodes = [node for node in known if node is not None]
    of_all = set.intersection(*(set(node.taints) for node in nodes)) if nodes else set()
    for node in nodes:
        if not node.schedulable:
            yield NodeFault("NodeCordoned", node.name, None)
        elif {*node.taints} - of_all:
            yield NodeFault("NodeTainted", node.name, None)


def node_faults(context: PlanningContext, workload: Workload, one: Reservation) -> list[NodeFault]:
    """Return the faults of a slot's nodes.

    No grace period begins before the end of the last outage. A Node that is gone or was replaced is acted on at once;
    NodeNotReady after `node_failure_grace`; recorded faults after `fault_grace`, TagLost also after the tag timeout;
    the others are only reported.
    """
    holdings, allocation = context.holdings, one.allocation
    calm = outage.over_since(workload, context.now)
    found = []
    for name in allocation.nodes:
        node = context.nodes.get(name)
        published = holdings.published(name, allocation)
        if node is None:
            found.append(NodeFault("NodeGone", name, context.now))
        elif not holdings.is_there(name, allocation):
            found.append(NodeFault("NodeReplaced", name, context.now))
        elif not node.ready:
            since = max(node.ready_changed, calm)
            found.append(NodeFault("NodeNotReady", name, since + context.limits.node_failure_grace))
        if not (published and published.kind) and holdings.is_there(name, allocation):
            found.append(NodeFault("SliceMissing", name, None))
    seen = {*current_faults(context, workload, one)} if allocation.faults else set()
    for fault in allocation.faults:
        since = max(decode.time(fault.since), calm)
        if fault.reason == "TagLost":
            since += context.limits.tag_timeout  # a plugin that restarts may publish without its tag at first
            context.look_again(since)
            if context.now < since:
                continue
        acts = (fault.node, fault.reason) in seen and _acts(workload, fault.reason)
        found.append(NodeFault(fault.reason, fault.node, since + context.limits.fault_grace if acts else None))
    noted = {(each.reason, each.name) for each in found}
    found += [each for each in _cordons_and_taints(context, one) if (each.reason, each.name) not in noted]
    found += [NodeFault("ForeignClaim", use.holder, None) for use in holdings.foreign(allocation)]
    return found


def _acts(workload: Workload, reason: str) -> bool:
    """Return True if the workload's strategy acts on faults of this kind. NoOp is checked elsewhere."""
    return workload.strategy != "RestartAll" or FAULTS[reason].restarts


def current_faults(context: PlanningContext, workload: Workload, one: Reservation) -> Iterable[tuple[str, str]]:
    """Return the faults that nodes publish now, as node and reason, without recorded ones of silent nodes."""
    return ((fault.node, fault.reason) for fault in _faults(context, workload, one.changed(faults=())))


def faulty_slots(context: PlanningContext, workload: Workload) -> set[str]:
    """Return the allocationIds of the bound slots on which the workload's strategy acts now.

    None for the strategy NoOp, and none in an outage. The times of faults whose grace period has not ended are added to
    the context.
    """
    if workload.strategy not in ("RestartAll", "MigrateAffected") or context.outage is not None:
        return set()
    found = set()
    for one in context.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            moments = [each.acts_at for each in node_faults(context, workload, one) if each.acts_at is not None]
            for moment in moments:
                context.look_again(moment)
            if moments and min(moments) <= context.now:
                found.add(one.allocation.allocation_id)
    return found


def degradation(context: PlanningContext, workload: Workload, *more: str) -> tuple[str, str] | None:
    """Return the faults of nodes on which pods of the workload may run; None without any.

    The result is the reason and the message of the condition Degraded. The reason is that of the worst fault
    (FAULTS), unless the limit of restarts outranks it; `more` texts are added to the message.
    """
    holdings = context.holdings
    leaving = holdings.leaving(workload.uid)
    bound = [each for each in holdings.of(workload.uid) if each.allocation.phase is Phase.BOUND]
    found = [trouble for each in (*bound, *leaving) for trouble in node_faults(context, workload, each)]
    reasons = [reason for reason in FAULTS if any(trouble.reason == reason for trouble in found)]
    unschedulable = context.known.unschedulable.get(workload.uid, "") if bound else ""
    if not (reasons or unschedulable):
        return None
    texts = []
    for reason in reasons:
        names = list(dict.fromkeys(trouble.name for trouble in found if trouble.reason == reason))
        texts.append(f"{FAULTS[reason].text}: {shortened(names)}")
    reason, prospect = _outlook(context, workload, [t for t in found if t.acts_at is not None], bound)
    return reason or (*reasons, UNSCHEDULABLE)[0], join_texts(*texts, unschedulable, prospect, *more)


def _outlook(
    context: PlanningContext, workload: Workload, found: list[NodeFault], bound: list[Reservation]
) -> tuple[str, str]:
    """Return what the strategy does, and when, as a message. The reason is empty unless it outranks the faults."""
    moments = [trouble.acts_at for trouble in found if trouble.acts_at is not None]
    if not moments:
        return "", ""
    if context.outage is not None:
        return "", context.outage.message
    if workload.strategy == "NoOp":
        return "", "failureStrategy NoOp only reports it: to leave the node, delete the workload and create it again"
    if min(moments) > context.now:
        return "", f"{workload.strategy} acts at {objects.time(min(moments))} if the fault lasts until then"
    if workload.strategy == "RestartAll" and workload.restarting is None:
        return restart_limit.reason_to_wait(context, workload, bound)
    return "", ""


# -- MigrateAffected ---------------------------------------------------------------------------------------------------


def replace(
    context: PlanningContext, workload: Workload, indices: set[int], kind: str | None, near: Iterable[placement.Slot]
) -> placement.Shortage | None:
    """Reserve a replacement for each slot with a fault that has none: for all of them or for none.

    - `indices`: indices of the slots with a fault.
    - `kind`: the resourceType that the nodes must publish; None for any.
    - `near`: slots near which the new ones should be.

    Returns why there is none, or None.
    """
    holdings = context.holdings
    coming = {each.allocation.ultraserver_index for each in holdings.pending(workload.uid)}
    wanted = sorted(indices - coming)
    if not wanted:
        return None
    free = context.free_slots.free(workload.instance_type, workload.size)
    chosen = places.choose(free, len(wanted), kind=kind, near=tuple(near))
    if chosen is None:
        return _in_place(context, workload, wanted) or context.free_slots.shortage(workload, len(wanted))
    for index, slot in zip(wanted, chosen, strict=True):
        holdings.reserve(workload, index, slot, context.now)
    return None


def _in_place(context: PlanningContext, workload: Workload, wanted: list[int]) -> placement.Shortage | None:
    """Drain the slots first if their only fault is that instances were replaced in place, and no spare group exists.

    The same slots are then reserved again. Returns None if that does not help.
    """
    live = context.holdings.live(workload.uid)
    slots = [live[index] for index in wanted]
    for one in slots:
        reasons = {each.reason for each in node_faults(context, workload, one) if each.acts_at is not None}
        own = context.free_slots.of_nodes({*one.allocation.nodes}, workload.instance_type, workload.size)
        if reasons != {"NodeReplaced"} or context.holdings.foreign(one.allocation) or not own:
            return None
    for one in slots:
        context.holdings.drain(one)
    names = tuple(name for one in slots for name in one.allocation.nodes)
    text = f"no spare group: releasing nodes to reserve them again: {shortened(names)}"
    return placement.Shortage("WaitingForRelease", text)


def drain_replaced(context: PlanningContext, workload: Workload, indices: set[int]) -> set[int]:
    """Drain each slot whose replacement shows its tags, and return the indices.

    `indices` are those of slots with a fault; if the fault has ended, the slot stays. A slot whose pods are on dead
    nodes only stays Bound: its nodes may come back.
    """
    closed = set()
    coming = {each.allocation.ultraserver_index: each for each in context.holdings.pending(workload.uid)}
    for index, one in context.holdings.live(workload.uid).items():
        answered = index in indices and index in coming and context.holdings.has_tags(coming[index].allocation)
        if answered and releasing.pods_on_dead_nodes(context, (one,)) is None:
            context.holdings.drain(one)
            closed.add(index)
    return closed


def blocked_by_dead_nodes(context: PlanningContext, workload: Workload) -> tuple[str, str] | None:
    """Return why slots with a replacement cannot drain yet, as a reason and a message; None if they can."""
    coming = {each.allocation.ultraserver_index for each in context.holdings.pending(workload.uid)}
    live = context.holdings.live(workload.uid)
    old = [one for index, one in live.items() if index in coming and one.allocation.phase is Phase.BOUND]
    found = (releasing.pods_on_dead_nodes(context, (one,)) for one in old)
    return next((each for each in found if each is not None), None)


def describe_moves(context: PlanningContext, workload: Workload) -> str:
    """Return a message that names each slot and its replacement."""
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
                    "until they are recreated"
                )
    return join_texts(*texts)
