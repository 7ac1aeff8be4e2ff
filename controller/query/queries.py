"""The answers of the gRPC service UltraServers, from a Snapshot. Pure: no server, no clock.

`Plan` calls the controller's own `planning.plan`, with one workload added or changed, and with the NeuronUltraServers
that the controller creates first (`dry_run`).
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.observe import decode
from controller.observe.discovery import Group, discover
from controller.observe.model import API_VERSION, GROUPS_AT_MOST, SLOT_SIZES, Snapshot, Workload
from controller.plan import objects, placement
from controller.plan.actions import Plan, WriteUltraServerStatus
from controller.plan.fleet_index import FleetIndex
from controller.plan.holdings import Holdings
from controller.plan.planning import Limits
from controller.query import dry_run, plan_text
from neuron_dra.core import catalogue
from neuron_dra.core.ultraserver import Allocation, Phase, decode_allocations
from neuron_dra.core.wire import Wire
from neuron_dra.errors import NeuronDraError
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb

DRY_RUN: Final = "dry-run"
"""Name and UID of a workload that only exists in a dry run."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class BadRequest(NeuronDraError):
    """An invalid request; the message says what to write."""


# -- ListUltraServers --------------------------------------------------------------------------------------------------


def ultraservers(snapshot: Snapshot, request: pb.ListUltraServersRequest) -> pb.ListUltraServersResponse:
    """Return every UltraServer of the requested type, or of all types."""
    holdings = Holdings(FleetIndex.of(snapshot))
    wanted = [each for each in discover(snapshot) if request.instance_type in ("", each.instance_type)]
    return pb.ListUltraServersResponse(ultraservers=[_ultraserver(each, holdings) for each in wanted])


def _ultraserver(group: Group, holdings: Holdings) -> pb.UltraServer:
    return pb.UltraServer(
        name=group.name,
        ultraserver_id=group.ultraserver_id,
        instance_type=group.instance_type,
        topology_sizes=group.sizes,
        nodes=[_node(entry, group, holdings) for entry in group.topology],
        reservations=[_reservation(group.name, each.allocation) for each in holdings.at(group.name)],
        free_nodes=group.free_nodes(holdings),
        free_groups=[
            pb.FreeGroups(topology_size=size, count=len(placement.slots([group], holdings, group.instance_type, size)))
            for size in group.sizes
        ],
        problems=[pb.Problem(reason=each.reason, message=each.message) for each in group.problems],
    )


def _link(status: str | None) -> pb.Link.ValueType:
    return {"up": pb.LINK_UP, "down": pb.LINK_DOWN}.get(status or "", pb.LINK_UNKNOWN)


def _node(entry: Wire, group: Group, holdings: Holdings) -> pb.Node:
    state, holder = _state(entry["nodeName"], group, holdings)
    return pb.Node(
        name=entry["nodeName"],
        node_id=entry["nodeId"],
        state=state,
        vertical=_link(entry.get("linkStatusVertical")),
        horizontal=_link(entry.get("linkStatusHorizontal")),
        holder=holder,
    )


def _state(name: str, group: Group, holdings: Holdings) -> tuple[pb.NodeState.ValueType, str]:
    """Return the state of a node, and the workload, pod or claim that has it."""
    reservation = next((each for each in holdings.at(group.name) if name in each.allocation.nodes), None)
    if reservation is not None:
        return pb.NODE_STATE_RESERVED, reservation.allocation.workload
    uses = holdings.uses([name])
    if uses:
        return pb.NODE_STATE_IN_USE, uses[0].holder
    usable = name in {node.name for node in group.usable.values()}
    return pb.NODE_STATE_FREE if usable else pb.NODE_STATE_UNUSABLE, ""


def _reservation(ultraserver: str, allocation: Allocation) -> pb.Reservation:
    return pb.Reservation(
        workload=allocation.workload,
        ultraserver=ultraserver,
        ultraserver_index=allocation.ultraserver_index,
        phase=allocation.phase.value,
        nodes=allocation.nodes,
        allocation_id=allocation.allocation_id,
    )


# -- Plan --------------------------------------------------------------------------------------------------------------


def plan(snapshot: Snapshot, request: pb.PlanRequest, now: datetime.datetime, limits: Limits) -> pb.PlanResponse:
    """Return the controller's plan at `now`, with reasons. Raises BadRequest."""
    tried = _tried(snapshot, request.workload, now) if request.HasField("workload") else None
    if tried is not None:
        others = tuple(each for each in snapshot.workloads if each.uid != tried.uid)
        snapshot = replace(snapshot, workloads=(*others, tried))
    snapshot, made = dry_run.plan(snapshot, now, limits)
    shown = sorted(snapshot.workloads, key=lambda each: each.ref) if tried is None else [tried]
    after = _After.of(snapshot, made)
    return pb.PlanResponse(
        workloads=[_planned(each, made, after) for each in shown],
        writes=[
            plan_text.describe(action) for action in made.actions if tried is None or {tried.uid} <= set(action.owners)
        ],
        looks_again_at="" if made.recheck is None else objects.time(made.recheck),
    )


def _tried(snapshot: Snapshot, asked: pb.Workload, now: datetime.datetime) -> Workload:
    """Return the workload of the request. Raises BadRequest."""
    namespace, name = asked.namespace or "default", asked.name or DRY_RUN
    for field, text in (("namespace", namespace), ("name", name)):
        if not _LABEL.fullmatch(text):
            raise BadRequest(
                f"workload.{field} {text[:80]!r}: write a name of at most 63 lower-case letters, digits and '-'"
            )
    if asked.topology_size not in SLOT_SIZES:
        raise BadRequest(
            f"workload.topology_size {asked.topology_size}: write 1, 2 or 4, the number of nodes that work together in "
            "one UltraServer"
        )
    if not 1 <= asked.server_count <= GROUPS_AT_MOST:
        raise BadRequest(
            f"workload.server_count {asked.server_count}: write how many groups of {asked.topology_size} nodes, 1 to "
            f"{GROUPS_AT_MOST}"
        )
    _check_type(snapshot, asked.instance_type)
    existing = next((each for each in snapshot.workloads if (each.namespace, each.name) == (namespace, name)), None)
    if existing is None:
        meta = {"namespace": namespace, "name": name, "uid": DRY_RUN, "creationTimestamp": objects.time(now)}
        spec = {
            "instanceType": asked.instance_type,
            "topologySize": asked.topology_size,
            "serverCount": asked.server_count,
        }
        return decode.workload({"apiVersion": API_VERSION, "metadata": meta, "spec": spec})
    if existing.deleting or (existing.instance_type, existing.size) != (asked.instance_type, asked.topology_size):
        what = "is being deleted" if existing.deleting else f"exists with {existing.size} x {existing.instance_type}"
        raise BadRequest(
            f"workload {existing.ref} {what}: only its server_count can change; write another name for another workload"
        )
    return replace(existing, count=asked.server_count)


def _check_type(snapshot: Snapshot, name: str) -> None:
    """Raise BadRequest for a type that has no UltraServers, neither in the catalogue nor in the cluster."""
    here = sorted({group.instance_type for group in discover(snapshot)})
    known = catalogue.lookup(name) if name else None
    if name in here or (known is not None and known.whole_node):
        return
    example = here or ["trn3.48xlarge", "trn2u.48xlarge"]
    what = "has no UltraServers" if known is not None else "is not known" if name else "is missing"
    raise BadRequest(
        f"workload.instance_type{f' {name[:80]}' if name else ''} {what}: write the type of UltraServer nodes, such as "
        f"{' or '.join(example[:4])}" + (", which are here" if here else "")
    )


@dataclass(frozen=True, slots=True)
class _After:
    """The cluster after the plan's writes.

    `held` are the reservations of each workload with their UltraServers, `stored` the allocationIds from before the
    plan, `taken` the nodes with a reservation or a claim.
    """

    groups: Sequence[Group]
    held: Mapping[str, Sequence[tuple[str, Allocation]]]
    stored: frozenset[str]
    taken: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot, made: Plan) -> _After:
        at = {each.name: tuple(one.allocation for one in each.reservations) for each in snapshot.ultraservers}
        stored = frozenset(each.allocation_id for found in at.values() for each in found)
        for action in made.actions:
            if isinstance(action, WriteUltraServerStatus):
                at[action.name] = decode_allocations({"status": action.status})
        held: dict[str, list[tuple[str, Allocation]]] = {}
        for name, found in at.items():
            for each in found:
                held.setdefault(each.workload_uid, []).append((name, each))
        reserved = {node for found in at.values() for each in found for node in each.nodes}
        return cls(discover(snapshot), held, stored, frozenset(reserved.union(*(use.nodes for use in snapshot.claims))))


def _planned(workload: Workload, made: Plan, after: _After) -> pb.PlannedWorkload:
    """Return the plan's result for one workload."""
    mine = sorted(after.held.get(workload.uid, ()), key=lambda pair: (pair[1].ultraserver_index, pair[1].allocation_id))
    live = {each.ultraserver_index for _, each in mine if each.phase is not Phase.DRAINING}
    missing = sum(index not in live for index in range(workload.count))
    fits = not workload.deleting and not missing
    verdict = made.verdicts.get(workload.uid)
    answer = pb.PlannedWorkload(
        namespace=workload.namespace,
        name=workload.name,
        instance_type=workload.instance_type,
        topology_size=workload.size,
        server_count=workload.count,
        fits=fits,
        reservations=[_reservation(name, each) for name, each in mine],
    )
    for reservation in answer.reservations:
        if reservation.allocation_id not in after.stored:
            reservation.ClearField("allocation_id")
    if verdict is not None:
        answer.state, answer.reason, answer.message = verdict.state, verdict.reason, verdict.message
        if verdict.degraded is not None:
            answer.degraded.CopyFrom(pb.Problem(reason=verdict.degraded[0], message=verdict.degraded[1]))
    if not fits and not workload.deleting:
        answer.shortage.CopyFrom(_shortage(workload, missing, after.groups, after.taken))
    return answer


def _shortage(workload: Workload, missing: int, groups: Iterable[Group], taken: frozenset[str]) -> pb.Shortage:
    """Return the numbers of what a workload lacks."""
    mine = [group for group in groups if group.instance_type == workload.instance_type]
    slots = placement.slots(mine, taken, workload.instance_type, workload.size)
    free = placement.most_of_a_kind(Counter(slot.kind for slot in slots))
    return pb.Shortage(
        groups_missing=missing,
        groups_free=free,
        nodes_short=max(0, missing - free) * workload.size,
        nodes_free=sum(group.free_nodes(taken) for group in mine),
        nodes_total=sum(len(group.topology) for group in mine),
    )
