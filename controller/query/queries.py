"""The answers of the gRPC service UltraServers, from the controller's index. Pure: no server, no clock.

`Plan` calls the controller's own planning, with one workload added or changed, and with the NeuronUltraServers that the
controller creates first (`dry_run`). Answers are made in steps, between which the index must not change.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.query import dry_run, plan_text
from controller.query.dry_run import Grouped
from neuron_dra.core import catalogue, durations
from neuron_dra.core.ultraserver import GROUPS_AT_MOST, Allocation, Phase, decode_allocations
from neuron_dra.core.wire import Wire
from neuron_dra.errors import NeuronDraError
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Plan, WriteUltraServerStatus
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.places import Overlay
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.discovery import Group
from neuron_dra.planner.observed.model import API_VERSION, SLOT_SIZES, Workload
from neuron_dra.planner.plan.planning import ULTRASERVERS_A_STEP, Limits

DRY_RUN: Final = "dry-run"
"""Name and UID of a workload that only exists in a dry run."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class BadRequest(NeuronDraError):
    """An invalid request; the message says what to write."""


# -- ListUltraServers --------------------------------------------------------------------------------------------------


def ultraservers(
    index: FleetIndex, request: pb.ListUltraServersRequest
) -> Generator[None, None, pb.ListUltraServersResponse]:
    """Return every UltraServer of the requested type, or of all types, in steps."""
    holdings = Holdings(index)
    groups = [group for group in index.groups if request.instance_type in ("", group.instance_type)]
    answer = pb.ListUltraServersResponse()
    for number, group in enumerate(sorted(groups, key=lambda group: group.name)):
        if number % ULTRASERVERS_A_STEP == 0:
            yield
        answer.ultraservers.append(_ultraserver(group, index, holdings))
    return answer


def _ultraserver(group: Group, index: FleetIndex, holdings: Holdings) -> pb.UltraServer:
    answer = pb.UltraServer(
        name=group.name,
        ultraserver_id=group.ultraserver_id,
        instance_type=group.instance_type,
        topology_sizes=group.sizes,
        free_nodes=group.free_nodes(holdings),
    )
    answer.nodes.extend(_node(entry, group, index, holdings) for entry in group.topology)
    answer.reservations.extend(
        _reservation(group.name, reservation.allocation) for reservation in holdings.at(group.name)
    )
    for size in group.sizes:
        free = placement.slots([group], holdings, group.instance_type, size)
        answer.free_groups.add(topology_size=size, count=len(free))
    for problem in group.problems:
        answer.problems.add(reason=problem.reason, message=problem.message)
    return answer


def _link(status: str | None) -> pb.Link.ValueType:
    return {"up": pb.LINK_UP, "down": pb.LINK_DOWN}.get(status or "", pb.LINK_UNKNOWN)


def _node(entry: Wire, group: Group, index: FleetIndex, holdings: Holdings) -> pb.Node:
    state, holder = _state(entry["nodeName"], group, index, holdings)
    return pb.Node(
        name=entry["nodeName"],
        node_id=entry["nodeId"],
        state=state,
        vertical=_link(entry.get("linkStatusVertical")),
        horizontal=_link(entry.get("linkStatusHorizontal")),
        holder=holder,
    )


def _state(node_name: str, group: Group, index: FleetIndex, holdings: Holdings) -> tuple[pb.NodeState.ValueType, str]:
    """Return the state of a node, and the workload, pod or claim that has it."""
    reservation = next(
        (reservation for reservation in holdings.at(group.name) if node_name in reservation.allocation.nodes), None
    )
    if reservation is not None:
        return pb.NODE_STATE_RESERVED, reservation.allocation.workload
    uses = index.uses(node_name)
    if uses:
        return pb.NODE_STATE_IN_USE, uses[0].holder(uses[0].namespace)
    usable = node_name in {node.name for node in group.usable.values()}
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


def plan(
    base: Grouped, request: pb.PlanRequest, now: datetime.datetime, limits: Limits
) -> Generator[None, None, pb.PlanResponse]:
    """Return the controller's plan at `now`, with reasons, in steps. Raises BadRequest."""
    if request.HasField("workload"):
        tried = _tried(base.index, request.workload, now)
    else:
        tried = None
    base = dry_run.beside(base, tried)
    index = base.index
    planned = yield from dry_run.steps(base, now, limits)
    if tried is None:
        shown = sorted(index.workloads, key=lambda workload: workload.ref)
        actions = planned.actions
    else:
        shown = [tried]
        actions = tuple(action for action in planned.actions if tried.uid in action.owners)
    after = _After.of(index, planned)
    return pb.PlanResponse(
        workloads=[_planned(workload, planned, after) for workload in shown],
        writes=[plan_text.describe(action) for action in actions],
        looks_again_at="" if planned.recheck is None else objects.time(planned.recheck),
    )


def _tried(index: FleetIndex, requested: pb.Workload, now: datetime.datetime) -> Workload:
    """Return the workload of the request. Raises BadRequest."""
    namespace, name = requested.namespace or "default", requested.name or DRY_RUN
    for field, text in (("namespace", namespace), ("name", name)):
        if not _LABEL.fullmatch(text):
            raise BadRequest(
                f"workload.{field} {text[:80]!r}: write a name of at most 63 lower-case letters, digits and '-'"
            )
    if requested.topology_size not in SLOT_SIZES:
        raise BadRequest(
            f"workload.topology_size {requested.topology_size}: write 1, 2 or 4, the number of nodes that work "
            "together in one UltraServer"
        )
    if not 1 <= requested.server_count <= GROUPS_AT_MOST:
        raise BadRequest(
            f"workload.server_count {requested.server_count}: write how many groups of {requested.topology_size} "
            f"nodes, 1 to {GROUPS_AT_MOST}"
        )
    _check_type(index, requested.instance_type)
    _duration(requested)
    existing = next(
        (workload for workload in index.workloads if (workload.namespace, workload.name) == (namespace, name)), None
    )
    if existing is None:
        meta = {"namespace": namespace, "name": name, "uid": DRY_RUN, "creationTimestamp": objects.time(now)}
        spec = {
            "instanceType": requested.instance_type,
            "topologySize": requested.topology_size,
            "serverCount": requested.server_count,
            **({"expectedDuration": requested.expected_duration} if requested.expected_duration else {}),
        }
        return decode.workload({"apiVersion": API_VERSION, "metadata": meta, "spec": spec})
    is_same_type = existing.instance_type == requested.instance_type
    if existing.deleting or not is_same_type or existing.size != requested.topology_size:
        if existing.deleting:
            what = "is being deleted"
        else:
            what = f"exists with {existing.size} x {existing.instance_type}"
        raise BadRequest(
            f"workload {existing.ref} {what}: only its server_count and expected_duration can change; write "
            "another name for another workload"
        )
    expected = _duration(requested) if requested.expected_duration else existing.expected
    return replace(existing, count=requested.server_count, expected=expected)


def _duration(requested: pb.Workload) -> datetime.timedelta:
    """Return how long the workload of the request runs. Raises BadRequest."""
    try:
        return durations.parse(requested.expected_duration or "0")
    except ValueError as err:
        raise BadRequest(f"workload.expected_duration {requested.expected_duration[:80]!r}: {err}") from None


def _check_type(index: FleetIndex, instance_type: str) -> None:
    """Raise BadRequest for a type that has no UltraServers, neither in the catalogue nor in the cluster."""
    types_here = sorted({group.instance_type for group in index.groups})
    catalogue_entry = catalogue.lookup(instance_type) if instance_type else None
    if instance_type in types_here or (catalogue_entry is not None and catalogue_entry.whole_node):
        return
    if not instance_type:
        problem = "workload.instance_type is missing"
    elif catalogue_entry is None:
        problem = f"workload.instance_type {instance_type[:80]} is not known"
    else:
        problem = f"workload.instance_type {instance_type[:80]} has no UltraServers"
    examples = "trn3.48xlarge or trn2u.48xlarge"
    if types_here:
        examples = " or ".join(types_here[:4]) + ", which are here"
    raise BadRequest(f"{problem}: write the type of UltraServer nodes, such as {examples}")


@dataclass(frozen=True, slots=True)
class _After:
    """The cluster after the plan's writes.

    - `written`: the allocations of the NeuronUltraServers that it writes.
    - `spares`: the UltraServers with spares.
    """

    index: FleetIndex
    written: Mapping[str, Sequence[Allocation]]
    spares: Collection[str]

    @classmethod
    def of(cls, index: FleetIndex, planned: Plan) -> _After:
        writes = (action for action in planned.actions if isinstance(action, WriteUltraServerStatus))
        written = {action.name: decode_allocations({"status": action.status}) for action in writes}
        return cls(index, written, planned.kept.spares)

    def held(self, workload: Workload) -> list[tuple[str, Allocation]]:
        """Return the reservations of a workload with their UltraServers, in the order of indices."""
        stored = []
        for reservation in self.index.held(workload.uid):
            if reservation.ultraserver not in self.written:
                stored.append(reservation)
        reservations = [(reservation.ultraserver, reservation.allocation) for reservation in stored]
        for ultraserver_name, allocations in self.written.items():
            reservations += [
                (ultraserver_name, allocation) for allocation in allocations if allocation.holder == workload.uid
            ]
        return sorted(reservations, key=lambda pair: (pair[1].ultraserver_index, pair[1].allocation_id))

    def shortage(self, workload: Workload, missing_groups: int) -> pb.Shortage:
        """Return the numbers of what a workload lacks."""
        key = (workload.instance_type, workload.size)
        free, free_nodes = Overlay(self.index.places(*key)), dict[str, int]()
        for ultraserver_name, allocations in self.written.items():
            group = self.index.group_by_name.get(ultraserver_name)
            if group is not None:
                taken = {*self.index.in_use, *(node for allocation in allocations for node in allocation.nodes)}
                below = self.index.slot_index.free_of(ultraserver_name, *key)
                free.put(ultraserver_name, below, placement.slots((group,), taken, *key))
                free_nodes[ultraserver_name] = group.free_nodes(taken)
        if not workload.status.get("restartedAt"):
            for ultraserver_name in self.spares:
                free.put(ultraserver_name, self.index.slot_index.free_of(ultraserver_name, *key), ())
                free_nodes[ultraserver_name] = 0
        counted = self.index.tally(workload.instance_type, free_nodes)
        groups = placement.most_of_a_kind(free.of_a_kind())
        return pb.Shortage(
            groups_missing=missing_groups,
            groups_free=groups,
            nodes_short=max(0, missing_groups - groups) * workload.size,
            nodes_free=counted.free,
            nodes_total=counted.nodes,
        )


def _planned(workload: Workload, planned: Plan, after: _After) -> pb.PlannedWorkload:
    """Return the plan's result for one workload."""
    own_allocations = after.held(workload)
    live = {allocation.ultraserver_index for _, allocation in own_allocations if allocation.phase is not Phase.DRAINING}
    missing_groups = sum(index not in live for index in range(workload.count))
    fits = not workload.deleting and not missing_groups
    verdict = planned.verdicts.get(workload.uid)
    answer = pb.PlannedWorkload(
        namespace=workload.namespace,
        name=workload.name,
        instance_type=workload.instance_type,
        topology_size=workload.size,
        server_count=workload.count,
        fits=fits,
        reservations=[_reservation(ultraserver_name, allocation) for ultraserver_name, allocation in own_allocations],
    )
    stored_ids = {reservation.allocation.allocation_id for reservation in after.index.held(workload.uid)}
    for reservation in answer.reservations:
        if reservation.allocation_id not in stored_ids:
            reservation.ClearField("allocation_id")
    if verdict is not None:
        answer.state, answer.reason, answer.message = verdict.state, verdict.reason, verdict.message
        if verdict.degraded is not None:
            answer.degraded.CopyFrom(pb.Problem(reason=verdict.degraded[0], message=verdict.degraded[1]))
    if not fits and not workload.deleting:
        answer.shortage.CopyFrom(after.shortage(workload, missing_groups))
    return answer
