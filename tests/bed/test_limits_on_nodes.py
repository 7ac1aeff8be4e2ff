"""Issue 16, acceptance 1 and 4: pods with limits of the device plugin run unchanged on real kubelets."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from hack.bed.deployed import neurons
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from hack.oracle import packing
from tests.bed.deployed import TYPE_LABEL as TYPE
from tests.bed.deployed import devices, environment, events, started
from tests.bed.limited import CORE, NEURON, REWRITE, container, ended, in_container, is_arc, pod, rejected, waits

RING, TORUS, ULTRA = "inf2.48xlarge", "trn1.32xlarge", "trn2u.48xlarge"
EACH = 2  # cores of a device of the ring
STEPS = int(os.environ.get("NEURON_DRA_SET_STEPS", "300"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def bed_with(bed: TestBed, *nodes: str, values: tuple[str, ...] = ()) -> Namespace:
    """Start nodes, written as NAME=TYPE, with the chart's `scheduler.enabled`; return a namespace with the label."""
    bed.command("up", *(word for node in nodes for word in ("--node", node)))
    if int(bed.parts.state.kubernetes.split(".")[1]) < 36:
        pytest.skip("connected sets need Kubernetes 1.36")
    settings = [word for value in ("scheduler.enabled=true", *values) for word in ("--set", value)]
    bed.command("up", "--driver", "daemonset", *settings, timeout_s=1200)
    for node in nodes:
        name = node.partition("=")[0]
        eventually(f"sets of {name}", lambda name=name: len(devices(bed, name)) > 16, 180)
    bed.kubectl("label", "namespace", "default", REWRITE, "--overwrite")
    return Namespace(bed, "default")


@pytest.fixture
def cluster(other_bed: TestBed) -> Namespace:
    """A torus first, so that no node serves every number; then the ring."""
    return bed_with(other_bed, f"torus={TORUS}")


def test_limits_of_the_device_plugin_get_connected_devices(cluster: Namespace) -> None:
    place, bed = cluster, cluster.bed
    unsupported = f"Instance type {TORUS} does not support requests for device: 7. Please request a different number"
    assert unsupported in rejected(place, pod("seven", {NEURON: 7}, nodeSelector={TYPE: TORUS}))
    place.apply(pod("seven", {NEURON: 7}))
    [message] = eventually(
        "the Event about seven devices", lambda: events(place, "seven", "NeuronNumberNotServed"), 120
    )
    assert message.startswith(unsupported)
    ended(place, "seven")

    for count in (4, 8, 16):
        ids = started(place, pod(f"torus-{count}", {NEURON: count}))
        assert (len(ids), ids[0] % count, ids[-1] - ids[0]) == (count, 0, count - 1)
        ended(place, f"torus-{count}")

    bed_with(bed, f"torus={TORUS}", f"ring={RING}")
    on_ring = {"nodeSelector": {"kubernetes.io/hostname": "ring"}}
    assert len(started(place, pod("nrt-test-5038", {CORE: 9}, **on_ring))) == 5
    assert environment(place, "nrt-test-5038")["NEURON_RT_VISIBLE_CORES"] == "0-8"
    assert place.get("pod", "nrt-test-5038")["spec"]["schedulerName"] == "default-scheduler"
    ended(place, "nrt-test-5038")

    two_sizes(place, on_ring)
    init_containers(place, on_ring)
    deployment_fills_the_ring(place, on_ring)


def two_sizes(place: Namespace, on_ring: dict[str, Any]) -> None:
    """Two containers with different numbers, each with devices of its own."""
    three = started(place, pod("both", {NEURON: 3}, container({NEURON: 2}, "second"), **on_ring))
    two = in_container(place, "both", "second")
    assert (len(three), len(two), {*three} & {*two}) == (3, 2, set())
    assert is_arc(three)
    assert is_arc(two)
    ended(place, "both")


def init_containers(place: Namespace, on_ring: dict[str, Any]) -> None:
    """An init container of the same or a smaller size uses the main container's devices; a larger one is rejected."""
    for size in (2, 1):
        init = container({NEURON: size}, "init", command=["sh", "-c", "ls /dev"])
        name = f"init-{size}"
        ids = started(place, pod(name, {NEURON: 2}, initContainers=[init], **on_ring))
        listed = place.kubectl("logs", name, "--container", "init").split()
        assert [word for word in listed if word in {f"neuron{i}" for i in range(12)}] == [f"neuron{i}" for i in ids]
        ended(place, name)
    larger = pod("larger", {NEURON: 2}, initContainers=[container({NEURON: 3}, "init")], **on_ring)
    assert "init" in rejected(place, larger)


def deployment_fills_the_ring(place: Namespace, on_ring: dict[str, Any]) -> None:
    """Six pods of two devices are a ring of twelve; a seventh waits."""
    labels = {"app": "pairs"}
    template = {"metadata": {"labels": labels}, "spec": pod("p", {NEURON: 2}, **on_ring)["spec"]}
    spec = {"replicas": 6, "selector": {"matchLabels": labels}, "template": template}
    place.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pairs"}, "spec": spec})
    place.kubectl("rollout", "status", "deployment/pairs", "--timeout=240s", timeout_s=260)
    names = [item["metadata"]["name"] for item in place.get("pods", "--selector=app=pairs")["items"]]
    pairs = sorted(neurons(place, name) for name in names)
    assert sorted(i for pair in pairs for i in pair) == list(range(12))
    assert all(is_arc(pair) for pair in pairs)
    place.kubectl("delete", "deployment/pairs", "--wait=true", timeout_s=120)


def test_node_and_single_devices_exclude_each_other(other_bed: TestBed) -> None:
    """On an UltraServer node that publishes both, and `neuroncore: 4` is one device there."""
    place = bed_with(other_bed, f"ultra={ULTRA}", values=("draDriver.ultraserverDevices=both",))
    assert started(place, pod("all", {NEURON: 16})) == list(range(16))
    place.apply(pod("one", {NEURON: 1}))
    place.apply(pod("cores", {CORE: 4}))
    for name in ("one", "cores"):
        eventually(f"{name} to wait", lambda name=name: waits(place, name), 60)
    ended(place, "all")
    for name in ("one", "cores"):
        place.wait_ready(name)
        assert len(neurons(place, name)) == 1
    place.apply(pod("all", {NEURON: 16}))
    eventually("all to wait", lambda: waits(place, "all"), 60)
    ended(place, "one", "cores")
    place.wait_ready("all", 180)
    assert neurons(place, "all") == list(range(16))


def test_random_use_is_contiguous_and_exclusive(other_bed: TestBed) -> None:
    """Acceptance 2: 300 random steps on the real scheduler and kubelet, judged from the containers and CDI files."""
    place = bed_with(other_bed, f"ring={RING}")
    node, offered, rng = BedNode(other_bed, "ring", RING), packing.offer(RING), random.Random(16)
    sizes = {name: (NEURON if name.startswith("connected") else CORE) for name in offered.places}
    weights = [1 / offered.size_of(name) for name in sizes]
    held: dict[str, int] = {}
    free = (1 << offered.cores) - 1
    waited = 0
    for step in range(STEPS):
        if held and rng.random() < 0.45:
            name = rng.choice(sorted(held))
            ended(place, name)
            eventually("its claim to be gone", lambda name=name: not claims_of(place, name), 60)
            free |= held.pop(name)
            continue
        size = rng.choices(list(sizes), weights)[0]
        name = f"p{step}-{size}"
        place.apply(pod(name, {sizes[size]: int(size.rpartition("-")[2])}))
        if not eventually(f"{name} to start or to wait", lambda name=name: decided(place, name), 120).startswith("R"):
            assert not [each for each in packing.possible(RING, size) if each & free == each], (
                f"{name} waits for nothing"
            )
            ended(place, name)
            waited += 1
            continue
        cores = cores_in(place, name)
        assert cores in packing.possible(RING, size), f"{name} has cores {cores:b}, which are not contiguous"
        assert cores & free == cores, f"{name} has cores {cores:b} where {free:b} were free"
        free &= ~cores
        held[name] = cores
        assert sorted(in_cdi_files(node)) == sorted(held.values())
    assert waited, "the node was never full"


def decided(place: Namespace, name: str) -> str:
    """Return `Ready` or `Unschedulable`, else an empty text."""
    found = {each["type"]: each for each in place.get("pod", name)["status"].get("conditions", [])}
    if found.get("Ready", {}).get("status") == "True":
        return "Ready"
    return "Unschedulable" if found.get("PodScheduled", {}).get("reason") == "Unschedulable" else ""


def claims_of(place: Namespace, name: str) -> list[str]:
    found = place.get("resourceclaims")["items"]
    owners = [(each["metadata"].get("ownerReferences") or [{}])[0].get("name") for each in found]
    return [owner for owner in owners if owner == name]


def mask(ids: list[int], visible: str) -> int:
    """Return the cores of the node that a container has: those of its devices, or the visible ones among them."""
    every = [core for i in ids for core in range(i * EACH, (i + 1) * EACH)]
    if visible:
        first, _, last = visible.partition("-")
        every = every[int(first) : int(last or first) + 1]
    return sum(1 << core for core in every)


def cores_in(place: Namespace, name: str) -> int:
    return mask(neurons(place, name), environment(place, name).get("NEURON_RT_VISIBLE_CORES", ""))


def in_cdi_files(node: BedNode) -> list[int]:
    """Return the cores of each claim, from the files that the runtime reads."""
    found = []
    names = [name for name in node.run("ls", "/var/run/cdi").split() if name.startswith("k8s.neuron.aws.com-claim_")]
    for name in names:
        spec = json.loads(node.run("cat", f"/var/run/cdi/{name}"))
        edits = [device["containerEdits"] for device in spec["devices"]] + [spec.get("containerEdits", {})]
        paths = {each["path"] for edit in edits for each in edit.get("deviceNodes", [])}
        variables = dict(each.split("=", 1) for edit in edits for each in edit.get("env", []))
        ids = sorted(int(path.removeprefix("/dev/neuron")) for path in paths)
        found.append(mask(ids, variables.get("NEURON_RT_VISIBLE_CORES", "")))
    return found
