"""4.03 on a real node: the kernel driver loads and leaves beside the deployed driver, with pods that run and wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.bed.deployed import neurons, pod, template
from hack.bed.real_cluster import BedNode, Namespace, eventually
from tests.bed.deployed import devices, events, plugin_pods, settled

REJECTED = "FailedPrepareDynamicResources"
LOADED_S = 120


@pytest.fixture
def loaded(trn2: BedNode) -> Iterator[BedNode]:
    """A node whose kernel driver is loaded, with all devices, at the end."""
    yield trn2
    trn2.break_("driver")
    trn2.repair("driver")
    eventually("all devices", lambda: len(numbers(trn2)) == 16, LOADED_S)
    settled(trn2)


def numbers(node: BedNode) -> set[int]:
    return {device["attributes"]["deviceId"]["int"] for device in devices(node.bed, node.name)}


def unhealthy(node: BedNode) -> set[int]:
    found = set()
    for device in devices(node.bed, node.name):
        if "unhealthy" in device["attributes"]:
            found.add(device["attributes"]["deviceId"]["int"])
    return found


def test_pods_run_and_wait_while_the_driver_leaves_and_loads(loaded: BedNode, namespace: Namespace) -> None:
    node, place = loaded, namespace
    place.apply(template("four", 4))
    place.apply(pod("runs", "four", node=node.name))
    place.wait_ready("runs")
    before = devices(node.bed, node.name)
    node.break_("driver")
    place.apply(pod("waits", "four", node=node.name))
    node.repair("driver")
    place.wait_ready("waits")
    assert len(neurons(place, "waits")) == 4
    assert events(place, "waits", REJECTED) == []
    assert devices(node.bed, node.name) == before
    assert place.restarts("runs") == 0
    place.delete("pod", "runs")


def test_driver_that_loads_after_the_plugin_is_published_whole(loaded: BedNode, namespace: Namespace) -> None:
    node, place = loaded, namespace
    node.break_("driver")
    node.break_("plugin")
    eventually("a plugin that waits for the kernel driver", lambda: not plugin_pods(node.bed, node.name), LOADED_S)
    assert numbers(node) == set(range(16))  # what was published stays
    place.apply(template("one", 1))
    place.apply(pod("waits", "one", node=node.name))
    node.repair("driver")
    place.wait_ready("waits")
    # The kubelet may also have called the plugin between its end and its restart.
    assert [event for event in events(place, "waits", REJECTED) if "connection refused" not in event] == []
    assert (numbers(node), unhealthy(node)) == (set(range(16)), set())


def test_device_that_is_missing_at_load_leaves_the_slice(loaded: BedNode, namespace: Namespace) -> None:
    node, place = loaded, namespace
    node.break_("driver")
    node.repair("driver", "-5")
    eventually("15 devices", lambda: numbers(node) == set(range(16)) - {5}, LOADED_S)
    assert unhealthy(node) == set()
    place.apply(template("fifteen", 15))
    place.apply(pod("fifteen", "fifteen", node=node.name))
    place.wait_ready("fifteen")
    place.delete("pod", "fifteen")


@pytest.mark.long
def test_firmware_that_is_silent_for_two_minutes_holds_up_pods(loaded: BedNode, namespace: Namespace) -> None:
    node, place = loaded, namespace
    place.apply(template("one", 1))
    node.break_("driver")
    place.apply(pod("waits", "one", node=node.name))
    node.repair("driver", "4:120")
    assert unhealthy(node) == set()
    place.wait_ready("waits", timeout_s=180)  # the kubelet tries again 90 s after a rejection
    assert "the kernel driver is loading" in " ".join(events(place, "waits", REJECTED))
    assert numbers(node) == set(range(16))
