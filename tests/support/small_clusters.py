"""Small clusters as plain objects, as kubectl prints them: nodes with slices, classes, templates, pods and claims."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from neuron_dra.api import objects
from neuron_dra.api.objects import slice_objects
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.world import placing
from neuron_dra.ask.world.world import World
from neuron_dra.core import devices, names
from neuron_dra.core.ultraserver import Phase, Tag, tagged
from neuron_dra.core.wire import Obj
from neuron_dra.simulate.scheduler import Placement

TYPE = "trn2.48xlarge"
API = "resource.k8s.io/v1"


def slices(node: str, instance_type: str = TYPE) -> list[Obj]:
    made = devices.published(objects.healthy_node(instance_type), driver_version="1.2.3")
    found = []
    for item in slice_objects(node, made):
        spec = {**item["spec"], "pool": {**item["spec"]["pool"], "generation": 1}}
        found.append(
            {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": item["metadata"]["name"]}, "spec": spec}
        )
    return copy.deepcopy(found)


def node(name: str, instance_type: str = TYPE, *, cpu: str = "192", labels: dict[str, str] | None = None) -> Obj:
    every = {names.INSTANCE_TYPE_LABEL: instance_type, "kubernetes.io/hostname": name, **(labels or {})}
    made = objects.node_object(name, labels=every, allocatable={"cpu": cpu, "memory": "2000Gi", "pods": "110"})
    return {**made, "spec": {}, "status": {**made["status"], "conditions": [{"type": "Ready", "status": "True"}]}}


def template(
    name: str, count: int = 1, *, group: str = "", cel: str = "", namespace: str = "default", **exactly: Any
) -> Obj:
    request: Obj = {"deviceClassName": names.DRIVER, "allocationMode": "ExactCount", "count": count, **exactly}
    if cel:
        request["selectors"] = [{"cel": {"expression": cel}}]
    spec: Obj = {"requests": [{"name": "neurons", "exactly": request}]}
    if group:
        spec["constraints"] = [{"requests": ["neurons"], "matchAttribute": group}]
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": {"devices": spec}}}


def pod(name: str, template_name: str = "", *, namespace: str = "default", cpu: str = "1", **spec: Any) -> Obj:
    claims = [{"name": "neurons", "resourceClaimTemplateName": template_name}] if template_name else []
    uses = {"claims": [{"name": claim["name"]} for claim in claims]} if claims else {}
    container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": cpu}, **uses}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"containers": [container], "resourceClaims": claims, **spec},
        "status": {"phase": "Pending"},
    }


def created(pod: Obj, made_from: Obj) -> list[Obj]:
    """Return a pod and the claim that kube-controller-manager makes for it."""
    name = f"{pod['metadata']['name']}-neurons-x"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    claim = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": pod["metadata"]["namespace"],
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": copy.deepcopy(made_from["spec"]["spec"]),
    }
    status = {**pod["status"], "resourceClaimStatuses": [{"name": "neurons", "resourceClaimName": name}]}
    return [{**pod, "status": status}, claim]


def running(
    items: Iterable[Obj], name: str, count: int, on: str, *, group: str = "", namespace: str = "default"
) -> list[Obj]:
    """Return the objects of a pod that runs on a node with devices, beside `items`."""
    made = template(f"{name}-devices", count, group=group, namespace=namespace)
    pinned = pod(name, made["metadata"]["name"], namespace=namespace, nodeSelector={"kubernetes.io/hostname": on})
    world = World(snapshot.build([*items, made, *created(pinned, made)]))
    found = world.snapshot.get("Pod", name, namespace)
    assert found is not None
    outcome = world.place(found)
    assert isinstance(outcome, Placement), outcome
    placed = [dict(item) for item in placing.placed_objects(world, found, outcome)]
    placed[-1]["status"] = {**placed[-1]["status"], "phase": "Running"}
    return [made, *placed]


def reserved(items: list[Obj], workload: str, namespace: str = "ml") -> list[Obj]:
    """Return slices with the tag of a bound workload."""
    tag = Tag(namespace, workload, f"uid-{workload}", "a-1", Phase.BOUND)
    return [
        {**item, "spec": {**item["spec"], "devices": [tagged(device, tag) for device in item["spec"]["devices"]]}}
        for item in items
    ]


def base(*nodes: str, instance_type: str = TYPE) -> list[Obj]:
    """Return nodes with slices, and the classes of the chart."""
    found: list[Obj] = [copy.deepcopy(dict(each)) for each in objects.DEVICE_CLASSES]
    for name in nodes:
        found += [node(name, instance_type), *slices(name, instance_type)]
    return found


def cluster(items: Iterable[Obj]) -> Snapshot:
    return snapshot.build(copy.deepcopy(list(items)))


def node_event(reason: str, message: str) -> Obj:
    """Return an Event of the driver about node a."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"a.{reason.lower()}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "a", "uid": "a"},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
