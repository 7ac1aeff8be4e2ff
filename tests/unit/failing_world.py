"""A running workload and failures of its nodes, for tests of failure strategies."""

from __future__ import annotations

import datetime
from typing import Any

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import Evict
from neuron_dra.planner.plan.planning import Limits
from tests.unit.ultraserver_world import World

LIMITS = Limits(node_failure_grace=datetime.timedelta(seconds=60), fault_grace=datetime.timedelta(seconds=30))


def running(strategy: str, *, servers: int = 3, size: int = 4, count: int = 2) -> World:
    """A fleet with an allocated workload, and a claim of a pod of it on each of its nodes."""
    world = World([item for n in range(servers) for item in ultraserver(f"u{n}")])
    world.settle(LIMITS)
    world.submit("job", size=size, count=count, allocationPolicy={"failureStrategy": strategy})
    world.settle(LIMITS)
    start_pods(world)
    world.settle(LIMITS)
    world.log.clear()
    return world


def start_pods(world: World) -> None:
    """Place a pod on each empty Bound node, as the workload's owner and kube-scheduler do."""
    uid = world.workload("job")["metadata"]["uid"]
    busy = {r["pool"] for c in world.all("ResourceClaim") for r in c["status"]["allocation"]["devices"]["results"]}
    for entry in allocations(world):
        if entry["phase"] == "Bound":
            for name in entry["allocatedNodes"]:
                if name not in busy:
                    world.claim(f"claim-{name}", [name], workload_uid=uid, pod=f"pod-{name}")


def as_aws_made_them(world: World) -> None:
    """Remove the workload's UID from all claims: templates of AWS's operator name the workload only."""
    for item in world.all("ResourceClaim"):
        for entry in item["status"]["allocation"]["devices"]["config"]:
            entry["opaque"]["parameters"].pop("workloadUid", None)
        world.put(item)


def allocations(world: World) -> list[dict[str, Any]]:
    held = [e for u in world.all("NeuronUltraServer") for e in u["status"].get("allocations", [])]
    return sorted(held, key=lambda e: (e["ultraserverIndex"], e["allocatedNodes"]))


def held(world: World) -> list[tuple[Any, ...]]:
    return [(e["ultraserverIndex"], e["phase"], *e["allocatedNodes"]) for e in allocations(world)]


def not_ready(world: World, *names: str) -> None:
    """Stop kubelet and plugin of the node."""
    for name in names:
        node = world.get("Node", name)
        since = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        node["status"]["conditions"][0] |= {"status": "Unknown", "lastTransitionTime": since}
        world.put(node)
        world.silent.add(name)


def ready_again(world: World, name: str) -> None:
    node = world.get("Node", name)
    since = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    node["status"]["conditions"][0] |= {"status": "True", "lastTransitionTime": since}
    world.put(node)
    world.silent.discard(name)


def remove_slices(world: World, node: str) -> None:
    for item in world.all("ResourceSlice"):
        if item["spec"]["nodeName"] == node:
            world.remove("ResourceSlice", item["metadata"]["name"])


def remove_node(world: World, name: str) -> None:
    """Delete a Node with its slices, its pods and their claims, as Kubernetes does."""
    world.remove("Node", name)
    remove_slices(world, name)
    for item in world.all("ResourceClaim"):
        if item["metadata"]["name"] == f"claim-{name}":
            world.remove("ResourceClaim", item["metadata"]["name"], "ml")


def attribute(world: World, node: str, name: str, value: dict[str, Any] | None) -> None:
    item = world.get("ResourceSlice", f"{node}-neuron.aws.com-00")
    for device in item["spec"]["devices"]:
        device["attributes"].pop(name, None)
        if value is not None:
            device["attributes"][name] = value
    world.put(item)


def break_links(world: World, node: str) -> None:
    """Set the node's modes to single node only."""
    attribute(world, node, "ultraserverModes", {"string": "1"})
    attribute(world, node, "linkVertical", {"bool": False})
    attribute(world, node, "linkHorizontal", {"bool": False})


def repair_links(world: World, node: str) -> None:
    attribute(world, node, "ultraserverModes", {"string": "1_2_4"})
    attribute(world, node, "linkVertical", {"bool": True})
    attribute(world, node, "linkHorizontal", {"bool": True})


def degraded(world: World) -> tuple[str, str]:
    conditions = world.workload("job")["status"]["conditions"]
    found = next(c for c in conditions if c["type"] == "Degraded")
    return (found["reason"], found["message"]) if found["status"] == "True" else ("", "")


def evicted(world: World) -> list[str]:
    return sorted({action.name for action in world.log if isinstance(action, Evict)})


U0, U1, U2 = (tuple(f"u{u}-{n}" for n in range(4)) for u in range(3))
