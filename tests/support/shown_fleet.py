"""Fleets with something of everything, for the page: held, reserved, faulty and cordoned nodes, and what waits."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path

from neuron_dra.ask.world import imagined
from neuron_dra.core import names
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase, Tag, object_name, tagged
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

EVERY = 16  # one node in so many has a fault
SINCE = "2026-01-01T00:00:00Z"


def mixed(servers: int, nodes: int, *, waiting: int = 3) -> list[Obj]:
    """Return UltraServers of four nodes, single nodes, pods, workloads, and some of each fault."""
    lines = [f"{servers} x ultraserver trn2u.48xlarge"] if servers else []
    lines += [f"{nodes} x trn2.48xlarge"] if nodes else []
    items: list[Obj] = imagined.fleet("\n".join(lines), "the test")
    machines = [item for item in items if item["kind"] == "Node"]
    slices: dict[str, Obj] = {item["spec"]["nodeName"]: item for item in items if item["kind"] == "ResourceSlice"}
    groups: dict[str, list[str]] = {}
    for name, item in slices.items():
        server = item["spec"]["devices"][0]["attributes"].get("ultraserverId")
        if server:
            groups.setdefault(server["string"], []).append(name)
    found = [*items, small.template("whole", 16, namespace="ml"), small.template("seventeen", 17, namespace="ml")]
    for number, (server, members) in enumerate(groups.items()):
        found += _server(number, server, members, slices)
    for number, node in enumerate(machines):
        name = node["metadata"]["name"]
        if not any(name in members for members in groups.values()):
            found += _alone(number, node, slices[name])
    for number in range(waiting):
        found.append(_pod(f"waits-{number}", "ml", "whole" if number % 2 else "seventeen"))
    return found


def _server(number: int, server: str, members: list[str], slices: dict[str, Obj]) -> list[Obj]:
    """Reserve every third UltraServer, break a link of every fifth, and put pods on others."""
    if number % 3 == 1:
        name = f"llm-{number}"
        slot = Allocation("ml", name, f"uid-{name}", f"id-{number}", Phase.BOUND, tuple(members), len(members), 0)
        for member in members:
            spec = slices[member]["spec"]
            tag = Tag.of(slot)
            spec["devices"] = [tagged(device, tag) for device in spec["devices"]]
        return [_ultraserver(server, members, [slot.to_wire()]), workload(name, "ml", "Allocated", ready=True)]
    if number % 5 == 3:
        for device in slices[members[0]]["spec"]["devices"]:
            device["attributes"]["linkVertical"] = {"bool": False}
    if number % 3 == 2:
        return [*_held(members[1], f"serve-{number}", [names.NODE_DEVICE]), _ultraserver(server, members, [])]
    return [_ultraserver(server, members, [])]


def _alone(number: int, node: Obj, item: Obj) -> list[Obj]:
    name = node["metadata"]["name"]
    kind = number % EVERY
    if kind == 3:
        node["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "KubeletDown"}]
    if kind == 7:
        node["spec"] = {**node.get("spec", {}), "unschedulable": True}
    if kind == 11:
        device = item["spec"]["devices"][5]
        item["spec"]["devices"] = copy.deepcopy(item["spec"]["devices"])
        item["spec"]["devices"][5] = {
            **device,
            "taints": [{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}],
        }
    if kind in (1, 2, 5, 6):
        return _held(name, f"train-{number}", _numbered(0, 16 if kind == 1 else 4 * (kind % 4)))
    if kind == 10:
        return [*_held(name, f"infer-{number}-0", _numbered(0, 4)), *_held(name, f"infer-{number}-1", _numbered(4, 8))]
    return []


def _numbered(first: int, end: int) -> list[str]:
    return [f"{names.DEVICE_PREFIX}{number}" for number in range(first, end)]


def _held(node: str, name: str, devices: Iterable[str]) -> list[Obj]:
    """Return a running pod and its claim of some devices."""
    pod = small.pod(name, "four", namespace="ml", nodeName=node)
    results = [{"request": "neurons", "driver": names.DRIVER, "pool": node, "device": each} for each in devices]
    pod, claim = small.created(pod, small.template("four", 4))
    user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    pod["status"] |= {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [pod, claim]


def _pod(name: str, namespace: str, template: str) -> Obj:
    pod = small.pod(name, template, namespace=namespace)
    pod["metadata"]["creationTimestamp"] = SINCE
    return pod


def _ultraserver(server: str, members: list[str], allocations: list[Obj]) -> Obj:
    topology = [{"nodeName": name, "nodeId": number} for number, name in enumerate(members)]
    return {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServer",
        "metadata": {"name": object_name(server), "namespace": NAMESPACE},
        "spec": {"instanceType": "trn2u.48xlarge", "topology": topology},
        "status": {"ultraserverId": server, "allocations": allocations},
    }


def workload(name: str, namespace: str, state: str, *, ready: bool, message: str = "") -> Obj:
    """Return a NeuronUltraServerWorkload."""
    reason = "Allocated" if ready else "NoFreeUltraServer"
    condition = {"type": "Ready", "status": str(ready), "reason": reason, "message": message}
    return {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": SINCE},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1},
        "status": {"state": state, "conditions": [condition]},
    }


def ec2_names(items: list[Obj]) -> dict[str, str]:
    """Return a name for each node as EC2 names it, which is long."""
    found = {}
    for number, name in enumerate(item["metadata"]["name"] for item in items if item["kind"] == "Node"):
        found[name] = f"ip-10-{12 + number // 200}-{number % 200}-{number * 91 % 250}.us-east-2.compute.internal"
    return found


def with_ec2_names(items: list[Obj]) -> list[Obj]:
    """Return the objects with nodes that have such names."""
    text = json.dumps(items)
    for name, long in ec2_names(items).items():
        text = text.replace(f'"{name}"', f'"{long}"')
    found: list[Obj] = json.loads(text)
    return found


def written(folder: Path, items: list[Obj], name: str = "fleet.json") -> Path:
    """Write the objects as kubectl prints them."""
    file = folder / name
    whole = {"apiVersion": "v1", "items": items, "kind": "List"}
    file.write_text(json.dumps(whole, indent=4) + "\n")
    return file
