"""Workloads that a real API server with our CRDs rejects (`tests/bed/test_crds_are_enforced`), with its messages."""

from __future__ import annotations

import copy
from typing import Any, Final

from neuron_dra.core.wire import Obj

JOB: Final[Obj] = {
    "apiVersion": "neuron.aws.com/v1beta1",
    "kind": "NeuronUltraServerWorkload",
    "metadata": {"name": "my-training-job"},
    "spec": {
        "instanceType": "trn3.48xlarge",
        "topologySize": 4,
        "serverCount": 2,
        "allocationPolicy": {"failureStrategy": "NoOp"},
        "resourceClaimTemplate": {"name": "my-training-job-rct"},
    },
}

REJECTED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"spec__topologySize": 3}, "write 1, 2 or 4: the number of nodes that work together in one UltraServer"),
    ({"spec__serverCount": 0}, "write 1 to 1024; to release everything, delete the workload"),
    ({"spec__serverCount": 1025}, "write 1 to 1024"),
    (
        {"spec__allocationPolicy__failureStrategy": "Restart"},
        "failureStrategy Restart: write NoOp, RestartAll or MigrateAffected (ReplaceAffected means the same)",
    ),
    ({"spec__config__logicalNeuronCore": 4}, "write 1 or 2: the physical NeuronCores that make one logical core"),
    (
        {"spec__instanceType": "trn3pds"},
        "instanceType trn3pds: write the instance type of UltraServer nodes, such as trn3.48xlarge or trn2u.48xlarge",
    ),
    ({"metadata__name": "a" * 70}, "metadata.name: write at most 63 characters, it becomes the workloadId of devices"),
    ({"spec__resourceClaimTemplate__name": "My_Template"}, "resourceClaimTemplate.name My_Template: write an object"),
]


def changed(**changes: Any) -> Obj:
    """JOB with other values, by path: `spec__serverCount=1`."""
    workload = copy.deepcopy(JOB)
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = workload
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
    return workload
