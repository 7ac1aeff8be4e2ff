"""Adopts reservations of AWS's operator: gives them the ids that they lack, if their workload is certain. Pure."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import replace

from controller.observe.model import Reservation, Workload
from controller.plan.fleet_index import FleetIndex
from controller.plan.holdings import Holdings
from controller.plan.objects import time
from neuron_dra.core.ultraserver import Allocation, Phase, Unread


def adopt_entries(index: FleetIndex, holdings: Holdings, now: datetime.datetime) -> dict[str, Exception]:
    """Give ids to the entries of AWS's operator whose workload is certain.

    The other entries stay unchanged, with the reason; their nodes stay reserved. Return the errors about single
    entries, by UltraServer.
    """
    errors: dict[str, Exception] = {}
    workloads = {each.ref: each for each in index.workloads}
    for name, unread in sorted(index.evidence.unread.items()):
        left: list[Unread] = []
        taken: list[Reservation] = []
        for one in unread:
            workload = workloads.get(one.official.workload) if one.official else None
            try:
                others = [*holdings.of(workload.uid), *taken] if workload else taken
                found = _adopted(one, workload, others, index, name, now)
            except Exception as err:
                errors[name] = err
                found = one
            if isinstance(found, Unread):
                left.append(found)
            else:
                taken.append(Reservation(name, found))
        holdings.adopt(name, left, taken)
    return errors


def _adopted(
    one: Unread,
    workload: Workload | None,
    others: Iterable[Reservation],
    index: FleetIndex,
    ultraserver: str,
    now: datetime.datetime,
) -> Unread | Allocation:
    """Return the allocation in an entry of AWS's operator, or the entry with why it is not adopted."""
    official = one.official
    if official is None:
        return one
    why = _why_not_adopted(official, workload, others)
    if workload is None or why:
        return replace(one, problem=why)
    return _with_ids(official, workload, index, ultraserver, now)


def _why_not_adopted(official: Allocation, workload: Workload | None, others: Iterable[Reservation]) -> str:
    """Return why the workload of an entry is not certain; empty if it is.

    It is certain if the workload exists, has the entry's UID (if it has one), needs the entry's index and size, and has
    no other group with this index. For a workload that is being deleted, index and size do not matter.
    """
    entry = f"the entry of AWS's operator for {official.workload}, group {official.ultraserver_index},"
    if workload is None:
        return f"{entry} names a NeuronUltraServerWorkload that does not exist"
    if official.workload_uid not in ("", workload.uid):
        return f"{entry} has workload UID {official.workload_uid}, and the workload's is {workload.uid}"
    held = {(each.allocation.workload_uid, each.allocation.ultraserver_index) for each in others}
    if (workload.uid, official.ultraserver_index) in held:
        return f"{entry} has the index of another group of the workload"
    if workload.deleting or official.phase is Phase.PENDING:
        return ""  # it is released; no pod runs in a Pending group, so one that the spec no longer has is given up
    if official.ultraserver_index >= workload.count:
        return f"{entry} has an index beyond spec.serverCount {workload.count}"
    if official.node_count != workload.size:
        return f"{entry} has {official.node_count} nodes, and spec.topologySize is {workload.size}"
    return ""


def _with_ids(
    official: Allocation, workload: Workload, index: FleetIndex, ultraserver: str, now: datetime.datetime
) -> Allocation:
    """Return the allocation with the ids that AWS's operator does not write.

    The allocationId is the one that its nodes show or the workload's copy has, if that is unambiguous: an old CRD may
    have dropped it. Otherwise it is derived from the entry, so that each plan derives the same.
    """
    nodes = index.node_by_name
    shown = _ids_in_tags(index, workload, official) or _ids_in_status(workload, official)
    uid = index.ultraserver_by_name[ultraserver].uid
    parts = (uid, official.workload, str(official.ultraserver_index), official.allocated_at, *official.nodes)
    fresh = hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]
    here = all(name in nodes for name in official.nodes)
    return replace(
        official,
        workload_uid=workload.uid,
        allocation_id=shown.pop() if len(shown) == 1 else fresh,
        node_uids=tuple(nodes[name].uid for name in official.nodes) if here else (),
        allocated_at=time(now) if official.phase is Phase.PENDING else official.allocated_at or time(now),
    )


def _ids_in_tags(index: FleetIndex, workload: Workload, official: Allocation) -> set[str]:
    """Return the ids that the nodes show of a reservation for the workload that is not being released."""
    found = set()
    for name in official.nodes:
        published = index.published_by_name.get(name)
        tag = published.tag if published is not None else None
        if tag is not None and tag.workload_uid == workload.uid and tag.phase is not Phase.DRAINING:
            found.add(tag.allocation_id)
    return found


def _ids_in_status(workload: Workload, official: Allocation) -> set[str]:
    """Return the ids that the workload's own status has for these nodes."""
    place = (official.ultraserver_index, official.nodes)
    found = set()
    for record in workload.groups:
        if (record["ultraserverIndex"], tuple(record["nodes"])) == place:
            found.add(record["allocationId"])
    return found
