"""16.1, 16.2, 16.4, 16.5 on a real Kubernetes: connected sets from plain limits, with devices taken, on and off.

Acceptance 6 of issue 16 too: crash, restart, rolling update and reboot with sets and cores allocated.
"""

from __future__ import annotations

from typing import Any

import pytest

from hack.bed.deployed import IMAGE, neurons, pod, prepared, template
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import DAEMONSET, NAMESPACE, devices, environment, events, slices, started, stays_pending

LIMIT = "deviceclass.resource.kubernetes.io/{}.neuron.aws.com"
SETS = 223  # on inf2.48xlarge
PLAIN = 12

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def ring(other_bed: TestBed) -> BedNode:
    """A node of inf2.48xlarge with the driver's DaemonSet and connected sets, in a separate test bed."""
    other_bed.command("up", "--node", "a=inf2.48xlarge")
    if int(other_bed.parts.state.kubernetes.split(".")[1]) < 36:
        pytest.skip("connected sets need Kubernetes 1.36")
    switch(other_bed, on=True)
    return BedNode(other_bed, "a", "inf2.48xlarge")


def switch(bed: TestBed, *, on: bool) -> None:
    words = ("--set", f"scheduler.enabled={str(on).lower()}", "--set", "scheduler.oldestRelease=any")
    bed.command("up", "--driver", "daemonset", *words, timeout_s=1200)


def published(node: BedNode, count: int) -> None:
    eventually(f"{count} devices of {node.name}", lambda: len(devices(node.bed, node.name)) == count, 180)


def one_device(number: int) -> dict[str, Any]:
    made: dict[str, Any] = template(f"device-{number}", instance_type="inf2.48xlarge")
    [request] = made["spec"]["spec"]["devices"]["requests"]
    request["exactly"]["selectors"][0]["cel"]["expression"] += (
        f" && device.attributes['neuron.aws.com'].deviceId == {number}"
    )
    return made


def limited(name: str, size: str) -> dict[str, Any]:
    """A pod with limits instead of a claim, which every tool can write."""
    container = {
        "name": "ctr0",
        "image": IMAGE,
        "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"],
        "resources": {"limits": {LIMIT.format(size): "1"}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_pods_get_connected_devices_and_cores_from_limits(ring: BedNode) -> None:
    place = Namespace(ring.bed, "default")
    published(ring, SETS)
    assert [len(item["spec"].get("sharedCounters", ())) for item in slices(ring.bed, ring.name)] == [0, 0, 0, 0, 2]
    for number in (0, 5, 9):
        place.apply(one_device(number))
        assert started(place, pod(f"taken-{number}", f"device-{number}", node=ring.name)) == [number]

    three = started(place, limited("three", "connected-3"))
    assert three in ([1, 2, 3], [2, 3, 4], [6, 7, 8])
    assert "NEURON_RT_VISIBLE_CORES" not in environment(place, "three")
    five = started(place, limited("five-cores", "cores-5"))
    assert len(five) == 3
    assert five[0] + 2 == five[2]
    assert environment(place, "five-cores")["NEURON_RT_VISIBLE_CORES"] == "0-4"
    assert not {*three, 0, 5, 9} & set(five)
    place.apply(limited("four", "connected-4"))
    stays_pending(place, "four")
    place.delete("pod", "four")
    place.apply(limited("sixteen", "connected-16"))
    [message] = eventually("the Event on sixteen", lambda: events(place, "sixteen", "NeuronNumberNotServed"), 120)
    assert message.startswith("Instance type inf2.48xlarge does not support requests for device: 16. Please request a ")
    place.delete("pod", "sixteen")

    crash_and_restart(ring, place)
    last = started(place, limited("two", "connected-2"))
    assert last == [10, 11]

    switch(ring.bed, on=False)
    kept = {f"neuron-device-{i}" for i in range(PLAIN)}
    held = {"neuron-set-3-", "neuron-cores-5-", "neuron-set-2-10"}
    published(ring, PLAIN + len(held))
    names = {device["name"] for device in devices(ring.bed, ring.name)}
    assert {name for name in names - kept if name.startswith(tuple(held))} == names - kept
    assert all(device["consumesCounters"] for device in devices(ring.bed, ring.name))
    assert neurons(place, "three") == three
    place.delete("pod", "three", "five-cores", "two")
    published(ring, PLAIN)
    eventually("one slice, as ever", lambda: len(slices(ring.bed, ring.name)) == 1, 60)
    assert not any("consumesCounters" in device for device in devices(ring.bed, ring.name))
    place.apply(one_device(2))
    assert started(place, pod("plain", "device-2", node=ring.name)) == [2]


def crash_and_restart(ring: BedNode, place: Namespace) -> None:
    """Kill the plugin, then the kubelet, which wipes the slices; roll the driver out again; reboot the node.

    Claims and sets are as before each time, and so are devices and cores in the containers.
    """
    before = prepared(ring)
    shown = seen(place)
    ring.break_("plugin")
    ring.repair("plugin")
    ring.break_("kubelet")
    ring.repair("kubelet")
    unchanged(ring, place, before, shown)
    target = (f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE)
    ring.bed.kubectl("rollout", "restart", *target)
    ring.bed.kubectl("rollout", "status", *target, "--timeout=240s", timeout_s=250)
    unchanged(ring, place, before, shown)
    ring.break_("reboot")
    for name in shown:
        eventually(f"{name} to start again", lambda name=name: place.restarts(name) > 0, 240)
        place.wait_ready(name, 240)
    unchanged(ring, place, before, shown)


def seen(place: Namespace) -> dict[str, tuple[list[int], str | None]]:
    """Return the devices and visible cores of the running pods."""
    names = [item["metadata"]["name"] for item in place.get("pods")["items"]]
    return {name: (neurons(place, name), environment(place, name).get("NEURON_RT_VISIBLE_CORES")) for name in names}


def unchanged(ring: BedNode, place: Namespace, before: set[str], shown: dict[str, Any]) -> None:
    published(ring, SETS)
    eventually("all claims to be prepared again", lambda: prepared(ring) == before, 240)
    assert seen(place) == shown
