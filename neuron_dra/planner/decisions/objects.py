"""Builds the Kubernetes objects that the controller writes. Pure.

Statuses are always built whole: fields that are no longer needed disappear, and a status that equals the stored one is
not written. Times are those of the plan.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.core.ultraserver import NAMESPACE, Phase, UnreadAllocation
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.actions import Record, Verdict
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import PROGRESSING, State
from neuron_dra.planner.observed.decode import WORKLOAD_CLASS
from neuron_dra.planner.observed.discovery import Group, Problem
from neuron_dra.planner.observed.model import (
    API_VERSION,
    ENDS_SOON,
    IN_USE,
    SPEC_INCOMPLETE,
    Reservation,
    UltraServer,
    Workload,
    condition,
    shortened,
)

MANAGER: Final = "neuron-ultraserver-controller"
MANAGED: Final = {"app.kubernetes.io/managed-by": MANAGER}
"""Labels of the objects that the controller makes in the namespaces of workloads."""

MESSAGE_CHARACTERS = 4096  # maxLength of a condition's message in our CRDs
REQUEST = "neuron"
BLOCK_END = "CapacityBlockEnd"
"""Condition type of an UltraServer with nodes of a capacity block whose end is known."""
SPARE = "Spare"
"""Condition type of an UltraServer with nodes that only groups which must move may take. No plan reads it."""
OUTAGE = "Outage"
"""Condition type of workloads whose nodes were unavailable in an outage. Grace periods begin at its last transition."""


def time(moment: datetime.datetime) -> str:
    """Return a time as the API has it, in seconds and UTC."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def notice(reason: NoticeReason, moment: datetime.datetime) -> Notice:
    """Return the notice for pods that end from now on."""
    return Notice(reason.value, time(moment))


def new_condition(
    current: Wire, kind: str, value: bool, reason: str, message: str, now: datetime.datetime, generation: int
) -> dict[str, Any]:
    """Return a condition of the type `kind`, as metav1.Condition.

    Its lastTransitionTime changes only with its status, so grace periods can be measured from it. `current` is the
    stored status. The message is cut to its limit of 4,096 characters.
    """
    status = "True" if value else "False"
    before = condition(current, kind)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since or time(now),
        "reason": str(reason),
        "message": message[:MESSAGE_CHARACTERS],
    }


def ultraserver(group: Group) -> dict[str, Any]:
    """Return a NeuronUltraServer to create; its status is written once it exists."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronUltraServer",
        "metadata": {"name": group.name, "namespace": NAMESPACE},
        "spec": {"instanceType": group.instance_type, "topology": topology(group)},
    }


def topology(group: Group) -> list[dict[str, Any]]:
    """Return spec.topology, as copies that the caller may change."""
    return [dict(entry) for entry in group.topology]


def ultraserver_status(
    group: Group,
    stored: UltraServer,
    reservations: Sequence[Reservation],
    in_use: Collection[str],
    now: datetime.datetime,
    unread: Sequence[UnreadAllocation] = (),
    more: Sequence[Problem] = (),
    spares: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the whole status of a NeuronUltraServer.

    - `reservations`: written to `allocations`, in a stable order.
    - `in_use`: the nodes with an allocated claim; they are not free.
    - `unread`: entries that stay unchanged.
    - `more`: problems besides those of the nodes.
    - `spares`: the nodes that are spares.

    `availability` is Available without a reserved node, FullyAllocated if all nodes are reserved, else
    PartiallyAllocated. The first problem gives the reason of Degraded, all of them its message.
    """
    reserved = {node for reservation in reservations for node in reservation.allocation.nodes}
    reserved |= {node for unread_entry in unread for node in unread_entry.nodes}
    node_names = set(group.node_names)
    if not reserved & node_names:
        availability = "Available"
    else:
        availability = "FullyAllocated" if node_names <= reserved else "PartiallyAllocated"
    problems = (*group.problems, *more)
    reason = problems[0].reason if problems else Reason.ALL_NODES_READY
    all_ready = f"all {len(node_names)} nodes and their links are ready"
    message = "; ".join(problem.message for problem in problems) or all_ready
    refs = _workload_refs(reservations, unread)
    reserved_for = ", ".join(refs) if refs else "no node is reserved"

    def status_condition(condition_type: str, is_true: bool, why: str, text: str) -> dict[str, Any]:
        return new_condition(stored.status, condition_type, is_true, why, text, now, stored.generation)

    allocations = sorted(
        (reservation.allocation for reservation in reservations),
        key=lambda allocation: (allocation.nodes, allocation.allocation_id),
    )
    written = [allocation.to_wire() for allocation in allocations]
    return {
        "ultraserverId": group.ultraserver_id,
        "state": "Degraded" if problems else "Ready",
        "availability": availability,
        "nodeCount": len(node_names),
        "freeNodeCount": group.free_nodes(reserved, in_use),
        "supportedSizes": "_".join(map(str, group.sizes)),
        "observedGeneration": stored.generation,
        "allocations": [*written, *(unread_entry.entry for unread_entry in unread)],
        "conditions": [
            status_condition("Ready", not problems, reason, message),
            status_condition("Degraded", bool(problems), reason, message),
            status_condition("Allocated", bool(refs), "Reserved" if refs else "NotReserved", reserved_for),
            *([status_condition(BLOCK_END, True, "EndKnown", _ends(group))] if group.ends else []),
            *([status_condition(SPARE, True, "KeptFree", _kept(spares))] if spares else []),
        ],
    }


def _workload_refs(reservations: Sequence[Reservation], unread: Sequence[UnreadAllocation]) -> list[str]:
    """Return namespace/name of the workloads that have a reservation, readable or not."""
    refs = {reservation.allocation.workload for reservation in reservations}
    for unread_entry in unread:
        if isinstance(unread_entry.entry, Mapping):
            refs.add(str(unread_entry.entry.get("workloadRef")))
    return sorted(refs)


def _kept(spares: Sequence[str]) -> str:
    """Return which nodes are spares, as a message."""
    return f"kept for groups that must move (--spares): {shortened(spares)}"


def _ends(group: Group) -> str:
    """Return when the capacity blocks of an UltraServer's nodes end, as a message."""
    by_end: dict[datetime.datetime, list[str]] = {}
    for node_name, end in sorted(group.ends.items()):
        by_end.setdefault(end, []).append(node_name)
    return "; ".join(f"ends at {time(end)}: {shortened(node_names)}" for end, node_names in sorted(by_end.items()))


def owner_of(workload: Workload) -> dict[str, Any]:
    """Return the owner reference of an object that the controller makes for a workload."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronUltraServerWorkload",
        "name": workload.name,
        "uid": workload.uid,
        "controller": True,
    }


def claim_template(workload: Workload, kind: str, device_class: str) -> dict[str, Any]:
    """Return the ResourceClaimTemplate of a workload: one whole node of its reservation for each claim.

    `kind` is the resourceType that the nodes publish: a whole node is one device, or all devices of a node. The
    template is owned by the workload, and its configuration has the workload's name and UID, which plugins check.
    """
    owner = {**owner_of(workload), "blockOwnerDeletion": True}
    amount = {"allocationMode": "ExactCount", "count": 1} if kind == "neuron_node" else {"allocationMode": "All"}
    parameters = (
        {
            "kind": "UltraServerConfig",
            "ultraserverMode": workload.size,
            "workloadId": workload.name,
            "workloadUid": workload.uid,
        },
        {"kind": "NeuronConfig", "logicalNeuronCore": workload.logical_neuron_core},
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": workload.template_name,
            "namespace": workload.namespace,
            "labels": MANAGED,
            "ownerReferences": [owner],
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": REQUEST,
                            "exactly": {
                                "deviceClassName": device_class,
                                **amount,
                                "selectors": [{"cel": {"expression": _selector(workload, kind)}}],
                            },
                        }
                    ],
                    "config": [
                        {
                            "requests": [REQUEST],
                            "opaque": {
                                "driver": names.DRIVER,
                                "parameters": {"apiVersion": f"{names.DRIVER}/v1", **parameter_set},
                            },
                        }
                        for parameter_set in parameters
                    ],
                }
            }
        },
    }


def _selector(workload: Workload, kind: str) -> str:
    """Return the CEL expression that selects the nodes of a workload's Bound reservations.

    It begins with has(): reading an attribute that a device lacks is an error that blocks the pod on every node.
    """
    attributes = f"device.attributes['{names.DRIVER}']"
    return " && ".join(
        (
            f"has({attributes}.workloadUid)",
            f"has({attributes}.workloadPhase)",
            f"{attributes}.workloadUid == '{workload.uid}'",
            f"{attributes}.workloadPhase == 'Bound'",
            f"{attributes}.resourceType == '{kind}'",
        )
    )


def device_class(workload_class: bool) -> str:
    """Return the DeviceClass for templates.

    It is the one of reserved devices; if the cluster does not have that, the plain one.
    """
    return WORKLOAD_CLASS if workload_class else names.DRIVER


def with_condition(
    workload: Workload, kind: str, value: bool, reason: str, message: str, now: datetime.datetime
) -> dict[str, Any] | None:
    """Return a workload's stored status with one condition changed; None if it has that already.

    It adds only fields that the CRD of every release has.
    """
    stored = condition(workload.status, kind)
    if (stored.get("reason"), stored.get("message")) == (reason, message[:MESSAGE_CHARACTERS]):
        return None
    other_conditions = [
        stored_condition
        for stored_condition in workload.status.get("conditions") or []
        if stored_condition.get("type") != kind
    ]
    changed = new_condition(workload.status, kind, value, reason, message, now, workload.generation)
    return {**workload.status, "state": workload.state, "conditions": [changed, *other_conditions]}


def workload_status(
    workload: Workload,
    verdict: Verdict,
    reservations: Sequence[Reservation],
    now: datetime.datetime,
    record: Record,
    groups: Sequence[Wire] = (),
) -> dict[str, Any]:
    """Return the whole status of a NeuronUltraServerWorkload.

    - `reservations`: those that count for the workload, without Draining ones.
    - `record`: restarts and outages for later plans.
    - `groups`: copies from which reservations can be restored (`restoration`).

    `migrations` counts the beginnings of the reason Migrating; `allocatedAt` is the time of the first Allocated and
    stays until no slot is left.
    """
    state, reason, message = verdict.state, verdict.reason, verdict.message

    def status_condition(condition_type: str, is_true: bool, why: str, text: str) -> dict[str, Any]:
        return new_condition(workload.status, condition_type, is_true, why, text, now, workload.generation)

    allocated = state == State.ALLOCATED
    ordered = _by_index(reservations)
    allocated_at = workload.status.get("allocatedAt") or (time(now) if allocated else None)
    degraded_reason, degraded_message = verdict.degraded or (
        Reason.NO_PROBLEM,
        "the reserved nodes have no known fault",
    )
    optional_conditions = [status_condition(IN_USE, *record.in_use)] if record.in_use else []
    optional_conditions += [status_condition(ENDS_SOON, *record.ends_soon)] if record.ends_soon else []
    optional_conditions += (
        [status_condition(SPEC_INCOMPLETE, True, "FieldsDropped", _unkept(record.unkept))] if record.unkept else []
    )
    optional_conditions += (
        [status_condition(OUTAGE, record.outage[0], *_outage(record.outage))] if record.outage else []
    )
    migrations = int(workload.status.get("migrations") or 0)
    if reason == Reason.MIGRATING != condition(workload.status, "Ready").get("reason"):
        migrations += 1
    return {
        "state": str(state),
        "workloadId": workload.name,
        "allocatedUltraServers": [reservation.ultraserver for reservation in ordered],
        "totalNodesAllocated": sum(len(reservation.allocation.nodes) for reservation in ordered),
        **({"allocatedAt": allocated_at} if allocated_at and ordered else {}),
        **({"restarting": dict(verdict.restarting)} if verdict.restarting else {}),
        **({"restarts": record.restarts} if record.restarts else {}),
        **({"restartedAt": list(record.restarted_at)} if record.restarted_at else {}),
        **({"migrations": migrations} if migrations else {}),
        **({"groups": list(groups)} if groups else {}),
        "observedGeneration": workload.generation,
        "conditions": [
            status_condition("Ready", allocated, reason, message),
            status_condition("Progressing", state in PROGRESSING, reason, message),
            status_condition("Degraded", verdict.degraded is not None, degraded_reason, degraded_message),
            *optional_conditions,
        ],
    }


def _by_index(reservations: Iterable[Reservation]) -> list[Reservation]:
    return sorted(
        reservations,
        key=lambda reservation: (reservation.allocation.ultraserver_index, reservation.allocation.allocation_id),
    )


def _unkept(fields: Sequence[str]) -> str:
    """Return the message of the condition SpecIncomplete."""
    return (
        f"the API server drops {', '.join(fields)}, because its CustomResourceDefinition is of another release: what "
        "was written there has no effect; apply the CRDs of this release (deploy/crds), then write it again"
    )


def _outage(outage: tuple[bool, str]) -> tuple[str, str]:
    """Return reason and message of the condition Outage."""
    return "ManyNodesAway" if outage[0] else "OutageIsOver", outage[1]


def groups(reservations: Iterable[Reservation], stored: Mapping[str, UltraServer]) -> list[dict[str, Any]]:
    """Return `status.groups` of a workload, from which its reservations can be restored.

    `stored` are the NeuronUltraServers by name; their UIDs show later whether an object was recreated.
    """
    ordered = _by_index(reservations)
    return [
        {
            "ultraserverIndex": reservation.allocation.ultraserver_index,
            "ultraserver": reservation.ultraserver,
            **({"ultraserverUid": stored[reservation.ultraserver].uid} if reservation.ultraserver in stored else {}),
            "allocationId": reservation.allocation.allocation_id,
            "nodes": list(reservation.allocation.nodes),
            **({"nodeUids": list(reservation.allocation.node_uids)} if reservation.allocation.node_uids else {}),
            **({"draining": True} if reservation.allocation.phase is Phase.DRAINING else {}),
        }
        for reservation in ordered
    ]
