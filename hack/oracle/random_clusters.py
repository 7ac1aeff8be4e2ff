"""Random clusters as objects, for the study of placements: nodes with slices, rules that taint, pods one by one and in groups.

Nodes publish devices, or connected sets and cores of several sizes. Pods have claims, or limits of a size, and init
containers and sidecars whose requests count in other ways.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import yaml

from hack.oracle.allocator import CLASSES
from hack.oracle.connected_slices import partitions_of, slices_of
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices, names, slices
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj

TYPES: Final = ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "trn1.2xlarge")
WITH_SETS: Final = ("inf2.48xlarge", "trn1.32xlarge", "trn1.2xlarge")
"""Types of nodes that publish sets too."""
SIZES: Final = ("connected-1", "connected-2", "connected-3", "connected-4", "connected-8", "cores-1", "cores-2")
PREFIX: Final = "deviceclass.resource.kubernetes.io/"
LABEL: Final = "case"
NAMESPACE: Final = "default"
DRIVER: Final = names.DRIVER
GROUPS: Final = tuple(f"{names.GROUP_DOMAIN}/devicegroup{size}_id" for size in (4, 8))
POD_GROUP: Final = "scheduling.k8s.io/v1beta1"


@dataclass(frozen=True, slots=True)
class Step:
    """Pods that are created at once, each with its claim, if it has one that the scheduler does not make; their group."""

    pods: list[tuple[Obj, Obj | None]]
    group: Obj | None = None


@dataclass(slots=True)
class Case:
    """One random cluster: its nodes with their slices, its rules, and what happens step by step; then the results."""

    number: int
    nodes: list[tuple[Obj, list[Obj]]] = field(default_factory=list)
    rules: list[Obj] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    sizes: tuple[str, ...] = ()
    """The sizes of connected sets and cores that its nodes publish, or some that they do not."""
    wrong: str = ""
    placed: int = 0
    refused: int = 0
    late: int = 0
    undecided: int = 0


def case(number: int, *, sets: bool = True) -> Case:
    """Return the case of this number; without `sets`, its nodes publish whole devices only."""
    rng = random.Random(number)
    made = Case(number)
    for index in range(rng.randint(2, 4)):
        made.nodes.append(_node(rng, f"c{number}-n{index}", number, sets=sets))
    made.sizes = _offered(made) or SIZES
    if rng.random() < 0.4:
        made.rules = [_rule(rng, made, index) for index in range(rng.randint(1, 2))]
    for index in range(rng.randint(2, 5)):
        name = f"c{number}-p{index}"
        if rng.random() < 0.2:
            made.steps.append(_gang(rng, name, made))
        else:
            made.steps.append(Step([_pod(rng, name, made)]))
    return made


def _offered(made: Case) -> tuple[str, ...]:
    found = set()
    for _, published in made.nodes:
        for device in (each for item in published for each in item["spec"].get("devices") or ()):
            for attribute, kind in (("connectedDevices", "connected"), ("cores", "cores")):
                if attribute in device["attributes"]:
                    found.add(f"{kind}-{device['attributes'][attribute]['int']}")
    return tuple(sorted(found))


@cache
def classes() -> list[Obj]:
    """Return the DeviceClasses of the manifests."""
    return [item for item in yaml.safe_load_all(CLASSES.read_text()) if item and item["kind"] == "DeviceClass"]


def _node(rng: random.Random, name: str, number: int, *, sets: bool) -> tuple[Obj, list[Obj]]:
    with_sets = rng.random() < 0.4 and sets
    kind = rng.choice(WITH_SETS if with_sets else TYPES)
    labels = {LABEL: str(number), "zone": rng.choice("ab"), names.INSTANCE_TYPE_LABEL: kind}
    spec: Obj = {}
    if rng.random() < 0.1:
        spec["unschedulable"] = True
    if rng.random() < 0.2:
        spec["taints"] = [{"key": "team", "value": rng.choice("xy"), "effect": "NoSchedule"}]
    status = {
        "capacity": {"cpu": str(rng.choice((4, 16, 32))), "memory": "64Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    labels["kubernetes.io/hostname"] = name
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
    made = _sets(rng, kind, name) if with_sets else _devices(rng, kind, name)
    return {**node, "status": status}, made


def _devices(rng: random.Random, kind: str, name: str) -> list[Obj]:
    published = [
        each.to_wire()
        for each in devices.published(healthy_node(kind), driver_version="1.2.3", ultraserver_devices="devices")
    ]
    for device in published:
        _tainted(rng, device)
    published = [device for device in published if rng.random() > 0.04 or len(published) == 1]
    return slices.desired(Pool(name, f"uid-{name}"), published, 1)


def _sets(rng: random.Random, kind: str, name: str) -> list[Obj]:
    made = slices_of(partitions_of(kind), Pool(name, f"uid-{name}"))
    for item in made:
        for device in item["spec"].get("devices") or ():
            _tainted(rng, device)
    return made


def _tainted(rng: random.Random, device: Obj) -> None:
    if rng.random() < 0.06:
        effect = rng.choice(("NoSchedule", "NoExecute", "None"))
        device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "x", "effect": effect}]


def _rule(rng: random.Random, made: Case, index: int) -> Obj:
    """Return a rule for a node of the case, or for one device of it."""
    node, published = rng.choice(made.nodes)
    selects = {"driver": DRIVER, "pool": node["metadata"]["name"]}
    named = [device["name"] for item in published for device in item["spec"].get("devices") or ()]
    if rng.random() < 0.7:
        selects["device"] = rng.choice([*named, "neuron-device-99"])
    taint = {"key": "example.com/out", "effect": rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))}
    meta = {"name": f"c{made.number}-rule-{index}"}
    spec = {"deviceSelector": selects, "taint": taint}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": meta, "spec": spec}


def _gang(rng: random.Random, name: str, made: Case) -> Step:
    """Return pods that are equal, and must run at once, all or some of them."""
    pod, claim = _pod(rng, name, made)
    size = rng.randint(2, 4)
    pods: list[tuple[Obj, Obj | None]] = []
    for index in range(size):
        own = f"{name}-{index}"
        text = json.dumps([pod, claim]).replace(f'"{name}"', f'"{own}"')
        each, its_claim = json.loads(text)
        each["spec"]["schedulingGroup"] = {"podGroupName": name}
        pods.append((each, its_claim))
    policy = {"gang": {"minCount": rng.randint(2, size)}}
    meta = {"name": name, "namespace": NAMESPACE}
    group = {"apiVersion": POD_GROUP, "kind": "PodGroup", "metadata": meta, "spec": {"schedulingPolicy": policy}}
    return Step(pods, group)


def _pod(rng: random.Random, name: str, made: Case) -> tuple[Obj, Obj | None]:
    select = {LABEL: str(made.number), **({"zone": rng.choice("ab")} if rng.random() < 0.1 else {})}
    container: Obj = {"name": "main", "image": "none", "resources": {"requests": {"cpu": str(rng.choice((1, 1, 3)))}}}
    inner: Obj = {"containers": [container], "nodeSelector": select}
    if rng.random() < 0.4:
        inner["initContainers"] = [_first(rng, index) for index in range(rng.randint(1, 3))]
    if rng.random() < 0.6:
        inner["tolerations"] = [{"key": "team", "operator": "Exists"}]
    meta = {"name": name, "namespace": NAMESPACE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inner}
    if rng.random() < 0.2:
        container["resources"]["limits"] = {f"{PREFIX}{rng.choice(made.sizes)}.{DRIVER}": str(rng.choice((1, 1, 2)))}
        return pod, None
    users = [container, *inner.get("initContainers", ())[: rng.randint(0, 1)]]
    for each in users:
        each["resources"]["claims"] = [{"name": "d"}]
    inner["resourceClaims"] = [{"name": "d", "resourceClaimName": name}]
    return pod, _claim(rng, name, made)


def _first(rng: random.Random, index: int) -> Obj:
    """Return an init container; a sidecar, which goes on to run, is one of three."""
    requests = {"cpu": rng.choice(("500m", "1", "2", "4", "9"))}
    if rng.random() < 0.2:
        requests["memory"] = rng.choice(("1Gi", "1Gi", "30Gi", "65Gi"))
    made: Obj = {"name": f"init-{index}", "image": "none", "resources": {"requests": requests}}
    if rng.random() < 0.33:
        made["restartPolicy"] = "Always"
    return made


def _claim(rng: random.Random, name: str, made: Case) -> Obj:
    requests = [_request(rng, f"r{index}", made) for index in range(rng.choice((1, 1, 1, 2)))]
    constraints = []
    if rng.random() < 0.3:
        constraints.append({"matchAttribute": rng.choice(GROUPS), "requests": [each["name"] for each in requests]})
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def _request(rng: random.Random, name: str, made: Case) -> Obj:
    if rng.random() < 0.2:
        first = {"name": "s0", **_wanted(rng, rng.choice((8, 16)))}
        return {"name": name, "firstAvailable": [first, {"name": "s1", **_wanted(rng, rng.choice((1, 2, 4)))}]}
    if rng.random() < 0.1:
        return {"name": name, "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}}
    if rng.random() < 0.3:
        wanted = _wanted(rng, rng.choice((1, 1, 1, 2)))
        return {"name": name, "exactly": {**wanted, "deviceClassName": f"{rng.choice(made.sizes)}.{DRIVER}"}}
    return {"name": name, "exactly": _wanted(rng, rng.choice((1, 1, 1, 2, 2, 4, 8, 12)))}


def _wanted(rng: random.Random, count: int) -> Obj:
    wanted: Obj = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}
    attribute = f"device.attributes['{DRIVER}']"
    texts = [f"{attribute}.instanceType == '{rng.choice(TYPES)}'", f"{attribute}.deviceId < {rng.choice((4, 8))}"]
    if rng.random() < 0.2:
        wanted["selectors"] = [{"cel": {"expression": rng.choice(texts)}}]
    if rng.random() < 0.2:
        wanted["tolerations"] = [{"operator": "Exists", "effect": rng.choice(("NoSchedule", "NoExecute"))}]
    return wanted
