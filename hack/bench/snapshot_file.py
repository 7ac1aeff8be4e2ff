"""A large snapshot as `kubectl get -o json` prints it, with objects of the size that a real cluster has.

A kubelet reports the images of its Node, and the API server returns a pod with its volumes, conditions and the states
of its containers. The slices are those that the plugin publishes. Nodes are written one by one, so that a file of
gigabytes needs no memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuron_dra.api import objects
from neuron_dra.ask.world import imagined
from neuron_dra.core import names
from neuron_dra.core.wire import Obj

TYPE = "trn2.48xlarge"
PLACE = "ip-of-the-node"
"""Stands for the node's name in the text of a node's objects."""
NEAR = "nn-of-the-node"
"""Stands for the network node that the node shares with its neighbours."""
NEIGHBOURS = 16
TIME = "2026-01-05T10:00:00Z"
DIGEST = "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"


def write(path: Path, nodes: int, extra: list[Obj]) -> int:
    """Write a snapshot with this many nodes, a pod on each, and `extra` objects; return its size in bytes."""
    texts = [_text(each) for each in _of_a_node()]
    first = ",\n".join(_text(each) for each in [*objects.DEVICE_CLASSES, *extra])
    with open(path, "w", encoding="utf-8") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n' + first)
        for number in range(nodes):
            time = f"2026-01-05T10:{number // 60 % 60:02}:{number % 60:02}Z"
            name, near = f"ip-10-{number // 250}-{number % 250}-7.ec2.internal", f"nn-{number // NEIGHBOURS:017x}"
            for text in texts:
                file.write(",\n" + text.replace(PLACE, name).replace(NEAR, near).replace(TIME, time))
        file.write('\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n')
    return path.stat().st_size


def _text(item: Any) -> str:
    """Return an object as kubectl prints it inside of a list."""
    whole = json.dumps({"items": [item]}, indent=4, sort_keys=True)
    lines = whole.splitlines()[2:-2]
    return "\n".join(lines)


def _of_a_node() -> Iterator[Obj]:
    """Yield a node, its slice, and a pod with its claim, which leaves two devices of each row free."""
    yield node(PLACE)
    for item in imagined.fleet(f"1 x {TYPE}", "bench"):
        if item["kind"] == "ResourceSlice":
            yield _published(item)
    yield from holder(PLACE, f"job-{PLACE}", [4 * row + column for row in range(4) for column in range(2)])


def _published(item: Obj) -> Obj:
    """Return a slice as the API server has it, with the network nodes that the plugin reads from the Node's labels."""
    spec = item["spec"]
    layers = {f"networkNodeLayer{n}": {"string": value} for n, value in ((1, "nn-1"), (2, "nn-2"), (3, NEAR))}
    devices = [{**device, "attributes": {**device["attributes"], **layers}} for device in spec["devices"]]
    owner = {"apiVersion": "v1", "controller": True, "kind": "Node", "name": PLACE, "uid": f"uid-{PLACE}"}
    meta = {**_meta(f"{PLACE}-{names.DRIVER}-x7k2p"), "generateName": f"{PLACE}-{names.DRIVER}-"}
    meta["ownerReferences"] = [owner]
    pool = {**spec["pool"], "name": PLACE}
    return {**item, "metadata": meta, "spec": {**spec, "nodeName": PLACE, "pool": pool, "devices": devices}}


def _meta(name: str, namespace: str = "") -> Obj:
    meta = {"creationTimestamp": TIME, "name": name, "resourceVersion": "184467", "uid": f"uid-{name}"}
    return {**meta, "namespace": namespace} if namespace else meta


def node(name: str) -> Obj:
    """Return a Node as a kubelet on EC2 keeps it."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": TYPE,
        "beta.kubernetes.io/os": "linux",
        "eks.amazonaws.com/capacityType": "CAPACITY_BLOCK",
        "eks.amazonaws.com/nodegroup": "training",
        "failure-domain.beta.kubernetes.io/region": "us-east-2",
        "failure-domain.beta.kubernetes.io/zone": "us-east-2a",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        names.INSTANCE_TYPE_LABEL: TYPE,
        "topology.k8s.aws/network-node-layer-1": "nn-1",
        "topology.k8s.aws/network-node-layer-2": "nn-2",
        "topology.k8s.aws/network-node-layer-3": NEAR,
        "topology.kubernetes.io/region": "us-east-2",
        "topology.kubernetes.io/zone": "us-east-2a",
    }
    notes = {
        "alpha.kubernetes.io/provided-node-ip": "10.0.0.7",
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }
    meta = {**_meta(name), "labels": labels, "annotations": notes}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": {"providerID": f"aws:///us-east-2a/i-{name}"},
        "status": _node_status(name),
    }


def _node_status(name: str) -> Obj:
    amounts = {
        "cpu": "192",
        "ephemeral-storage": "524275692Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "21208Mi",
        "memory": "2097152000Ki",
        "pods": "250",
        "vpc.amazonaws.com/efa": "16",
    }
    healthy = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = []
    for kind in healthy:
        conditions.append(
            {
                "lastHeartbeatTime": TIME,
                "lastTransitionTime": TIME,
                "message": f"kubelet has no {kind}",
                "reason": f"Kubelet{kind}",
                "status": str(kind == "Ready"),
                "type": kind,
            }
        )
    images = []
    for number in range(25):
        repository = f"602401143452.dkr.ecr.us-east-2.amazonaws.com/training/image-{number}"
        images.append({"names": [f"{repository}@{DIGEST}", f"{repository}:v1.{number}.0"], "sizeBytes": 10**9 + number})
    return {
        "addresses": [{"address": "10.0.0.7", "type": "InternalIP"}, {"address": name, "type": "Hostname"}],
        "allocatable": {**amounts, "cpu": "191450m"},
        "capacity": amounts,
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "images": images,
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": f"boot-{name}",
            "containerRuntimeVersion": "containerd://2.1.4",
            "kernelVersion": "6.12.40-64.114.amzn2023.x86_64",
            "kubeletVersion": "v1.36.0",
            "machineID": f"machine-{name}",
            "operatingSystem": "linux",
            "osImage": "Amazon Linux 2023",
            "systemUUID": f"system-{name}",
        },
    }


def holder(node_name: str, name: str, devices: list[int]) -> Iterator[Obj]:
    """Yield a running pod as the API server has it, and its claim."""
    claim_name = f"{name}-neurons-h8w2x"
    made = objects.allocated_claim(claim_name, node_name, devices, pod=name, of_its_pod=True)
    reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
    notes = {"resource.kubernetes.io/pod-claim-name": "neurons"}
    meta = {**made["metadata"], **_meta(claim_name, "default"), "annotations": notes}
    meta["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    yield {**made, "metadata": meta, "status": {**made["status"], "reservedFor": reserved}}
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**_meta(name, "default"), "labels": {"app": "train", "batch.kubernetes.io/job-name": "train"}},
        "spec": _pod_spec(node_name),
        "status": _pod_status(claim_name),
    }


def _pod_spec(node_name: str) -> Obj:
    settings = [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(12)]
    mounts = [{"mountPath": f"/data/{number}", "name": f"volume-{number}"} for number in range(4)]
    volumes = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": f"v{number}"}} for number in range(4)
    ]
    amounts = {"cpu": "8", "memory": "64Gi"}
    container = {
        "command": ["torchrun", "--nproc-per-node=32", "train.py"],
        "env": settings,
        "image": f"602401143452.dkr.ecr.us-east-2.amazonaws.com/training/image@{DIGEST}",
        "imagePullPolicy": "IfNotPresent",
        "name": "main",
        "resources": {"claims": [{"name": "neurons"}], "limits": amounts, "requests": amounts},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    tolerations = []
    for word in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{word}"
        tolerations.append({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300})
    return {
        "containers": [container],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "nodeName": node_name,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": "connected-4"}],
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": tolerations,
        "volumes": volumes,
    }


def _pod_status(claim_name: str) -> Obj:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = []
    for kind in kinds:
        conditions.append({"lastProbeTime": None, "lastTransitionTime": TIME, "status": "True", "type": kind})
    container = {
        "containerID": f"containerd://{DIGEST}",
        "image": "training/image",
        "imageID": f"training/image@{DIGEST}",
        "lastState": {},
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "started": True,
        "state": {"running": {"startedAt": TIME}},
    }
    return {
        "conditions": conditions,
        "containerStatuses": [container],
        "hostIP": "10.0.0.7",
        "phase": "Running",
        "podIP": "10.0.1.7",
        "podIPs": [{"ip": "10.0.1.7"}],
        "qosClass": "Burstable",
        "resourceClaimStatuses": [{"name": "neurons", "resourceClaimName": claim_name}],
        "startTime": TIME,
    }
