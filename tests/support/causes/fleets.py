"""The clusters in which `why` is asked: random fleets, fragmented ones too, in which the pod default/p would run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.cluster_faults import GROUP, SELECTOR, all_of

WANTED: Final = 4
SETS: Final = "connected-4"
RESOURCE: Final = f"deviceclass.resource.kubernetes.io/{SETS}.neuron.aws.com"
PLUGIN: Final = "aws.amazon.com/neuron"
KUBELETS: Final = ("v1.37.0", "v1.36.3", "v1.35.5")
"""Of the API server's release, and one and two releases behind."""


def waiting(rng: random.Random) -> list[Obj]:
    """Two to six nodes, on which other pods run, and the pod that wants four devices of one group."""
    items = small.base(*"abcdef"[: rng.randint(2, 6)])
    nodes = [each["metadata"]["name"] for each in all_of(items, "Node")]
    scattered = rng.random() < 0.5
    roomy = rng.choice(nodes)
    for node in nodes:
        groups = free_groups(items, node)
        spared = rng.choice(list(groups)) if node == roomy or not scattered else ""
        for number, (group, devices) in enumerate(groups.items()):
            if group == spared or (not scattered and rng.random() < 0.6):
                continue
            taken = devices[: rng.randint(1, 3)]
            items += reported.holder(f"other-{node}-{number}", taken, node)
    behind(rng, items)
    made = small.template("four", WANTED, group=GROUP, cel=SELECTOR)
    return [*items, made, *small.created(small.pod("p", "four"), made)]


def behind(rng: random.Random, items: Sequence[Obj], kubelets: Sequence[str] = KUBELETS) -> None:
    """Give each node the version of its kubelet."""
    for node in all_of(items, "Node"):
        node["status"]["nodeInfo"] = {"kubeletVersion": rng.choice(kubelets)}


def sizes(rng: random.Random) -> list[Obj]:
    """Nodes with connected sets, and the pod that requests one of four devices by its limits."""
    items = reported.sets("connected-1", SETS, number=rng.randint(1, 3))
    behind(rng, items, KUBELETS[:2])
    for node in all_of(items, "Node"):
        node["status"]["allocatable"] = {"cpu": "192", "memory": "2000Gi", "pods": "110"}
    return [*items, _of_limits(RESOURCE)]


def plugin(rng: random.Random) -> list[Obj]:
    """Nodes of the Neuron device plugin, and the pod that requests a device of it."""
    items = [each for each in small.base(*"abc"[: rng.randint(1, 3)]) if each["kind"] == "Node"]
    behind(rng, items)
    for node in all_of(items, "Node"):
        node["status"]["capacity"] = {PLUGIN: "16"}
        node["status"]["allocatable"][PLUGIN] = "16"
    return [*items, _of_limits(PLUGIN)]


def _of_limits(resource: str) -> Obj:
    made = small.pod("p")
    made["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    return made


def started(rng: random.Random) -> list[Obj]:
    """The pod has its devices on node a, and has not reported yet that it runs."""
    items = reported.started()
    behind(rng, items)
    return items


def shared(rng: random.Random) -> list[Obj]:
    """The pod wants half a node, and a claim that it shares with other pods."""
    items = small.base("a", "b")
    behind(rng, items)
    spec = {"devices": small.template("x", WANTED)["spec"]["spec"]["devices"]}
    meta = {"name": "shared", "namespace": "default", "uid": "uid-shared"}
    items.append({"apiVersion": small.API, "kind": "ResourceClaim", "metadata": meta, "spec": spec})
    made = small.pod("p", cpu="100")
    made["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "shared"}]
    return [*items, made]


def gang(rng: random.Random) -> list[Obj]:
    """The pod is one of a gang of two or three: as many nodes have four free devices of one group, and no more."""
    pods = rng.randint(2, 3)
    items = small.base(*"abc"[:pods])
    for node in [each["metadata"]["name"] for each in all_of(items, "Node")]:
        groups = list(free_groups(items, node).values())
        spared = rng.randrange(len(groups))
        for number, devices in enumerate(groups):
            if number != spared:
                items += reported.holder(f"other-{node}-{number}", devices[: rng.randint(1, 4)], node)
    behind(rng, items)
    meta = {"name": "workers", "namespace": "default"}
    spec = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    items.append({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec})
    made = small.template("four", WANTED, group=GROUP, cel=SELECTOR)
    items.append(made)
    for name in ("p", "q-1", "q-2")[:pods]:
        items += small.created(small.pod(name, "four", schedulingGroup={"podGroupName": "workers"}), made)
    return items


def free_groups(items: Sequence[Obj], node: str) -> dict[str, list[str]]:
    """Return the free devices of a node, by their group of four."""
    held = {
        (result["pool"], result["device"])
        for claim in all_of(items, "ResourceClaim")
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
    }
    found: dict[str, list[str]] = defaultdict(list)
    for item in all_of(items, "ResourceSlice"):
        if item["spec"].get("nodeName") != node:
            continue
        for device in item["spec"].get("devices") or ():
            if GROUP in device["attributes"] and (node, device["name"]) not in held:
                found[device["attributes"][GROUP]["string"]].append(device["name"])
    return dict(found)
