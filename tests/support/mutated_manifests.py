"""Manifests with one structural fault each: a field renamed, moved, of another type, or of another version."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from neuron_dra.core.wire import Obj

OTHER_VERSIONS = {"resource.k8s.io/v1": ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2")}
VALUES: tuple[Any, ...] = ("text", 7, 1.5, True, ["text"], {"key": "text"}, [], {})


def bases() -> list[Obj]:
    """Return manifests that every supported API server accepts."""
    request = {
        "name": "neurons",
        "exactly": {
            "deviceClassName": "neuron.aws.com",
            "allocationMode": "ExactCount",
            "count": 4,
            "selectors": [
                {"cel": {"expression": "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarge'"}}
            ],
            "tolerations": [{"key": "neuron.aws.com/unhealthy", "operator": "Exists"}],
        },
    }
    alternatives = [{"name": name, "deviceClassName": "neuron.aws.com", "count": 1} for name in ("one", "other")]
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    devices = {
        "requests": [request, {"name": "any", "firstAvailable": alternatives}],
        "constraints": [{"requests": ["neurons"], "matchAttribute": "resource.aws.com/devicegroup4_id"}],
        "config": [{"requests": ["neurons"], "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}],
    }
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "command": ["train"],
        "env": [{"name": "NEURON_RT_NUM_CORES", "value": "8"}],
        "ports": [{"containerPort": 8080, "name": "metrics"}],
        "resources": {"claims": [{"name": "neurons"}], "limits": {"memory": "16Gi"}, "requests": {"cpu": 4}},
        "securityContext": {"privileged": False, "capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "containers": [container],
        "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": "four"}],
        "nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"},
        "tolerations": [{"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "terminationGracePeriodSeconds": 30,
    }
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pod}
    selector = {"matchLabels": {"app": "train"}}
    return [
        _object("resource.k8s.io/v1", "ResourceClaim", {"devices": devices}),
        _object("resource.k8s.io/v1", "ResourceClaimTemplate", {"metadata": {}, "spec": {"devices": devices}}),
        _object(
            "resource.k8s.io/v1",
            "DeviceClass",
            {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
        ),
        _object("v1", "Pod", pod),
        _object("apps/v1", "Deployment", {"replicas": 2, "selector": selector, "template": template}),
        _object(
            "batch/v1",
            "Job",
            {"parallelism": 2, "template": {"spec": {**pod, "restartPolicy": "Never"}}, "backoffLimit": 0},
        ),
    ]


def _object(version: str, kind: str, spec: Obj) -> Obj:
    meta: Obj = {"name": "train"} if kind == "DeviceClass" else {"name": "train", "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": copy.deepcopy(spec)}


def mutated(seed: int) -> tuple[str, Obj]:
    """Return what was done to a manifest, and the manifest."""
    rng = random.Random(seed)
    item = copy.deepcopy(rng.choice(bases()))
    how = rng.choice(("rename", "move", "type", "version"))
    if how == "version":
        others = OTHER_VERSIONS.get(item["apiVersion"])
        if others:
            item["apiVersion"] = rng.choice(others)
            return f"{item['kind']}: {item['apiVersion']}", item
        how = "rename"
    places = list(_places(item["spec"], "spec"))
    path, owner, key = rng.choice(places)
    if how == "rename":
        value = owner.pop(key)
        new = rng.choice((f"{key}s", key[:-1] or "x", key.capitalize(), key.lower() + "Name"))
        owner[new] = value
        return f"{item['kind']}: {path} renamed to {new}", item
    if how == "move":
        value = owner.pop(key)
        target, other, _ = rng.choice(places)
        other[key] = value
        return f"{item['kind']}: {path} moved beside {target}", item
    owner[key] = copy.deepcopy(rng.choice(VALUES))
    return f"{item['kind']}: {path} is {owner[key]!r}", item


def _places(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield path, mapping and key of each field whose name the API knows."""
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            at = f"{path}.{key}"
            yield at, value, key
            if key != "parameters":
                yield from _places(inner, at)
