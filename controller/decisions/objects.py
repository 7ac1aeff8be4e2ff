"""Builds the Kubernetes objects that the controller writes. Pure.

Statuses are always built whole: fields that are no longer needed disappear, and a status that equals the stored one is
not written. Times are those of the plan.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from controller.decisions.actions import Record, Verdict
from controller.decisions.reasons import Reason
from controller.decisions.states import PROGRESSING, State
from controller.observe.decode import WORKLOAD_CLASS
from controller.observe.discovery import Group, Problem
from controller.observe.model import (
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
from neuron_dra.core import names
from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.core.ultraserver import NAMESPACE, Phase, UnreadAllocation
from neuron_dra.core.wire import Wire

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
    reserved = {node for each in reservations for node in each.allocation.nodes}
    reserved |= {node for each in unread for node in each.nodes}
    there = set(group.node_names)
    if not reserved & there:
        availability = "Available"
    else:
        availability = "FullyAllocated" if there <= reserved else "PartiallyAllocated"
    problems = (*group.problems, *more)
    reason = problems[0].reason if problems else Reason.ALL_NODES_READY
    message = "; ".join(problem.message for problem in problems) or f"all {len(there)} nodes and their links are ready"
    refs = sorted(
        {each.allocation.workload for each in reservations}
        | {str(each.entry.get("workloadRef")) for each in unread if isinstance(each.entry, Mapping)}
    )
    taken = ", ".join(refs) if refs else "no node is reserved"

    def made(kind: str, value: bool, why: str, text: str) -> dict[str, Any]:
        return new_condition(stored.status, kind, value, why, text, now, stored.generation)

    in_order = sorted(reservations, key=lambda each: (each.allocation.nodes, each.allocation.allocation_id))
    written = [each.allocation.to_wire() for each in in_order]
    return {
        "ultraserverId": group.ultraserver_id,
        "state": "Degraded" if problems else "Ready",
        "availability": availability,
        "nodeCount": len(there),
        "freeNodeCount": group.free_nodes(reserved, in_use),
        "supportedSizes": "_".join(map(str, group.sizes)),
        "observedGeneration": stored.generation,
        "allocations": [*written, *(each.entry for each in unread)],
        "conditions": [
            made("Ready", not problems, reason, message),
            made("Degraded", bool(problems), reason, message),
            made("Allocated", bool(refs), "Reserved" if refs else "NotReserved", taken),
            *([made(BLOCK_END, True, "EndKnown", _ends(group))] if group.ends else []),
            *([made(SPARE, True, "KeptFree", _kept(spares))] if spares else []),
        ],
    }


def _kept(spares: Sequence[str]) -> str:
    """Return which nodes are spares, as a message."""
    return f"kept for groups that must move (--spares): {shortened(spares)}"


def _ends(group: Group) -> str:
    """Return when the capacity blocks of an UltraServer's nodes end, as a message."""
    by_end: dict[datetime.datetime, list[str]] = {}
    for name, end in sorted(group.ends.items()):
        by_end.setdefault(end, []).append(name)
    return "; ".join(f"ends at {time(end)}: {shortened(names)}" for end, names in sorted(by_end.items()))


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
                                "parameters": {"apiVersion": f"{names.DRIVER}/v1", **one},
                            },
                        }
                        for one in parameters
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
    found = condition(workload.status, kind)
    if (found.get("reason"), found.get("message")) == (reason, message[:MESSAGE_CHARACTERS]):
        return None
    others = [each for each in workload.status.get("conditions") or [] if each.get("type") != kind]
    changed = new_condition(workload.status, kind, value, reason, message, now, workload.generation)
    return {**workload.status, "state": workload.state, "conditions": [changed, *others]}


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

    def made(kind: str, value: bool, why: str, text: str) -> dict[str, Any]:
        return new_condition(workload.status, kind, value, why, text, now, workload.generation)

    allocated = state == State.ALLOCATED
    ordered = sorted(reservations, key=lambda each: (each.allocation.ultraserver_index, each.allocation.allocation_id))
    since = workload.status.get("allocatedAt") or (time(now) if allocated else None)
    why, text = verdict.degraded or (Reason.NO_PROBLEM, "the reserved nodes have no known fault")
    more = [made(IN_USE, *record.in_use)] if record.in_use else []
    more += [made(ENDS_SOON, *record.ends_soon)] if record.ends_soon else []
    more += [made(SPEC_INCOMPLETE, True, "FieldsDropped", _unkept(record.unkept))] if record.unkept else []
    more += [made(OUTAGE, record.outage[0], *_outage(record.outage))] if record.outage else []
    migrations = int(workload.status.get("migrations") or 0)
    if reason == Reason.MIGRATING != condition(workload.status, "Ready").get("reason"):
        migrations += 1
    return {
        "state": str(state),
        "workloadId": workload.name,
        "allocatedUltraServers": [each.ultraserver for each in ordered],
        "totalNodesAllocated": sum(len(each.allocation.nodes) for each in ordered),
        **({"allocatedAt": since} if since and ordered else {}),
        **({"restarting": dict(verdict.restarting)} if verdict.restarting else {}),
        **({"restarts": record.restarts} if record.restarts else {}),
        **({"restartedAt": list(record.restarted_at)} if record.restarted_at else {}),
        **({"migrations": migrations} if migrations else {}),
        **({"groups": list(groups)} if groups else {}),
        "observedGeneration": workload.generation,
        "conditions": [
            made("Ready", allocated, reason, message),
            made("Progressing", state in PROGRESSING, reason, message),
            made("Degraded", verdict.degraded is not None, why, text),
            *more,
        ],
    }


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
    ordered = sorted(reservations, key=lambda each: (each.allocation.ultraserver_index, each.allocation.allocation_id))
    return [
        {
            "ultraserverIndex": each.allocation.ultraserver_index,
            "ultraserver": each.ultraserver,
            **({"ultraserverUid": stored[each.ultraserver].uid} if each.ultraserver in stored else {}),
            "allocationId": each.allocation.allocation_id,
            "nodes": list(each.allocation.nodes),
            **({"nodeUids": list(each.allocation.node_uids)} if each.allocation.node_uids else {}),
            **({"draining": True} if each.allocation.phase is Phase.DRAINING else {}),
        }
        for each in ordered
    ]
