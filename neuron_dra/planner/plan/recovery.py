"""Finds faults of a workload's nodes: which there are, since when, and what its failureStrategy does about them. Pure.

Fault start times come from the objects, so they survive the controller: the Node's Ready condition, and `faults` in the
allocation for what nodes publish. A fault that ends and returns starts again. Missing information neither starts nor
ends a fault.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.ultraserver import Fault, Phase, object_name
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import outage, placement
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import (
    ENDS_SOON,
    ClaimUse,
    ClusterNode,
    PublishedNode,
    Reservation,
    Workload,
    condition,
    shortened,
)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: what messages say of it, and whether every strategy acts on it.

    Some do not where a fault may concern every node at once: a driver rollback drops every tag.
    """

    text: str
    of_one_node: bool = True


FAULTS: Final[Mapping[str, FaultKind]] = {
    Reason.NODE_GONE: FaultKind("nodes are gone"),
    Reason.NODE_REPLACED: FaultKind("nodes were replaced by others with the same name"),
    Reason.NODE_NOT_READY: FaultKind("nodes are not Ready"),
    Reason.NODE_UNHEALTHY: FaultKind("nodes that agents report as unhealthy"),
    Reason.ULTRASERVER_CHANGED: FaultKind("nodes that now publish another UltraServer", of_one_node=False),
    Reason.TAG_LOST: FaultKind(
        "nodes whose devices no longer show the reservation, so that no pod can start there", of_one_node=False
    ),
    Reason.SHAPE_CHANGED: FaultKind(
        "nodes that publish other devices than the ResourceClaimTemplate requests", of_one_node=False
    ),
    Reason.DEVICE_UNHEALTHY: FaultKind("nodes with unhealthy or missing devices"),
    Reason.LINK_DOWN: FaultKind("links that the group needs are down on"),
    Reason.NODE_CORDONED: FaultKind("cordoned nodes, where no pod can start", of_one_node=False),
    Reason.NODE_TAINTED: FaultKind("tainted nodes, where only pods that tolerate the taint can start"),
    Reason.SLICE_MISSING: FaultKind("nodes that publish no ResourceSlice"),
    Reason.FOREIGN_CLAIM: FaultKind("claims of other pods are allocated on nodes of this workload; delete these pods"),
}
"""The faults of a reserved node by reason, the worst first."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of a node of a slot.

    `reason` is a key of FAULTS, `name` the Node's. The strategy acts on the fault at `acts_at`; None means never.
    """

    reason: str
    name: str
    acts_at: datetime.datetime | None


def noted(view: View) -> View:
    """Return the view in which the workload's bound slots have the times when the faults of their nodes began.

    The times are part of the allocation in the NeuronUltraServer, so another replica continues the grace periods.
    """
    reservations = Held(tuple(_with_faults(view, reservation) for reservation in view.held))
    return view if reservations == view.held else view.having(reservations)


def _with_faults(view: View, reservation: Reservation) -> Reservation:
    """Return a slot with its faults, if it is Bound; they do not matter in another one."""
    if reservation.allocation.phase is not Phase.BOUND:
        return reservation
    faults = tuple(_faults(view, reservation))
    return reservation if faults == reservation.allocation.faults else reservation.changed(faults=faults)


def _faults(view: View, reservation: Reservation) -> Iterable[Fault]:
    """Yield the faults of a slot's nodes, each with its recorded start time, or `now` for a new one.

    A fault whose state is unknown stays if it was recorded.
    """
    allocation = reservation.allocation
    recorded = {(fault.node, fault.reason): fault for fault in allocation.faults}
    published_or_none = (view.sight.published(node_name, allocation) for node_name in allocation.nodes)
    slot = [published for published in published_or_none if published is not None]
    requested_kind = view.template_kind
    for node_name in allocation.nodes:
        for reason, is_fine in _checks(view, reservation, node_name, slot, requested_kind):
            before = recorded.get((node_name, reason))
            if is_fine is False:
                yield before or Fault(node_name, str(reason), objects.time(view.now))
            elif is_fine is None and before:
                yield before


def _checks(
    view: View, reservation: Reservation, node_name: str, slot: Sequence[PublishedNode], requested_kind: str
) -> Iterable[tuple[str, bool | None]]:
    """Yield the faults that a reserved node could have, each with True if the node is fine and None if it is unknown.

    `slot` are the nodes of the slot that publish; `requested_kind` is the resourceType in the workload's template.
    """
    allocation = reservation.allocation
    node, published = view.sight.node(node_name), view.sight.published(node_name, allocation)
    whole = published if published is not None and published.complete and published.kind else None
    yield Reason.NODE_UNHEALTHY, _is_well(node) if view.sight.is_there(node_name, allocation) else None
    yield Reason.DEVICE_UNHEALTHY, None if whole is None else not whole.device_faults
    yield Reason.LINK_DOWN, None if whole is None else placement.links_up(whole, allocation.node_count, slot)
    identity = None if whole is None else whole.ultraserver_id
    yield Reason.ULTRASERVER_CHANGED, None if identity is None else object_name(identity) == reservation.ultraserver
    if allocation.phase is Phase.BOUND:
        shown_id = None if whole is None or whole.tag is None else whole.tag.allocation_id
        yield Reason.TAG_LOST, None if whole is None else shown_id == allocation.allocation_id
        yield Reason.SHAPE_CHANGED, None if whole is None or not requested_kind else whole.kind == requested_kind
        if view.workload.moves_on_cordon:
            yield Reason.NODE_CORDONED, None if node is None else node.schedulable


def _is_well(node: ClusterNode | None) -> bool | None:
    """Return True if no agent reports a fault of the node; None shortly after, because it may be back at once."""
    if node is None or node.recovering:
        return None
    return not node.reported


def _cordons_and_taints(view: View, reservation: Reservation) -> Iterable[NodeFault]:
    """Yield cordoned and tainted nodes. A taint that all nodes of a group have is deliberate, and no fault."""
    nodes_or_none = (view.sight.node(node_name) for node_name in reservation.allocation.nodes)
    nodes = [node for node in nodes_or_none if node is not None]
    of_all = set.intersection(*(set(node.taints) for node in nodes)) if nodes else set()
    for node in nodes:
        if not node.schedulable:
            yield NodeFault(Reason.NODE_CORDONED, node.name, None)
        elif {*node.taints} - of_all:
            yield NodeFault(Reason.NODE_TAINTED, node.name, None)


def node_faults(view: View, reservation: Reservation) -> list[NodeFault]:
    """Return the faults of a slot's nodes.

    No grace period begins before the end of the last outage. A Node that is gone or was replaced is acted on at once;
    NodeNotReady after `node_failure_grace`; recorded faults after `fault_grace`, TagLost also after the tag timeout;
    the others are only reported.
    """
    allocation = reservation.allocation
    calm = outage.over_since(view.workload, view.now)
    # A restart of everything would find no place: the rest of the block ends, too.
    acts_on_loss = view.strategy.on_every_fault or not is_taken_back(view.workload)
    faults = []
    for node_name in allocation.nodes:
        node = view.sight.node(node_name)
        published = view.sight.published(node_name, allocation)
        if node is None:
            faults.append(NodeFault(Reason.NODE_GONE, node_name, view.now if acts_on_loss else None))
        elif not view.sight.is_there(node_name, allocation):
            faults.append(NodeFault(Reason.NODE_REPLACED, node_name, view.now))
        elif not node.ready:
            since = max(node.ready_changed, calm)
            moment = since + view.limits.node_failure_grace
            faults.append(NodeFault(Reason.NODE_NOT_READY, node_name, moment if acts_on_loss else None))
        if not (published and published.kind) and view.sight.is_there(node_name, allocation):
            faults.append(NodeFault(Reason.SLICE_MISSING, node_name, None))
    current = {*current_faults(view, reservation)} if allocation.faults else set()
    for fault in allocation.faults:
        since = max(decode.time(fault.since), calm, _last_reported(view, fault))
        if fault.reason == Reason.TAG_LOST:
            since += view.limits.tag_timeout  # a plugin that restarts may publish without its tag at first
            view.sight.look_again(since)
            if view.now < since:
                continue
        acts = (fault.node, fault.reason) in current and _acts(view, fault.reason)
        faults.append(NodeFault(fault.reason, fault.node, since + view.limits.fault_grace if acts else None))
    noted_faults = {(fault.reason, fault.name) for fault in faults}
    faults += [
        fault for fault in _cordons_and_taints(view, reservation) if (fault.reason, fault.name) not in noted_faults
    ]
    holders = dict.fromkeys(_shown(use, view.workload.namespace) for use in view.sight.foreign(allocation))
    faults += [NodeFault(Reason.FOREIGN_CLAIM, holder, None) for holder in holders]
    return faults


def _shown(use: ClaimUse, reader: str) -> str:
    """Return the pod of a foreign claim for a message in the namespace `reader`; that of another by its nodes."""
    holder = use.holder(reader)
    return holder if use.namespace == reader else f"{holder} on {shortened(use.nodes)}"


def is_taken_back(workload: Workload) -> bool:
    """Return True if nodes of a workload are expected to vanish, because the end of their capacity block was told."""
    return condition(workload.status, ENDS_SOON).get("status") == "True"


def _last_reported(view: View, fault: Fault) -> datetime.datetime:
    """Return when agents began to report a fault without a pause: one that pauses has not lasted.

    EPOCH for other faults, and if this controller did not see it begin.
    """
    node = view.sight.node(fault.node) if fault.reason == Reason.NODE_UNHEALTHY else None
    return node.reported_since or decode.EPOCH if node is not None else decode.EPOCH


def _acts(view: View, reason: str) -> bool:
    """Return True if the workload's strategy acts on faults of this kind, should it act on any."""
    return view.strategy.on_every_fault or FAULTS[reason].of_one_node


def current_faults(view: View, reservation: Reservation) -> Iterable[tuple[str, str]]:
    """Return the faults that nodes publish now, as node and reason, without recorded ones of silent nodes."""
    return ((fault.node, fault.reason) for fault in _faults(view, reservation.changed(faults=())))


def faulty_slots(view: View) -> set[str]:
    """Return the allocationIds of the bound slots on which the workload's strategy acts now.

    None if it acts on no fault, and none in an outage. The plan is made again when a grace period ends.
    """
    if not view.strategy.acts or view.sight.outage is not None:
        return set()
    allocation_ids = set()
    for reservation in view.held.bound:
        moments = [fault.acts_at for fault in node_faults(view, reservation) if fault.acts_at is not None]
        for moment in moments:
            view.sight.look_again(moment)
        if moments and min(moments) <= view.now:
            allocation_ids.add(reservation.allocation.allocation_id)
    return allocation_ids
