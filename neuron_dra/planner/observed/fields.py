"""The types of the fields that a plan reads of the two custom resources.

Their CRDs have these types. An older CRD, or AWS's, may let others pass; what has another type counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.core import shapes
from neuron_dra.core.wire import Wire

_CONDITION: Final = {
    "type": str,
    "status": str,
    "reason": str,
    "message": str,
    "lastTransitionTime": str,
    "observedGeneration": int,
}
WORKLOAD_SPEC: Final = {
    "instanceType": str,
    "topologySize": int,
    "serverCount": int,
    "allocationPolicy": {"failureStrategy": str, "onCordon": str},
    "config": {"logicalNeuronCore": int},
    "resourceClaimTemplate": {"name": str},
    "priorityClassName": str,
    "ttlSecondsUnused": int,
    "expectedDuration": str,
    "qualification": {"maxAge": str},
}
WORKLOAD_STATUS: Final = {
    "state": str,
    "conditions": [_CONDITION],
    "groups": [{}],
    "allocatedAt": str,
    "restarting": {"since": str, "reason": str, "message": str},
    "restarts": int,
    "restartedAt": [str],
    "migrations": int,
    "observedGeneration": int,
    "queue": {"localQueue": str, "returned": int, "returnedAt": str},
}
ULTRASERVER_SPEC: Final = {"instanceType": str, "topology": [{"nodeName": str, "nodeId": int, "nodeUid": str}]}
ULTRASERVER_STATUS: Final = {
    "ultraserverId": str,
    "conditions": [_CONDITION],
    "observedGeneration": int,
    "nodeCount": int,
    "freeNodeCount": int,
    "state": str,
}


def part(item: Wire, name: str, shape: Mapping[str, Any]) -> Wire:
    """Return `spec`, `status` or another part of an object, without fields of another type; empty if it has none."""
    fitting: Wire = shapes.fitting(item.get(name) or {}, shape)
    return fitting


def problem(item: Wire, name: str, shape: Mapping[str, Any]) -> str:
    """Return which field of a part has another type; empty if none has."""
    return shapes.wrong(item.get(name), shape, name)
