"""Clusters of reported situations, as kubectl prints them: each function returns the objects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from neuron_dra.ask.world import imagined
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small
from tests.support.cluster_faults import GROUP, all_of, the

SINCE = "2026-03-01T12:00:00Z"
CANNOT = "0/2 nodes are available: 2 cannot allocate all claims."


def waits(pod: Obj, said: str = CANNOT) -> Obj:
    """The pod with what the scheduler reported of it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    return {**pod, "status": {**pod["status"], "conditions": [condition]}}


def asks(items: list[Obj], count: int, *, group: str = "", said: str = CANNOT, **spec: Any) -> list[Obj]:
    """The objects with a pod `p` that waits for so many devices."""
    made = small.template("wanted", count, group=group)
    return [*items, made, *small.created(waits(small.pod("p", "wanted", **spec), said), made)]


def pod(items: Sequence[Obj], name: str = "p") -> Obj:
    found = the(items, "Pod", name)
    assert found is not None
    return found


def claim(items: Sequence[Obj], name: str) -> Obj:
    found = the(items, "ResourceClaim", f"{name}-neurons-x")
    assert found is not None
    return found


def node(items: Sequence[Obj], name: str = "a") -> Obj:
    found = the(items, "Node", name)
    assert found is not None
    return found


def event(reason: str, message: str, name: str = "p", kind: str = "Pod") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": "default"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "default" if kind == "Pod" else ""},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": SINCE,
    }


def started(*others: Obj, **status: Any) -> list[Obj]:
    """A pod `p` that has four devices of node a and has not started."""
    items = small.base("a", "b")
    items += small.running(items, "p", 4, "a")
    found = pod(items)
    found["status"] = {**found["status"], "phase": "Pending", "conditions": [], **status}
    return [*items, *copy.deepcopy(list(others))]


def fragmented() -> list[Obj]:
    """A pod of two devices in each group of node a: eight devices are free, no four of a group."""
    items = small.base("a")
    slices = all_of(items, "ResourceSlice")[0]["spec"]["devices"]
    groups: dict[str, list[str]] = {}
    for device in slices:
        groups.setdefault(device["attributes"][GROUP]["string"], []).append(device["name"])
    for number, devices in enumerate(groups.values()):
        items += holder(f"small-{number}", devices[:2], "a")
    return asks(items, 4, group=GROUP, said="0/1 nodes are available: 1 cannot allocate all claims.")


def holder(name: str, devices: Sequence[str], on: str, **spec: Any) -> list[Obj]:
    """A running pod with these devices of a node, and its claim."""
    made = small.template(f"{name}-devices", len(devices))
    found, own = small.created(small.pod(name, f"{name}-devices", nodeName=on, **spec), made)
    found["status"] = {**found["status"], "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    results = [{"request": "neurons", "driver": "neuron.aws.com", "pool": on, "device": each} for each in devices]
    fields = [{"key": "metadata.name", "operator": "In", "values": [on]}]
    at = {"nodeSelectorTerms": [{"matchFields": fields}]}
    users = [{"resource": "pods", "name": name, "uid": found["metadata"]["uid"]}]
    own["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": at}, "reservedFor": users}
    return [made, found, own]


def whole(name: str = "old", on: str = "a", **spec: Any) -> list[Obj]:
    """A running pod with all devices of a node."""
    return holder(name, [f"neuron-device-{number}" for number in range(16)], on, **spec)


def full(**spec: Any) -> list[Obj]:
    """Node a, full with the pod `old`, and the pod `p` that wants all its devices."""
    return asks([*small.base("a"), *whole()], 16, said="0/1 nodes are available: 1 cannot allocate all claims.", **spec)


def owned(item: Obj, kind: str, name: str, **labels: str) -> None:
    """Give an object a controller, and labels."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    item["metadata"] |= {"ownerReferences": [owner], "labels": labels}


def rollout() -> list[Obj]:
    """A Deployment's new pod that waits for the devices of its old one."""
    items = full()
    owned(pod(items), "ReplicaSet", "web-7c9d", app="web", **{"pod-template-hash": "7c9d"})
    owned(pod(items, "old"), "ReplicaSet", "web-6d5f", app="web", **{"pod-template-hash": "6d5f"})
    return items


def limits(resource: str, number: int = 1, **spec: Any) -> Obj:
    """A pod that requests devices by its limits, and waits."""
    made = waits(small.pod("p", **spec))
    made["spec"]["containers"][0]["resources"]["limits"] = {resource: str(number)}
    return made


def sets(*sizes: str, instance_type: str = "inf2.48xlarge", number: int = 1, kubelet: str = "v1.37.0") -> list[Obj]:
    """Nodes that publish connected sets of these sizes, `inf2-0` and so on."""
    items = imagined.fleet(f"{number} x {instance_type}", "--fleet", sizes)
    for each in all_of(items, "Node"):
        each["status"] = {"nodeInfo": {"kubeletVersion": kubelet}, "conditions": [{"type": "Ready", "status": "True"}]}
    return items
