"""Objects that this driver and its chart lead to: a node's slices, the DeviceClasses, an allocated claim."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neuron_dra.core import catalogue, connected, names, numa, slices, topology
from neuron_dra.core.devices import Device
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts
from neuron_dra.core.partitions import Partitioned
from neuron_dra.core.topology import Node
from neuron_dra.core.wire import Obj


def healthy_node(
    instance_type: str, *, ultraserver: UltraServerFacts | None = None, without_file: Iterable[int] = ()
) -> Node:
    """Return a healthy node of this type; the devices in `without_file` have no file in /dev."""
    spec = catalogue.lookup(instance_type)
    if spec is None:
        raise ValueError(f"{instance_type} is not in the catalogue")
    ids_without_file = set(without_file)
    links = spec.links or ((),) * spec.device_count
    cores = spec.cores_per_device
    device_facts = []
    for device_id in range(spec.device_count):
        device_facts.append(
            DeviceFacts(device_id, cores, links[device_id], (243, device_id), device_id not in ids_without_file)
        )
    devices = tuple(device_facts)
    facts = NodeFacts(instance_type, "2.30.2.0", devices, ultraserver or UltraServerFacts(), numa=numa.facts(spec))
    return topology.build(facts, NodeLabels())


def node_object(
    name: str, *, labels: Mapping[str, str] | None = None, allocatable: Mapping[str, str] | None = None
) -> Obj:
    """Return a Node as a kubelet registers it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "status": {
            "nodeInfo": {"kubeletVersion": "v1.36.0"},
            "allocatable": {"cpu": "192", **(allocatable or {})},
        },
    }


def neuron_config(logical_neuron_core: int, *, requests: Sequence[str] = (), source: str = "FromClaim") -> Obj:
    """Return an allocation's config entry with a NeuronConfig."""
    parameters = {
        "apiVersion": f"{names.DRIVER}/v1",
        "kind": "NeuronConfig",
        "logicalNeuronCore": logical_neuron_core,
    }
    return opaque(parameters, requests=requests, source=source)


def opaque(parameters: Any, *, requests: Sequence[str] = (), source: str = "FromClaim") -> Obj:
    """Return an allocation's config entry with these parameters for the Neuron driver."""
    return {
        "source": source,
        **({"requests": list(requests)} if requests else {}),
        "opaque": {"driver": names.DRIVER, "parameters": parameters},
    }


def allocated_claim(
    name: str,
    node: str,
    devices: Iterable[int | str | Obj],
    *,
    namespace: str = "default",
    config: Sequence[Obj] = (),
    pod: str = "",
    request: str = "neuron",
    of_its_pod: bool = False,
) -> Obj:
    """Return a ResourceClaim that is allocated on `node` and reserved for a pod (by default, with the claim's name).

    A device is a number, a name, or a result whose missing fields are filled in. With `of_its_pod` the pod owns the
    claim, as if it were made from a template.
    """
    results = []
    for device in devices:
        result = device if isinstance(device, dict) else {"device": device}
        number = result["device"]
        label = f"{names.DEVICE_PREFIX}{number}" if isinstance(number, int) else number
        results.append({"request": request, "driver": names.DRIVER, "pool": node, **result, "device": label})
    request_names = sorted({result["request"].split("/")[0] for result in results}) or [request]
    user = {"name": pod or name, "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name))}
    if of_its_pod:
        owners = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", **user, "controller": True}]}
    else:
        owners = {}
    requests = []
    for request_name in request_names:
        requests.append({"name": request_name, "exactly": {"deviceClassName": names.DRIVER}})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, **owners},
        "spec": {"devices": {"requests": requests}},
        "status": {
            "allocation": {"devices": {"results": results, **({"config": list(config)} if config else {})}},
            "reservedFor": [{"resource": "pods", **user}],
        },
    }


def device_class(name: str, selector: str) -> Obj:
    """Return a DeviceClass of the Neuron driver, as in deploy/."""
    expression = f"device.driver == '{names.DRIVER}' && {selector}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


DEVICE_CLASSES = (
    device_class(names.DRIVER, f"!has(device.attributes['{names.DRIVER}'].workloadUid) && {connected.EXCLUSION}"),
    device_class(
        f"workload.{names.DRIVER}", f"has(device.attributes['{names.DRIVER}'].workloadUid) && {connected.EXCLUSION}"
    ),
)


def slice_objects(node_name: str, kept: Sequence[Device], divided: Partitioned | None = None) -> list[Obj]:
    """Return the slices of a node as first published, without the UID of their owner, which only the cluster has."""
    pool = slices.Pool(node_name, "")
    if divided is None:
        return slices.desired(pool, [device.to_wire() for device in kept], generation=1)
    counters = [counter_set.to_wire() for counter_set in divided.counters]
    return slices.desired(
        pool,
        [partition.device.to_wire() for partition in divided.partitions],
        generation=1,
        counters=counters,
        position=divided.position,
    )
