"""Slices of EFA interfaces as the driver publishes them, for tests without a node."""

from __future__ import annotations

from neuron_dra.core import catalogue, efa
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.efa import Interface
from neuron_dra.core.wire import Obj


def resource_slice(node: str, instance_type: str) -> Obj:
    """Return the slice of a node whose type has EFA interfaces."""
    spec = catalogue.lookup(instance_type)
    functions = sorted(set(spec.efa or ())) if spec is not None else []
    devices = [efa.published(Interface(function, f"rdma{number}"), spec) for number, function in enumerate(functions)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{EFA.name}-00"},
        "spec": {
            "driver": EFA.name,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
