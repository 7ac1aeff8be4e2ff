"""The controller's watches read all fields that `decode` uses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.inspect import DictType, ListType, StructType, Type, UnionType, type_info

from controller.limits import advice, unanswered
from hack.bench.ultraservers import ultraserver
from neuron_dra.core import sizes
from neuron_dra.core.ultraserver import TAG_ATTRIBUTES
from neuron_dra.planner.observed import decode, projections, slices

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "a",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "labels": {"neuron.amazonaws.com/ultraserver-mode": "1_2_4", "topology.k8s.aws/capacity-block-id": "cr-1"},
        "annotations": {
            "node.alpha.kubernetes.io/ttl": "0",
            "neuron.aws.com/capacity-block-end": "2026-12-01T11:30:00Z",
        },
    },
    "spec": {
        "providerID": "aws:///us-west-2d/i-1",
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}],
    },
    "status": {
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronDMAError", "message": "nd3"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T12:01:00Z"},
        ],
        "images": [{"names": ["registry.example/a"], "sizeBytes": 1}],
    },
}

Path = tuple[str, ...]


class Watched(dict[str, Any]):
    """A part of an object that records the path of each key that is read; `*` is any element of a list."""

    def __init__(self, value: dict[str, Any], seen: set[Path], path: Path = ()) -> None:
        self._seen, self._path = seen, path
        super().__init__({key: self._wrapped(one, (*path, key)) for key, one in value.items()})

    def _wrapped(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return Watched(value, self._seen, path)
        if isinstance(value, list):
            return [self._wrapped(each, (*path, "*")) for each in value]
        return value

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add((*self._path, key))
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._seen.add((*self._path, key))
        return super().__getitem__(key)


def covers(kind: Type, path: Path) -> bool:
    """Return True if an object decoded as `kind` has the field at `path`."""
    if isinstance(kind, UnionType):
        return any(covers(each, path) for each in kind.types)
    if not path:
        return True
    if isinstance(kind, ListType):
        return path[0] == "*" and covers(kind.item_type, path[1:])
    if isinstance(kind, DictType):
        return covers(kind.value_type, path[1:])
    if isinstance(kind, StructType):
        return any(one.encode_name == path[0] and covers(one.type, path[1:]) for one in kind.fields)
    return False


POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ml", "uid": "u", "resourceVersion": "7", "annotations": {"a": "x"}},
    "spec": {
        "schedulerName": "my-scheduler",
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"aws.amazon.com/neuron": "1"}}}],
        "initContainers": [{"name": "i", "resources": {"requests": {sizes.resource_name(sizes.DEVICE, 4): "1"}}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "node.kubernetes.io/instance-type",
                                    "operator": "In",
                                    "values": ["trn2.48xlarge"],
                                }
                            ]
                        }
                    ]
                }
            }
        },
    },
    "status": {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/9 nodes",
                "lastTransitionTime": "2026-03-01T12:01:00Z",
            }
        ]
    },
}
BARE: dict[str, Any] = {"metadata": {"name": "bare", "creationTimestamp": "2026-03-01T12:00:00Z"}}


@pytest.mark.parametrize("item", [NODE, BARE])
def test_decode_uses_only_fields_that_are_read(item: dict[str, Any]) -> None:
    seen: set[Path] = set()
    decode.cluster_node(Watched(item, seen))
    assert {path for path in seen if not covers(type_info(projections.NodeFields), path)} == set()


@pytest.mark.parametrize("item", [NODE, BARE])
def test_projection_equals_the_whole_object(item: dict[str, Any]) -> None:
    part = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(item), type=projections.NodeFields))
    assert decode.cluster_node(part) == decode.cluster_node(item)


@pytest.mark.parametrize(
    "item",
    [
        POD,
        {"metadata": POD["metadata"]},
        {**POD, "spec": {**POD["spec"], "nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}},
        {**POD, "spec": {**POD["spec"], "schedulingGates": [{"name": "g"}]}},
        {**POD, "metadata": {**POD["metadata"], "deletionTimestamp": "2026-03-01T12:01:00Z"}},
    ],
)
def test_pods_are_read_as_far_as_the_limits_watcher_uses_them(item: dict[str, Any]) -> None:
    seen: set[Path] = set()
    advice.waiting(Watched(item, seen))
    unanswered.pending(Watched(item, seen))
    assert {path for path in seen if not covers(type_info(projections.PodWithLimits), path)} == set()
    part = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(item), type=projections.PodWithLimits))
    assert advice.waiting(part) == advice.waiting(item)
    assert unanswered.pending(part) == unanswered.pending(item)
    assert advice.waiting(POD) is not None  # the example has what the watcher looks for


def test_nodes_are_read_as_far_as_the_limits_watcher_uses_them() -> None:
    node = {**NODE, "status": {**NODE["status"], "allocatable": {"aws.amazon.com/neuron": "16", "cpu": "8"}}}
    seen: set[Path] = set()
    assert unanswered.has_device_plugin(Watched(node, seen))
    assert {path for path in seen if not covers(type_info(projections.NodeResources), path)} == set()
    part = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(node), type=projections.NodeResources))
    assert unanswered.has_device_plugin(part)


def published(kind: str) -> list[dict[str, Any]]:
    """Return the slices of a node: reserved, with connected sets, or as v1beta1 has them."""
    found = [item for item in ultraserver("u0", whole_nodes=kind != "devices") if item["kind"] == "ResourceSlice"]
    devices = [device for item in found for device in item["spec"]["devices"]]
    for device in devices:
        if kind == "qualified":
            device["attributes"] = {f"neuron.aws.com/{key}": value for key, value in device["attributes"].items()}
        if kind == "reserved":
            device["attributes"] |= {name: {"string": name} for name in TAG_ATTRIBUTES[:4]}
            device["attributes"] |= {"workloadPhase": {"string": "Bound"}, "unhealthy": {"string": "a,b"}}
        if kind == "v1beta1":
            device["basic"] = {"attributes": device.pop("attributes")}
    return [*found, BARE, {**BARE, "spec": {"driver": "neuron.aws.com", "nodeName": "a", "pool": {"name": "a"}}}]


KINDS = ("whole node", "devices", "qualified", "reserved", "v1beta1")


@pytest.mark.parametrize("kind", KINDS)
def test_slices_are_read_as_far_as_they_are_used(kind: str) -> None:
    for item in published(kind):
        seen: set[Path] = set()
        slices.published_slice(Watched(item, seen))
        assert {path for path in seen if not covers(type_info(projections.Slice), path)} == set()
        part = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(item), type=projections.Slice))
        assert slices.published_slice(part) == slices.published_slice(item)


def test_attributes_that_are_not_used_cost_nothing() -> None:
    """A node with connected sets publishes a hundred devices, of which each consumes counters."""
    [item] = [each for each in ultraserver("u0", whole_nodes=False) if each["metadata"]["name"].startswith("u0-0-")]
    part = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(item), type=projections.Slice))
    found = {name for device in part["spec"]["devices"] for name in device["attributes"]}
    assert found <= {*slices.QUALIFIED, *slices.QUALIFIED.values()}
    assert {key for device in part["spec"]["devices"] for key in device} == {"attributes"}


def test_nodes_share_the_names_of_their_labels() -> None:
    """20,000 nodes have five labels about UltraServers each."""
    first, second = (decode.cluster_node(copied(NODE)) for _ in range(2))
    pairs = list(zip(first.labels, second.labels, strict=True))
    assert pairs
    assert all(one is other for one, other in pairs)


def copied(item: dict[str, Any]) -> Any:
    """Return the object as another reply has it, with strings of its own."""
    return msgspec.json.decode(msgspec.json.encode(item))
