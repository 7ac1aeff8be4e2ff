"""Pods and claim templates of the driver on the test bed, and what its nodes have of them."""

from __future__ import annotations

import re

from hack.bed.real_cluster import BedNode, Namespace
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.wire import Obj

IMAGE = "public.ecr.aws/ubuntu/ubuntu:22.04"  # the test bed's own, under the name that the documents use
DATA = "/var/lib/kubelet/plugins/neuron.aws.com"
SLOTS = [f"{DATA}/{name}" for name in checkpoints.SLOTS]


def checkpoint(node: BedNode) -> Checkpoint:
    """Return a node's checkpoint."""
    found = checkpoints.newest(node.run("cat", path).encode() for path in SLOTS)
    assert found is not None
    return found


def prepared(node: BedNode) -> set[str]:
    """Return the UIDs of the claims in a node's checkpoint."""
    return set(checkpoint(node).claims)


def cdi_claims(node: BedNode) -> set[str]:
    """Return the UIDs of the claims that have a CDI file on a node."""
    names = node.run("ls", "/var/run/cdi").split()
    return {m[1] for name in names if (m := re.fullmatch(r"k8s\.neuron\.aws\.com-claim_(.*)\.json", name))}


# Pods.


def is_ready(pod: Obj) -> bool:
    """Return whether a pod's Ready condition is true."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def neurons(place: Namespace, name: str) -> list[int]:
    """Return the numbers of the Neuron devices that a pod sees."""
    listed = place.exec(name, "sh", "-c", "ls /dev").split()
    return sorted(int(m[1]) for word in listed if (m := re.fullmatch(r"neuron(\d+)", word)))


# Manifests.


def template(
    name: str,
    count: int | None = 1,
    *,
    instance_type: str = "trn2.48xlarge",
    group: int = 0,
    config: Obj | None = None,
) -> Obj:
    """Return a ResourceClaimTemplate for `count` devices (None: all) of a type, in one group of that size."""
    selector = f"device.attributes['neuron.aws.com'].instanceType == '{instance_type}'"
    mode: Obj = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    exactly = {"deviceClassName": "neuron.aws.com", **mode, "selectors": [{"cel": {"expression": selector}}]}
    wanted: Obj = {"requests": [{"name": "neurons", "exactly": exactly}]}
    if group:
        constraint = {"requests": ["neurons"], "matchAttribute": f"resource.aws.com/devicegroup{group}_id"}
        wanted["constraints"] = [constraint]
    if config:
        opaque = {"driver": "neuron.aws.com", "parameters": {"apiVersion": "neuron.aws.com/v1", **config}}
        wanted["config"] = [{"requests": ["neurons"], "opaque": opaque}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": wanted}},
    }


def lnc(value: int) -> Obj:
    """Return the parameters that request logical cores of this size."""
    return {"kind": "NeuronConfig", "logicalNeuronCore": value}


def pod(name: str, template_name: str, *, node: str = "") -> Obj:
    """Return a pod that takes one claim from a template and waits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {
                    "name": "ctr0",
                    "image": IMAGE,
                    "command": ["bash", "-c"],
                    "args": ["trap 'exit 0' TERM; sleep 9999 & wait"],
                    "resources": {"claims": [{"name": "neurons"}]},
                }
            ],
            "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": template_name}],
        },
    }
