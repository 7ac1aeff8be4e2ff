"""Decodes API objects into what the controller keeps. Objects of Kubernetes and other drivers never raise an error.

The caches keep nothing else. ResourceSlices: see `slices`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from neuron_dra.core import capacity_block, durations, names, node_conditions, qualification, taints
from neuron_dra.core.ownership import controller_of
from neuron_dra.core.rendezvous import ANNOTATION
from neuron_dra.core.ultraserver import read_allocations
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed import fields, results, slices
from neuron_dra.planner.observed.model import (
    JOBS_LABEL,
    LIMIT_ANNOTATION,
    MADE_FOR,
    QUEUE_LABEL,
    ClaimUse,
    ClusterNode,
    Consumer,
    FleetSnapshot,
    Namespace,
    QueueRecord,
    Reservation,
    Template,
    UltraServer,
    Workload,
    condition,
)

T = TypeVar("T")
LABELS: Final = {
    label: names.ULTRASERVER_LABELS + label
    for label in ("mode", "server-id-2", "node-id-2", "server-id-4", "node-id-4")
}
"""The labels of a node in an UltraServer, by what they say."""
_ONE_TEXT: Final = {label: label for label in LABELS.values()}
"""Each of them to itself: a fleet keeps one copy of a label's name, and not one for each Node."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
SHOWN_ELSEWHERE = frozenset(
    {
        OUT_OF_SERVICE,
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
    }
)
"""Taints that repeat other fields of the Node."""
WORKLOAD_CLASS = names.WORKLOAD_CLASS
_KIND = re.compile(r"resourceType == '(neuron_node|neuron_device)'")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LATEST = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)  # no sum of it and a duration overflows


def time(text: object) -> datetime.datetime:
    """Return an API time, at least EPOCH and at most LATEST; EPOCH if the text is not a time."""
    try:
        moment = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return EPOCH
    if EPOCH.year <= moment.year < LATEST.year:
        return moment.astimezone(datetime.UTC)
    return EPOCH if moment.year < EPOCH.year else LATEST  # a change of time zone could overflow


def cluster_node(
    item: Wire,
    fault_conditions: Sequence[node_conditions.FaultCondition] = node_conditions.DEFAULT,
    block_annotation: str = capacity_block.ANNOTATION,
) -> ClusterNode:
    """Return a Node.

    `fault_conditions` are those of its conditions that mean a fault; `block_annotation` says when its block ends.
    """
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels = meta.get("labels") or {}
    ready = condition(status, "Ready")
    reported = node_conditions.faults(status.get("conditions") or (), fault_conditions)
    addresses = status.get("addresses") or []
    effects = [(str(taint.get("key")), taint.get("effect")) for taint in spec.get("taints") or []]
    closing = {key for key, effect in effects if effect in ("NoSchedule", "NoExecute")}
    leaving = any(map(taints.announces_removal, closing))
    our_labels = {}
    for label, text in labels.items():
        if label.startswith(names.ULTRASERVER_LABELS):
            our_labels[_ONE_TEXT.get(label, label)] = str(text)
    block_end, block_problem = _block_end(meta, block_annotation)
    internal_ips = (address["address"] for address in addresses if address.get("type") == "InternalIP")
    return ClusterNode(
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        provider_id=str(spec.get("providerID") or ""),
        ready=ready.get("status") == "True",
        ready_changed=time(ready.get("lastTransitionTime") or meta.get("creationTimestamp")),
        out_of_service=any(key == OUT_OF_SERVICE for key, _ in effects),
        schedulable=not spec.get("unschedulable") and not leaving,
        taints=tuple(sorted(closing - SHOWN_ELSEWHERE)),
        capacity_block=labels.get(names.CAPACITY_BLOCK_LABEL),
        labels=our_labels,
        internal_ip=next(internal_ips, ""),
        reported=tuple(reported),
        block_end=block_end,
        block_problem=block_problem,
    )


def _block_end(meta: Wire, annotation: str) -> tuple[datetime.datetime | None, str]:
    """Return when a Node's capacity block ends, and what is wrong with the annotation."""
    text = str((meta.get("annotations") or {}).get(annotation) or "")
    if not text:
        return None, ""
    try:
        return capacity_block.end(text), ""
    except ValueError as err:
        return None, f"annotation {annotation}: {err}"


def claim_use(item: Wire) -> ClaimUse | None:
    """Return the Neuron nodes on which a claim is allocated; None without any, or if all have adminAccess."""
    meta, status = item["metadata"], item.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    device_results = []
    for device_result in devices.get("results") or []:
        if device_result.get("driver") == names.DRIVER and not device_result.get("adminAccess"):
            device_results.append(device_result)
    if not device_results:
        return None
    classes = _classes(item)
    used_classes = {classes.get(str(device_result.get("request"))) for device_result in device_results}
    workload_id, workload_uid = workload_named(devices)
    consumers = status.get("reservedFor") or []
    pods = []
    for consumer in consumers:
        if consumer.get("resource") == "pods":
            pods.append((str(consumer.get("name")), str(consumer.get("uid"))))
    other_consumers = [consumer for consumer in consumers if consumer.get("resource") != "pods"]
    return ClaimUse(
        namespace=str(meta.get("namespace", "")),
        name=meta["name"],
        nodes=tuple(sorted({str(device_result.get("pool")) for device_result in device_results})),
        workload_uid=workload_uid,
        pods=tuple(sorted(pods)),
        reserved_class=WORKLOAD_CLASS in used_classes,
        workload_id=workload_id,
        others=tuple(sorted(map(_consumer, other_consumers))),
        uid=str(meta.get("uid", "")),
    )


def _consumer(consumer: Wire) -> Consumer:
    return Consumer(str(consumer.get("apiGroup") or ""), str(consumer.get("resource")), str(consumer.get("name")))


def workload_named(devices: Wire) -> tuple[str | None, str | None]:
    """Return name and UID of the workload in the configuration for our driver; of several entries the last counts."""
    for config in reversed(devices.get("config") or []):
        opaque = config.get("opaque") or {}
        parameters = opaque.get("parameters")
        if opaque.get("driver") == names.DRIVER and isinstance(parameters, Mapping) and parameters.get("workloadId"):
            uid = parameters.get("workloadUid")
            return str(parameters["workloadId"]), str(uid) if uid else None
    return None, None


def _classes(claim: Wire) -> dict[str, str]:
    """Return the DeviceClass of each request of a claim, by its name in the allocation results."""
    class_by_request = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []:
        exact_request = request.get("exactly") or request  # one level higher in v1beta1
        class_by_request[str(request.get("name"))] = str(exact_request.get("deviceClassName"))
        for alternative in request.get("firstAvailable") or []:
            subrequest = f"{request.get('name')}/{alternative.get('name')}"
            class_by_request[subrequest] = str(alternative.get("deviceClassName"))
    return class_by_request


def ultraserver(item: Wire) -> UltraServer:
    """Return a NeuronUltraServer."""
    meta = item["metadata"]
    spec = dict(fields.part(item, "spec", fields.ULTRASERVER_SPEC))
    if "topology" in spec:
        spec["topology"] = [
            node_entry for node_entry in spec["topology"] or () if "nodeName" in node_entry and "nodeId" in node_entry
        ]
    reading = read_allocations(item)
    status = dict(fields.part(item, "status", fields.ULTRASERVER_STATUS))
    # `controller.qualify` writes this part of the status, and the plan all others.
    tested = results.read(status)
    status.pop("qualifications", None)
    return UltraServer(
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        generation=int(meta.get("generation") or 0),
        spec=spec,
        status=status,
        reservations=tuple(Reservation(meta["name"], allocation) for allocation in reading.allocations),
        unread=reading.unread,
        finalizers=tuple(meta.get("finalizers") or ()),
        deleting=bool(meta.get("deletionTimestamp")),
        results=tested,
    )


def workload(item: Wire) -> Workload:
    """Return a NeuronUltraServerWorkload; `problem` says what in its spec has another type than in the CRD."""
    meta = item["metadata"]
    spec = fields.part(item, "spec", fields.WORKLOAD_SPEC)
    status = dict(fields.part(item, "status", fields.WORKLOAD_STATUS))
    # `controller.queue` writes this part of the status, and the plan all others.
    record = status.pop("queue", None) or {}
    strategy = str((spec.get("allocationPolicy") or {}).get("failureStrategy") or "NoOp")
    return Workload(
        namespace=str(meta.get("namespace", "")),
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        generation=int(meta.get("generation") or 0),
        created=time(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
        instance_type=str(spec.get("instanceType", "")),
        size=int(spec.get("topologySize") or 0),
        count=int(spec.get("serverCount") or 0),
        strategy="MigrateAffected" if strategy == "ReplaceAffected" else strategy,
        rendezvous=str((meta.get("annotations") or {}).get(ANNOTATION) or ""),
        priority_class=str(spec.get("priorityClassName") or ""),
        made_for=str((meta.get("annotations") or {}).get(MADE_FOR) or ""),
        moves_on_cordon=(spec.get("allocationPolicy") or {}).get("onCordon") == "Migrate",
        logical_neuron_core=int((spec.get("config") or {}).get("logicalNeuronCore") or 2),
        template_name=str((spec.get("resourceClaimTemplate") or {}).get("name") or meta["name"]),
        status=status,
        groups=tuple(record for record in status.get("groups") or [] if _is_group(record)),
        problem=fields.problem(item, "spec", fields.WORKLOAD_SPEC),
        expected=_duration(spec.get("expectedDuration")),
        qualified_within=_duration((spec.get("qualification") or {}).get("maxAge")),
        target=qualification.target(str(meta.get("namespace", "")), meta.get("annotations") or {}),
        ttl_unused_s=max(0, int(spec.get("ttlSecondsUnused") or 0)),
        queue=str((meta.get("labels") or {}).get(QUEUE_LABEL) or ""),
        queue_record=QueueRecord(
            str(record.get("localQueue") or ""),
            int(record.get("returned") or 0),
            str(record.get("returnedAt") or ""),
        ),
    )


def _duration(text: object) -> datetime.timedelta:
    """Return a duration; none for a text that is none, which our CRD does not let pass."""
    try:
        return durations.parse(str(text or "0"))
    except ValueError:
        return datetime.timedelta()


def _is_group(record: Any) -> bool:
    """Return True if an entry of `status.groups` is readable."""
    if not isinstance(record, Mapping) or type(record.get("ultraserverIndex")) is not int:
        return False
    nodes: Any = record.get("nodes")
    uids = record.get("nodeUids") or nodes
    texts = [record.get("ultraserver"), record.get("allocationId")]
    for node_texts in (nodes, uids):
        if not isinstance(node_texts, list) or not node_texts or len(node_texts) != len(nodes):
            return False
        texts += node_texts
    return all(isinstance(text, str) and text for text in texts)


def template(item: Wire) -> Template:
    """Return a ResourceClaimTemplate: its owner, and what it requests."""
    meta = item["metadata"]
    workload_id, workload_uid = workload_named(((item.get("spec") or {}).get("spec") or {}).get("devices") or {})
    return Template(
        namespace=str(meta.get("namespace", "")),
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        owner=controller_of(item),
        deleting=bool(meta.get("deletionTimestamp")),
        workload_id=workload_id,
        workload_uid=workload_uid,
        reserved_class=WORKLOAD_CLASS in _classes(item.get("spec") or {}).values(),
        size=_mode(item),
        kind=_requested_kind(item),
    )


def name(item: Wire) -> str:
    """Return the name of an object, of which nothing else counts."""
    return str(item["metadata"]["name"])


def namespace(item: Wire) -> Namespace:
    """Return a Namespace with its limit, and whether its jobs may reserve."""
    meta = item["metadata"]
    limit = str((meta.get("annotations") or {}).get(LIMIT_ANNOTATION) or "").strip()
    return Namespace(meta["name"], limit, str((meta.get("labels") or {}).get(JOBS_LABEL) or ""))


def _mode(template: Wire) -> int | None:
    """Return ultraserverMode of the template's UltraServerConfig, a number of nodes; None without one."""
    devices = ((template.get("spec") or {}).get("spec") or {}).get("devices") or {}
    for config in devices.get("config") or []:
        parameters = (config.get("opaque") or {}).get("parameters")
        if isinstance(parameters, Mapping):
            mode = parameters.get("ultraserverMode")
        else:
            mode = None
        if isinstance(mode, int) and not isinstance(mode, bool):
            return mode
    return None


def _requested_kind(item: Wire) -> str:
    """Return the resourceType that the selectors of a template request; empty if it cannot be determined."""
    devices = ((item.get("spec") or {}).get("spec") or {}).get("devices") or {}
    kinds: set[str] = set()
    for request in devices.get("requests") or []:
        for selector in (request.get("exactly") or {}).get("selectors") or []:
            expression = str((selector.get("cel") or {}).get("expression"))
            kinds.update(_KIND.findall(expression))
    if len(kinds) == 1:
        return kinds.pop()
    return ""


def snapshot(
    items: Iterable[Wire],
    fault_conditions: Sequence[node_conditions.FaultCondition] = node_conditions.DEFAULT,
    block_annotation: str = capacity_block.ANNOTATION,
) -> FleetSnapshot:
    """Return the snapshot of a `kubectl get resourceslices,resourceclaims,nodes,nus,nusw,... -o yaml` list.

    `fault_conditions` and `block_annotation` are those of `cluster_node`.
    """
    by_kind: dict[str, list[Wire]] = {}
    for item in items:
        by_kind.setdefault(str(item.get("kind")), []).append(item)

    def decoded(kind: str, decode: Callable[[Wire], T]) -> tuple[T, ...]:
        return tuple(decode(item) for item in by_kind.get(kind, []))

    parts = [part for part in decoded("ResourceSlice", slices.published_slice) if part]
    uses = [use for use in decoded("ResourceClaim", claim_use) if use]
    namespaces = decoded("Namespace", namespace)
    classes = [item["metadata"]["name"] for item in by_kind.get("DeviceClass", [])]
    return FleetSnapshot(
        published=slices.published_nodes(parts),
        nodes=decoded("Node", lambda node: cluster_node(node, fault_conditions, block_annotation)),
        claims=tuple(uses),
        ultraservers=decoded("NeuronUltraServer", ultraserver),
        workloads=decoded("NeuronUltraServerWorkload", workload),
        templates=decoded("ResourceClaimTemplate", template),
        # Without any class in the list, nobody asked for classes.
        workload_class=not classes or WORKLOAD_CLASS in classes,
        namespaces={decoded_namespace.name: decoded_namespace.limit for decoded_namespace in namespaces} or None,
    )
