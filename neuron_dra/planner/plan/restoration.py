"""Restores reservations whose NeuronUltraServer was deleted; `adoption` adopts those of AWS's operator. Pure.

Reservations are stored in the status of NeuronUltraServers. The workload's `status.groups` has a copy of nodes, order
and index, and the nodes publish the allocationId. If an object was deleted by force, its reservations are restored from
these before anything else is reserved. Entries of AWS's operator get the ids that they lack. Entries that this release
cannot read keep their nodes and stay unchanged.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.core.ultraserver import Allocation, Phase, Tag, object_name
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.objects import time
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.quota import Quota
from neuron_dra.planner.observed.model import (
    Reservation,
    Workload,
)
from neuron_dra.planner.plan.adoption import adopt_entries

_CLOSING = (Phase.DRAINING, Phase.BOUND, Phase.PENDING)
"""Nodes may show different phases. The first of these counts, because closing is always safe."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors about single objects. Their nodes are closed in this plan; all other objects are planned.

    - `workloads`: by UID; nothing is decided about them.
    - `ultraservers`: by name; each has the error among its problems.
    """

    workloads: dict[str, Exception] = field(default_factory=dict)
    ultraservers: dict[str, Exception] = field(default_factory=dict)


def restore(index: FleetIndex, holdings: Holdings, quota: Quota, now: datetime.datetime) -> Failures:
    """Add to the holdings what is reserved but not stored properly; return what could not be restored.

    Three sources in this order: entries of AWS's operator, copies in workloads, ids on nodes. Runs before any workload
    is planned, so that no node is reserved twice.
    """
    failures = Failures()
    if index.evidence.unread:
        failures.ultraservers.update(adopt_entries(index, holdings, now))
    if index.evidence.lost:
        _restore_lost(index, holdings, quota, now, failures)
    if index.evidence.unknown:
        _drain_unknown(index, holdings, now, failures)
    return failures


# -- reservations without an object ------------------------------------------------------------------------------------


def _restore_lost(
    index: FleetIndex, holdings: Holdings, quota: Quota, now: datetime.datetime, failures: Failures
) -> None:
    """Restore reservations of deleted objects from the workloads' copies."""
    lost = index.evidence.lost - {
        reservation.allocation.allocation_id
        for ultraserver_name in holdings.changed
        for reservation in holdings.at(ultraserver_name)
    }
    keys = sorted({key for allocation_id in lost for key in index.evidence.workloads_of(allocation_id)})
    for workload in (index.workload_by_key[key] for key in keys):
        reservations = holdings.of(workload.uid)
        records = [record for record in workload.groups if record["allocationId"] in lost]
        try:
            for record in records:
                _restore_copy(index, holdings, quota, workload, record, now)
        except Exception as err:
            failures.workloads[workload.uid] = err
            holdings.put(workload.uid, reservations)
            for record in records:
                _close(index, holdings, record.get("nodes"))
                _close(index, holdings, index.evidence.nodes_of(record["allocationId"]))


def _restore_copy(
    index: FleetIndex, holdings: Holdings, quota: Quota, workload: Workload, record: Wire, now: datetime.datetime
) -> None:
    """Restore the reservation of a workload's copy, if it is to be believed.

    An object that exists overrides the copy. A copy is believed only as far as the nodes show it, because users may
    write it where no admission policy prevents that:

    - All nodes show this reservation: it is restored. A Node that is gone, or was replaced, shows nothing anymore. A
      claim of the workload for reserved devices counts, too: its pod runs there, and its rank must not run twice.
    - A node shows another reservation, or none, and has no such claim: it is not restored.
    - A node publishes nothing: the nodes stay closed until it does, unless another workload's claim uses it, or the
      namespace's limit is exceeded.
    """
    stored = index.ultraserver_by_name.get(record["ultraserver"])
    if stored and stored.uid == record.get("ultraserverUid"):
        return
    if any(holdings.is_reserved(node_name) for node_name in record["nodes"]):
        return  # a node is never in two reservations
    allocation = _copied(workload, record, now)
    present_nodes = _nodes_that_are_there(index, record)
    publishing_nodes = [node_name for node_name in present_nodes if _is_published(index, node_name)]
    tags = {node_name: _shown(index, node_name, allocation) for node_name in publishing_nodes}
    nodes_with_claim = [node_name for node_name in present_nodes if _has_claim(index, node_name, allocation)]
    if any(tag is None and node_name not in nodes_with_claim for node_name, tag in tags.items()):
        return
    reservation = Reservation(record["ultraserver"], allocation)
    silent_nodes = [node_name for node_name in present_nodes if node_name not in publishing_nodes]
    if silent_nodes:
        _withhold(index, holdings, quota, workload, reservation, silent_nodes)
        return
    phases = [tag.phase for tag in tags.values() if tag is not None]
    if nodes_with_claim and not phases:
        phases = [Phase.BOUND]
    if phases:
        if record.get("draining") is not True:  # a dead node may show Bound permanently
            reservation = reservation.changed(phase=min(phases, key=_CLOSING.index))
        holdings.add(reservation)


def _close(index: FleetIndex, holdings: Holdings, nodes: Any) -> None:
    """Close nodes whose reservation could not be restored: those of them that exist and no reservation has."""
    if not isinstance(nodes, list | tuple):
        return
    for node_name in nodes:
        if not isinstance(node_name, str):
            continue
        published = index.published_by_name.get(node_name)
        if published is not None and published.ultraserver_id and not holdings.is_reserved(node_name):
            holdings.close(object_name(published.ultraserver_id), [node_name])


def _copied(workload: Workload, record: Wire, now: datetime.datetime) -> Allocation:
    """Return the allocation of a workload's copy. Its phase is Draining; what the nodes show decides."""
    return Allocation(
        workload_namespace=workload.namespace,
        workload_name=workload.name,
        workload_uid=workload.uid,
        allocation_id=record["allocationId"],
        phase=Phase.DRAINING,
        nodes=tuple(record["nodes"]),
        node_count=len(record["nodes"]),
        ultraserver_index=record["ultraserverIndex"],
        allocated_at=str(workload.status.get("allocatedAt") or time(now)),
        node_uids=tuple(record.get("nodeUids") or ()),
    )


def _nodes_that_are_there(index: FleetIndex, record: Wire) -> list[str]:
    """Return the nodes of a copy that exist and are the machines of that time."""
    node_names: list[str] = record["nodes"]
    node_uids: list[str] = record.get("nodeUids") or [""] * len(node_names)
    present_nodes = []
    for node_name, node_uid in zip(node_names, node_uids, strict=True):
        node = index.node_by_name.get(node_name)
        if node is not None and node_uid in ("", node.uid):
            present_nodes.append(node_name)
    return present_nodes


def _is_published(index: FleetIndex, node_name: str) -> bool:
    """Return True if the node publishes its devices completely, with a tag or without one."""
    published = index.published_by_name.get(node_name)
    return published is not None and published.complete


def _has_claim(index: FleetIndex, node_name: str, allocation: Allocation) -> bool:
    """Return True if the node has a claim of the reservation's workload that was made for reserved devices.

    Only the controller's template makes such claims; a user cannot, where the admission policies are installed.
    """
    return any(use.reserved_class and use.is_of(allocation) for use in index.uses(node_name))


def _withhold(
    index: FleetIndex,
    holdings: Holdings,
    quota: Quota,
    workload: Workload,
    reservation: Reservation,
    silent: Sequence[str],
) -> None:
    """Keep the nodes of a copy closed while some are silent, unless a claim or the namespace's limit contradicts it."""
    if workload.deleting:
        return  # it gets no pods any more; tags that its nodes show later are cleared as unknown ones
    allocation = reservation.allocation
    foreign_claims = [use for use in index.uses_of(silent) if not use.is_of(allocation)]
    refusal = quota.refusal(workload, [allocation.ultraserver_index], holdings.of(workload.uid))
    too_many = refusal is not None and refusal.reason == Reason.NAMESPACE_LIMIT
    if foreign_claims or (too_many and not any(_has_claim(index, node_name, allocation) for node_name in silent)):
        return
    holdings.withhold(reservation.ultraserver, workload.uid, allocation.nodes)


def _shown(index: FleetIndex, node: str, allocation: Allocation) -> Tag | None:
    """Return the node's tag if it is of this reservation and of its workload, else None."""
    published = index.published_by_name.get(node)
    tag = published.tag if published else None
    if tag is None:
        return None
    same = (tag.allocation_id, tag.workload_uid) == (allocation.allocation_id, allocation.workload_uid)
    return tag if same else None


def _drain_unknown(index: FleetIndex, holdings: Holdings, now: datetime.datetime, failures: Failures) -> None:
    """Release, as Draining, reservations that nodes show and that neither an object nor a workload has.

    Dead nodes show their last tag permanently, so only Ready nodes count. While the object is missing or being deleted,
    nothing is reserved in it anyway.
    """
    for allocation_id in sorted(index.evidence.unknown):
        # By the whole tag: a node that names another workload must not say what becomes of the nodes beside it.
        nodes_by_tag: dict[tuple[str, Tag], list[str]] = {}
        for node in index.evidence.nodes_of(allocation_id):
            published = index.published_by_name[node]
            if published.ultraserver_id and published.tag is not None:
                key = object_name(published.ultraserver_id), published.tag
                nodes_by_tag.setdefault(key, []).append(node)
        for (ultraserver_name, tag), nodes in nodes_by_tag.items():
            try:
                living_nodes = [node for node in nodes if _shows_unknown(index, holdings, node)]
                if living_nodes:
                    _drain(index, holdings, ultraserver_name, tag, living_nodes, now)
            except Exception as err:
                failures.ultraservers[ultraserver_name] = err
                _close(index, holdings, nodes)


def _shows_unknown(index: FleetIndex, holdings: Holdings, node: str) -> bool:
    """Return True if the tag of a node without a reservation is that of its living machine."""
    node_object, published = index.node_by_name.get(node), index.published_by_name[node]
    if node_object is None or holdings.is_reserved(node):
        return False
    return node_object.ready and not node_object.out_of_service and published.node_uid in ("", node_object.uid)


def _drain(
    index: FleetIndex,
    holdings: Holdings,
    ultraserver_name: str,
    tag: Tag,
    members: Sequence[str],
    now: datetime.datetime,
) -> None:
    """Add the reservation that these nodes of one UltraServer show, as Draining.

    It is nobody's: a node can show any workload's tag, and one that never removes it must not hold up that workload.
    """
    stored = index.ultraserver_by_name.get(ultraserver_name)
    if stored is None or stored.deleting:
        return
    allocation = Allocation(
        workload_namespace=tag.workload_namespace,
        workload_name=tag.workload_name,
        workload_uid=tag.workload_uid,
        allocation_id=tag.allocation_id,
        phase=Phase.DRAINING,
        nodes=tuple(members),
        node_count=len(members),
        ultraserver_index=0,
        allocated_at=time(now),
        node_uids=tuple(index.node_by_name[node].uid for node in members),
        only_shown=True,
    )
    holdings.add(Reservation(ultraserver_name, allocation))
