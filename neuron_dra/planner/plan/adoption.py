"""Adopts reservations without ids: those of AWS's operator, and ours from which a CRD of AWS's dropped them. Pure.

They get the ids that they lack, if their workload is certain.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import replace

from neuron_dra.core.ultraserver import Allocation, Phase, Tag, UnreadAllocation
from neuron_dra.planner.decisions.objects import time
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.observed.model import Reservation, Workload


def adopt_entries(index: FleetIndex, holdings: Holdings, now: datetime.datetime) -> dict[str, Exception]:
    """Give ids to the entries of AWS's operator whose workload is certain.

    The other entries stay unchanged, with the reason; their nodes stay reserved. Return the errors about single
    entries, by UltraServer.
    """
    errors: dict[str, Exception] = {}
    workloads = {workload.ref: workload for workload in index.workloads}
    for ultraserver_name, unread in sorted(index.evidence.unread.items()):
        still_unread: list[UnreadAllocation] = []
        adopted: list[Reservation] = []
        for unread_entry in unread:
            workload = workloads.get(unread_entry.official.workload) if unread_entry.official else None
            try:
                other_reservations = [*holdings.of(workload.uid), *adopted] if workload else adopted
                allocation_or_entry = _adopted(unread_entry, workload, other_reservations, index, ultraserver_name, now)
            except Exception as err:
                errors[ultraserver_name] = err
                allocation_or_entry = unread_entry
            if isinstance(allocation_or_entry, UnreadAllocation):
                still_unread.append(allocation_or_entry)
            else:
                adopted.append(Reservation(ultraserver_name, allocation_or_entry))
        holdings.adopt(ultraserver_name, still_unread, adopted)
    return errors


def _adopted(
    unread_entry: UnreadAllocation,
    workload: Workload | None,
    other_reservations: Iterable[Reservation],
    index: FleetIndex,
    ultraserver: str,
    now: datetime.datetime,
) -> UnreadAllocation | Allocation:
    """Return the allocation in an entry of AWS's operator, or the entry with why it is not adopted.

    AWS's operator tags no nodes. If the nodes of an entry have a tag of its workload, then the entry is ours, and a CRD
    of AWS's has dropped its ids.
    """
    official = unread_entry.official
    if official is None:
        return unread_entry
    derived = _derived_id(official, index, ultraserver)
    if workload is None and not any(node_name in index.node_by_name for node_name in official.nodes):
        return _identified(official, official.workload_uid or derived, derived, index, now)  # nothing is left of it
    tag = _shown(index, official)
    another = tag is not None and (workload is None or workload.uid != tag.workload_uid)
    if tag is not None and another and official.workload_uid in ("", tag.workload_uid):
        # Of a workload that is gone, and not of the next one with its name: it is released.
        # A tag alone does not say that a workload of another name has the slot.
        tagged_allocation = _identified(official, tag.workload_uid, tag.allocation_id, index, now)
        return replace(tagged_allocation, only_shown=True)
    copied = _ids_in_status(workload, official) if workload else set()
    why = _why_not_adopted(
        official, workload, other_reservations, proven=bool(copied) or (tag is not None and not another)
    )
    if workload is None or why:
        return replace(unread_entry, problem=why)
    ids = _ids_in_tags(index, workload, official) or copied
    return _identified(official, workload.uid, ids.pop() if len(ids) == 1 else derived, index, now)


def _shown(index: FleetIndex, official: Allocation) -> Tag | None:
    """Return the tag that nodes of an entry show; None if none of them shows one, or if it is unclear which counts.

    A dead node shows its last tag permanently.
    """
    tags_by_ids: dict[tuple[str, str], Tag] = {}
    for node_name in official.nodes:
        node, published = index.node_by_name.get(node_name), index.published_by_name.get(node_name)
        lives = node is not None and node.ready and not node.out_of_service
        if node is None or published is None or published.tag is None or not lives:
            continue
        if published.node_uid in ("", node.uid):
            tags_by_ids[published.tag.workload_uid, published.tag.allocation_id] = published.tag
    tags = list(tags_by_ids.values())
    return tags[0] if len(tags) == 1 and tags[0].workload == official.workload else None


def _why_not_adopted(
    official: Allocation, workload: Workload | None, other_reservations: Iterable[Reservation], *, proven: bool
) -> str:
    """Return why the workload of an entry is not certain; empty if it is.

    It is certain if the workload exists, has the entry's UID (if it has one), needs the entry's index and size, and has
    no other group with this index. Index and size do not matter if the nodes show that the entry is the workload's
    (`proven`), if no pod may start there any more or yet, and if the workload is being deleted: what the workload does
    not need is released then. The workload's own copy is a proof, too.
    """
    entry = f"the entry of AWS's operator for {official.workload}, group {official.ultraserver_index},"
    if workload is None:
        return f"{entry} names a NeuronUltraServerWorkload that does not exist"
    if official.workload_uid not in ("", workload.uid):
        return f"{entry} has workload UID {official.workload_uid}, and the workload's is {workload.uid}"
    if proven or workload.deleting or official.phase is not Phase.BOUND:
        return ""
    held_indices = {
        (reservation.allocation.holder, reservation.allocation.ultraserver_index) for reservation in other_reservations
    }
    if (workload.uid, official.ultraserver_index) in held_indices:
        return f"{entry} has the index of another group of the workload"
    if official.ultraserver_index >= workload.count:
        return f"{entry} has an index beyond spec.serverCount {workload.count}"
    if official.node_count != workload.size:
        return f"{entry} has {official.node_count} nodes, and spec.topologySize is {workload.size}"
    return ""


def _identified(
    official: Allocation, workload_uid: str, allocation_id: str, index: FleetIndex, now: datetime.datetime
) -> Allocation:
    """Return the allocation with these ids, and the UIDs of its nodes."""
    nodes = index.node_by_name
    all_nodes_exist = all(node_name in nodes for node_name in official.nodes)
    return replace(
        official,
        workload_uid=workload_uid,
        allocation_id=allocation_id,
        node_uids=tuple(nodes[node_name].uid for node_name in official.nodes) if all_nodes_exist else (),
        allocated_at=time(now) if official.phase is Phase.PENDING else official.allocated_at or time(now),
    )


def _derived_id(official: Allocation, index: FleetIndex, ultraserver: str) -> str:
    """Return an allocationId that is derived from the entry, so that each plan derives the same."""
    ultraserver_uid = index.ultraserver_by_name[ultraserver].uid
    parts = (
        ultraserver_uid,
        official.workload,
        str(official.ultraserver_index),
        official.allocated_at,
        *official.nodes,
    )
    return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def _ids_in_tags(index: FleetIndex, workload: Workload, official: Allocation) -> set[str]:
    """Return the ids that the nodes show of a reservation for the workload that is not being released."""
    allocation_ids = set()
    for node_name in official.nodes:
        published = index.published_by_name.get(node_name)
        tag = published.tag if published is not None else None
        if tag is None or tag.workload_uid != workload.uid:
            continue
        if tag.phase is not Phase.DRAINING or official.phase is Phase.DRAINING:
            allocation_ids.add(tag.allocation_id)
    return allocation_ids


def _ids_in_status(workload: Workload, official: Allocation) -> set[str]:
    """Return the ids that the workload's own status has for these nodes."""
    place = (official.ultraserver_index, official.nodes)
    allocation_ids = set()
    for record in workload.groups:
        if (record["ultraserverIndex"], tuple(record["nodes"])) == place:
            allocation_ids.add(record["allocationId"])
    return allocation_ids
