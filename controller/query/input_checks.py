"""Validates objects from files; errors name the object and the field. Pure.

The API server validates what the controller watches, but not files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from neuron_dra.core import shapes
from neuron_dra.core.ultraserver import GROUPS_AT_MOST
from neuron_dra.errors import NeuronDraError
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import SLOT_SIZES, FleetSnapshot
from neuron_dra.planner.observed.projections import Pod
from neuron_dra.planner.plan.strategies import NAMES, STRATEGIES

_META: Final = {"name": str, "namespace": str, "uid": str, "labels": {}, "finalizers": [str], "ownerReferences": [{}]}
_CONDITIONS: Final = [{"type": str, "status": str, "reason": str, "message": str}]
_RESULT: Final = {"driver": str, "pool": str, "device": str, "adminAccess": bool, "request": str}
_OPAQUE: Final = {"driver": str, "parameters": {}}
_REQUEST: Final = {"name": str, "exactly": {}, "firstAvailable": [{}]}
_CONFIG: Final = [{"opaque": _OPAQUE}]
SHAPES: Final[dict[str, Any]] = {
    "Node": {
        "spec": {"taints": [{"key": str, "effect": str}], "unschedulable": bool, "providerID": str},
        "status": {"conditions": _CONDITIONS},
    },
    "ResourceSlice": {
        "spec": {
            "driver": str,
            "nodeName": str,
            "pool": {"name": str, "generation": int, "resourceSliceCount": int},
            "devices": [{"name": str, "attributes": {}, "basic": {"attributes": {}}}],
        }
    },
    "ResourceClaim": {
        "spec": {"devices": {"requests": [_REQUEST]}},
        "status": {
            "allocation": {"devices": {"results": [_RESULT], "config": _CONFIG}},
            "reservedFor": [{"resource": str, "name": str, "uid": str}],
        },
    },
    "ResourceClaimTemplate": {"spec": {"spec": {"devices": {"requests": [_REQUEST], "config": _CONFIG}}}},
    "DeviceClass": {},
    "NeuronUltraServer": {
        "spec": {"instanceType": str, "topology": [{"nodeName": str, "nodeId": int}]},
        "status": {"conditions": _CONDITIONS, "allocations": [{}]},
    },
    "NeuronUltraServerWorkload": {
        "spec": {
            "instanceType": str,
            "topologySize": int,
            "serverCount": int,
            "allocationPolicy": {"failureStrategy": str},
            "config": {"logicalNeuronCore": int},
            "resourceClaimTemplate": {"name": str},
        },
        "status": {"state": str, "conditions": _CONDITIONS},
    },
}
"""The fields that are read of each kind. Other kinds are not checked."""


class Malformed(NeuronDraError):
    """An object that does not match its kind; the message names object and field."""


def snapshot(items: Iterable[Mapping[str, Any]]) -> FleetSnapshot:
    """Return the snapshot of a list of objects. Raises Malformed for the first that cannot be read."""
    objects = list(items)
    for item in objects:
        _check(item)
    if objects and not any(item.get("kind") in SHAPES for item in objects):
        kinds = ", ".join(sorted({str(item.get("kind")) for item in objects})[:4])
        raise Malformed(f"it has no objects that a plan depends on, only {kinds}")
    return decode.snapshot(objects)


def pods(items: Iterable[Mapping[str, Any]]) -> dict[str, list[Pod]]:
    """Return the pods of a list of objects, by their node. Raises Malformed for the first that cannot be read."""
    pods_by_node: dict[str, list[Pod]] = defaultdict(list)
    for item in items:
        if item.get("kind") != "Pod":
            continue
        try:
            pod = msgspec.convert(item, Pod)
        except msgspec.ValidationError as err:
            raise Malformed(f"Pod {item['metadata']['name']}: {err}") from err
        node = str((item.get("spec") or {}).get("nodeName") or "")
        pods_by_node[node].append(pod)
    return pods_by_node


def _check(item: Mapping[str, Any]) -> None:
    kind = item.get("kind")
    shape = SHAPES.get(str(kind))
    if shape is None:
        return
    meta = item["metadata"]
    if meta.get("namespace"):
        name = f"{kind} {meta['namespace']}/{meta['name']}"
    else:
        name = f"{kind} {meta['name']}"
    wrong = shapes.wrong(item, {"metadata": _META, **shape})
    if not wrong and kind == "NeuronUltraServerWorkload":
        wrong = _wrong_workload(item.get("spec") or {})
    if wrong:
        raise Malformed(f"{name}: {wrong}")


def _wrong_workload(spec: Mapping[str, Any]) -> str:
    """Return what the CRD of this release would reject; empty if nothing."""
    size, count, policy = spec.get("topologySize"), spec.get("serverCount"), spec.get("allocationPolicy") or {}
    strategy = policy.get("failureStrategy")
    if not spec.get("instanceType"):
        return "spec.instanceType is missing: write the type of UltraServer nodes, such as trn3.48xlarge"
    if size not in SLOT_SIZES:
        return f"spec.topologySize {_shown(size)}: write 1, 2 or 4"
    if count is None or not 1 <= count <= GROUPS_AT_MOST:
        return f"spec.serverCount {_shown(count)}: write 1 to {GROUPS_AT_MOST}"
    if strategy is not None and strategy not in NAMES:
        return f"spec.allocationPolicy.failureStrategy is {strategy!r}: write {', '.join(STRATEGIES)}"
    return ""


def _shown(number: object) -> str:
    if number is None:
        return "is missing"
    return f"is {number}"
