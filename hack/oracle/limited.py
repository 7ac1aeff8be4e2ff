"""Pods with limits of devices, and the chart's names for them."""

from __future__ import annotations

from typing import Any, Final

from neuron_dra.core.wire import Obj

NEURON: Final = "aws.amazon.com/neuron"
LABEL: Final = "neuron.aws.com/rewrite-limits"


def sets(count: int) -> str:
    return f"deviceclass.resource.kubernetes.io/connected-{count}.neuron.aws.com"


def one(limits: Obj, name: str = "a", **fields: Any) -> Obj:
    return {"name": name, "image": "example.com/image", "resources": {"limits": limits}, **fields}


def pod(*containers: Obj, **spec: Any) -> Obj:
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    return {**item, "spec": {"containers": list(containers), **spec}}
