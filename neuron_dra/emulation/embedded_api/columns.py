"""The columns in which kubectl prints the objects of each kind, as the API server computes them.

Source: kubernetes@v1.37.0 pkg/printers/internalversion/printers.go, and the printer columns of this project's CRDs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core.wire import Obj

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and its cell for an object. Of a `date`, the cell is a timestamp, shown as an age."""

    name: str
    cell: Callable[[Obj], Any]
    type: str = "string"
    wide: bool = False  # printed with -o wide only


def at(path: str) -> Callable[[Obj], Any]:
    """Return the value at a path such as `status.state`, None if it is absent; a list is returned as JSON."""

    def cell(obj: Obj) -> Any:
        value: Any = obj
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list | dict):
            return json.dumps(value, separators=(",", ":"))
        return value

    return cell


def of_condition(kind: str, field: str) -> Callable[[Obj], Any]:
    """Return a field of the condition of a type."""

    def cell(obj: Obj) -> Any:
        return next((condition.get(field) for condition in _conditions(obj) if condition.get("type") == kind), None)

    return cell


def _or_none(path: str) -> Callable[[Obj], Any]:
    value = at(path)
    return lambda obj: value(obj) or NONE


def _conditions(obj: Obj) -> Sequence[Obj]:
    return (obj.get("status") or {}).get("conditions") or ()


NAME: Final = Column("Name", at("metadata.name"))
AGE: Final = Column("Age", at("metadata.creationTimestamp"), "date")


def _node_status(node: Obj) -> str:
    ready = next((condition.get("status") for condition in _conditions(node) if condition.get("type") == "Ready"), None)
    text = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    if (node.get("spec") or {}).get("unschedulable"):
        return f"{text},SchedulingDisabled"
    return text


def _roles(node: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = [label.removeprefix(prefix) for label in labels if label.startswith(prefix)]
    return ",".join(sorted(roles)) or NONE


def _address(kind: str) -> Callable[[Obj], str]:
    def cell(node: Obj) -> str:
        listed = (node.get("status") or {}).get("addresses") or ()
        return next((str(address.get("address")) for address in listed if address.get("type") == kind), NONE)

    return cell


def _containers(pod: Obj, field: str) -> Sequence[Obj]:
    return (pod.get("status") or {}).get(field) or ()


def _ready(pod: Obj) -> str:
    ready = sum(bool(status.get("ready")) for status in _containers(pod, "containerStatuses"))
    return f"{ready}/{len(pod['spec'].get('containers') or ())}"


def _restarts(pod: Obj) -> int:
    return sum(int(status.get("restartCount") or 0) for status in _containers(pod, "containerStatuses"))


def _pod_status(pod: Obj) -> str:
    """Return the phase of a pod, or what its containers wait for."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return _starting(pod) or _of_containers(pod) or _phase(pod)


def _phase(pod: Obj) -> str:
    status = pod.get("status") or {}
    gated = any(condition.get("reason") == "SchedulingGated" for condition in _conditions(pod))
    if gated:
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or UNKNOWN)


def _starting(pod: Obj) -> str:
    """Return what the first init container that has not ended does; empty if there is none."""
    statuses = _containers(pod, "initContainerStatuses")
    for number, container_status in enumerate(statuses):
        state = container_status.get("state") or {}
        ended = state.get("terminated")
        if (ended and not ended.get("exitCode")) or container_status.get("started"):
            continue
        waiting = (state.get("waiting") or {}).get("reason") or ""
        if ended:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended['exitCode'])}"
        if waiting not in ("", "PodInitializing"):
            return f"Init:{waiting}"
        return f"Init:{number}/{len(statuses)}"
    return ""


def _of_containers(pod: Obj) -> str:
    """Return why the last container that does not run waits or has ended; empty if all run."""
    for container_status in reversed(_containers(pod, "containerStatuses")):
        state = container_status.get("state") or {}
        reason = (state.get("waiting") or state.get("terminated") or {}).get("reason")
        if reason:
            return str(reason)
    return ""


def _claim_state(claim: Obj) -> str:
    status = claim.get("status") or {}
    states = ["deleted"] if claim["metadata"].get("deletionTimestamp") else []
    states += ["allocated"] if status.get("allocation") else []
    states += ["reserved"] if status.get("reservedFor") else []
    return ",".join(states) or "pending"


def _object_of(event: Obj) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}"


def _seen(event: Obj) -> Any:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((timestamp for timestamp in times if timestamp), None)


def _sizes_of(fields: Sequence[str]) -> Callable[[Obj], int]:
    return lambda obj: sum(len(obj.get(field) or ()) for field in fields)


_POD: Final = (
    NAME,
    Column("Ready", _ready),
    Column("Status", _pod_status),
    Column("Restarts", _restarts),
    AGE,
    Column("IP", _or_none("status.podIP"), wide=True),
    Column("Node", _or_none("spec.nodeName"), wide=True),
    Column("Nominated Node", _or_none("status.nominatedNodeName"), wide=True),
    Column("Readiness Gates", lambda _: NONE, wide=True),
)
_NODE: Final = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _roles),
    AGE,
    Column("Version", at("status.nodeInfo.kubeletVersion")),
    Column("Internal-IP", _address("InternalIP"), wide=True),
    Column("External-IP", _address("ExternalIP"), wide=True),
    Column("OS-Image", lambda node: at("status.nodeInfo.osImage")(node) or UNKNOWN, wide=True),
    Column("Kernel-Version", lambda node: at("status.nodeInfo.kernelVersion")(node) or UNKNOWN, wide=True),
    Column("Container-Runtime", lambda node: at("status.nodeInfo.containerRuntimeVersion")(node) or UNKNOWN, wide=True),
)
_EVENT: Final = (
    Column("Last Seen", _seen, "date"),
    Column("Type", at("type")),
    Column("Reason", at("reason")),
    Column("Object", _object_of),
    Column("Message", at("message")),
    Column("Name", at("metadata.name"), wide=True),
)


def _count(path: str, default: int = 0) -> Callable[[Obj], int]:
    value = at(path)

    def cell(obj: Obj) -> int:
        count = value(obj)
        return default if count is None else int(count)

    return cell


def _of(counted_path: str, desired_path: str) -> Callable[[Obj], str]:
    return lambda obj: f"{_count(counted_path)(obj)}/{_count(desired_path, 1)(obj)}"


def _job_status(job: Obj) -> str:
    """Return the condition of a Job that holds, in the order in which kubectl looks for them."""
    true = {condition["type"] for condition in _conditions(job) if condition["status"] == "True"}
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    listed = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((kind for kind in listed if kind in true), "Running")


def _completions(job: Obj) -> str:
    completions = at("spec.completions")(job)
    if completions is not None:
        return f"{_count('status.succeeded')(job)}/{completions}"
    parallelism = _count("spec.parallelism")(job)
    return f"{_count('status.succeeded')(job)}/1" + (f" of {parallelism}" if parallelism > 1 else "")


OF_KIND: Final[Mapping[str, Sequence[Column]]] = {
    "pods": _POD,
    "nodes": _NODE,
    "events": _EVENT,
    "deployments.apps": (
        NAME,
        Column("Ready", _of("status.readyReplicas", "spec.replicas")),
        Column("Up-to-date", _count("status.updatedReplicas")),
        Column("Available", _count("status.availableReplicas")),
        AGE,
    ),
    "replicasets.apps": (
        NAME,
        Column("Desired", _count("spec.replicas", 1), "integer"),
        Column("Current", _count("status.replicas"), "integer"),
        Column("Ready", _count("status.readyReplicas"), "integer"),
        AGE,
    ),
    "daemonsets.apps": (
        NAME,
        Column("Desired", _count("status.desiredNumberScheduled"), "integer"),
        Column("Current", _count("status.currentNumberScheduled"), "integer"),
        Column("Ready", _count("status.numberReady"), "integer"),
        Column("Up-to-date", _count("status.updatedNumberScheduled"), "integer"),
        Column("Available", _count("status.numberAvailable"), "integer"),
        AGE,
    ),
    "jobs.batch": (NAME, Column("Status", _job_status), Column("Completions", _completions), AGE),
    "namespaces": (NAME, Column("Status", at("status.phase")), AGE),
    "configmaps": (NAME, Column("Data", _sizes_of(("data", "binaryData"))), AGE),
    "secrets": (NAME, Column("Type", at("type")), Column("Data", _sizes_of(("data",))), AGE),
    "leases.coordination.k8s.io": (NAME, Column("Holder", at("spec.holderIdentity")), AGE),
    "resourceclaims.resource.k8s.io": (NAME, Column("State", _claim_state), AGE),
    "resourceslices.resource.k8s.io": (
        NAME,
        Column("Node", at("spec.nodeName")),
        Column("Driver", at("spec.driver")),
        Column("Pool", at("spec.pool.name")),
        AGE,
    ),
}
"""By the qualified plural; of other kinds, name and age are printed."""


def _workloads(server: Obj) -> str | None:
    listed = (server.get("status") or {}).get("allocations") or ()
    return " ".join(str(allocation.get("workloadRef")) for allocation in listed) or None


ULTRASERVER: Final = (
    NAME,
    Column("State", at("status.state")),
    Column("Availability", at("status.availability")),
    Column("Type", at("spec.instanceType")),
    Column("Nodes", at("status.nodeCount"), "integer"),
    Column("Free", at("status.freeNodeCount"), "integer"),
    Column("Sizes", at("status.supportedSizes")),
    AGE,
    Column("Reason", of_condition("Ready", "reason")),
    Column("Workloads", _workloads, wide=True),
    Column("ID", at("status.ultraserverId"), wide=True),
    Column("Message", of_condition("Ready", "message"), wide=True),
)
QUALIFICATION: Final = (
    NAME,
    Column("Ready", of_condition("Ready", "status")),
    Column("Reason", of_condition("Ready", "reason")),
    Column("Fresh", at("status.fresh"), "integer"),
    Column("Failed", at("status.failed"), "integer"),
    Column("Unqualified", at("status.unqualified"), "integer"),
    Column("Testing", at("status.testing"), "integer"),
    AGE,
    Column("Message", of_condition("Ready", "message"), wide=True),
)
WORKLOAD: Final = (
    NAME,
    Column("State", at("status.state")),
    Column("Size", at("spec.topologySize"), "integer"),
    Column("Servers", at("spec.serverCount"), "integer"),
    Column("Nodes", at("status.totalNodesAllocated"), "integer"),
    AGE,
    Column("Reason", of_condition("Ready", "reason")),
    Column("Type", at("spec.instanceType"), wide=True),
    Column("UltraServers", at("status.allocatedUltraServers"), wide=True),
    Column("Problem", of_condition("Degraded", "reason"), wide=True),
    Column("Message", of_condition("Ready", "message"), wide=True),
)
