"""31.5 on a real node: pods of a device plugin run on after it has gone, and close the node until they have ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed.deployed import neurons, pod, prepared, template
from hack.bed.real_cluster import BedNode, Namespace, eventually
from tests.bed.deployed import (
    OLD_RESOURCE,
    allocate,
    devices,
    events,
    open_gate,
    registered_device_plugin,
    waits_for_its_start,
)
from tests.bed.limited import container

COUNT = 16


def allocatable(node: BedNode) -> str:
    """Return how many devices of the device plugin a Node offers."""
    return str(node.bed.get("node", node.name)["status"]["allocatable"].get(OLD_RESOURCE, ""))


def names(node: BedNode) -> set[str]:
    """Return the names of the devices that a node publishes."""
    return {device["name"] for device in devices(node.bed, node.name)}


def events_on(node: BedNode, reason: str) -> list[str]:
    """Return the messages of the Events on a Node that have this reason."""
    chosen = f"--field-selector=involvedObject.name={node.name},reason={reason}"
    return [item["message"] for item in node.bed.get("events", "--all-namespaces", chosen)["items"]]


def start_pod_of_the_plugin(place: Namespace, node: BedNode) -> None:
    """Start a pod with two devices of the device plugin, beside the scheduler, which counts the driver's devices."""
    spec = {"nodeName": node.name, "terminationGracePeriodSeconds": 1, "containers": [container({OLD_RESOURCE: 2})]}
    place.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "outlives"}, "spec": spec})
    place.wait_ready("outlives")


def is_refused(place: Namespace, name: str, said: str) -> bool:
    """Return True if a claim of a pod was refused for this reason, and not because a device plugin is alive."""
    found = events(place, name, "FailedPrepareDynamicResources")
    return any(said in text and "a Neuron device plugin is alive" not in text for text in found)


@pytest.fixture
def forgetful(trn2: BedNode) -> Iterator[BedNode]:
    """A node whose driver does not remember the device plugin after the test."""
    yield trn2
    trn2.break_("plugin")
    trn2.repair("plugin")


def test_a_pod_that_outlives_its_device_plugin_closes_the_node(
    forgetful: BedNode, namespace: Namespace, tmp_path: Path
) -> None:
    trn2 = forgetful
    namespace.apply(template("one"))
    namespace.apply(pod("runs", "one", node=trn2.name))
    namespace.wait_ready("runs")
    [held], claims = neurons(namespace, "runs"), prepared(trn2)
    free = (held + 5) % COUNT
    waits_for_its_start(namespace, "waits", trn2.name)
    allocate(namespace, "waits", trn2, f"neuron-device-{free}")
    with registered_device_plugin(trn2.name, tmp_path / "plugin.log", COUNT):
        eventually("the kubelet has the device plugin", lambda: allocatable(trn2) == f"{COUNT}", 60)
        start_pod_of_the_plugin(namespace, trn2)
    eventually("the kubelet has lost the device plugin", lambda: allocatable(trn2) == "0", 60)
    trn2.break_("plugin")  # a device plugin counts for six minutes, but not for a plugin of ours that starts later

    said = f"pod {namespace.name}/outlives ({OLD_RESOURCE}) on node {trn2.name} has devices of a Neuron device plugin"
    eventually(
        "an Event names the pod", lambda: any(said in text for text in events_on(trn2, "NeuronDevicePluginAlive"))
    )
    assert names(trn2) == {f"neuron-device-{number}" for number in (held, free)}
    open_gate(namespace, "waits")
    eventually("the claim is refused because of the pod alone", lambda: is_refused(namespace, "waits", said), 60)
    assert (prepared(trn2), namespace.restarts("runs")) == (claims, 0)

    namespace.delete("pod", "outlives")
    namespace.wait_ready("waits")
    eventually("everything is published", lambda: len(names(trn2)) == COUNT, 60)
    assert (neurons(namespace, "waits"), neurons(namespace, "runs")) == ([free], [held])
