"""Issue 16, acceptance 1 and 4: pods with limits of the device plugin run unchanged on real kubelets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deployed import IMAGE, devices, environment, neurons
from real_cluster import BedError, Namespace, TestBed, eventually

NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
RING, TORUS, ULTRA = "inf2.48xlarge", "trn1.32xlarge", "trn2u.48xlarge"
TYPE = "node.kubernetes.io/instance-type"
REWRITE = "neuron.aws.com/rewrite-limits=true"

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


def container(limits: dict[str, int], name: str = "main", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": IMAGE,
        "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"],
        "resources": {"limits": {key: str(value) for key, value in limits.items()}},
        **fields,
    }


def pod(name: str, limits: dict[str, int], *others: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod as the documents of the scheduler extension have it, with its scheduler's name."""
    spec = {"terminationGracePeriodSeconds": 1, "schedulerName": "my-scheduler", **spec}
    spec["containers"] = [container(limits), *others]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def started(place: Namespace, wanted: dict[str, Any]) -> list[int]:
    """Start a pod and return the devices that its first container sees."""
    name = wanted["metadata"]["name"]
    place.apply(wanted)
    place.wait_ready(name)
    return neurons(place, name)


def ended(place: Namespace, *names: str) -> None:
    place.delete("pod", *names)


def rejected(place: Namespace, wanted: dict[str, Any]) -> str:
    """Create a pod that a policy rejects, and return the message."""
    with pytest.raises(BedError) as caught:
        place.apply(wanted)
    return str(caught.value)


def in_container(place: Namespace, name: str, which: str) -> list[int]:
    listed = place.kubectl("exec", name, "--container", which, "--", "sh", "-c", "ls /dev").split()
    return sorted(int(word.removeprefix("neuron")) for word in listed if word.removeprefix("neuron").isdecimal())


def is_arc(ids: list[int], total: int = 12) -> bool:
    """Return True if the devices are consecutive on a ring."""
    return any(sorted((first + step) % total for step in range(len(ids))) == ids for first in ids)


def test_limits_of_the_device_plugin_get_connected_devices(cluster: Namespace) -> None:
    place, bed = cluster, cluster.bed
    unsupported = f"Instance type {TORUS} does not support requests for device: 7. Please request a different number"
    assert unsupported in rejected(place, pod("seven", {NEURON: 7}, nodeSelector={TYPE: TORUS}))
    place.apply(pod("seven", {NEURON: 7}))
    [message] = eventually("the Event about seven devices", lambda: explained(place, "seven"), 120)
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


def explained(place: Namespace, name: str) -> list[str]:
    """Return the messages of the limits watcher's Events on a pod."""
    events = json.loads(place.kubectl("get", "events", "--output=json"))["items"]
    return [
        event["message"]
        for event in events
        if event["involvedObject"]["name"] == name and event["reason"] == "NeuronNumberNotServed"
    ]


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


def waits(place: Namespace, name: str) -> bool:
    """Return True if the scheduler has found no node for a pod."""
    found = place.get("pod", name)
    conditions = {each["type"]: each.get("reason") for each in found["status"].get("conditions", [])}
    return conditions.get("PodScheduled") == "Unschedulable" and "nodeName" not in found["spec"]
