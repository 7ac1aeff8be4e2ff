"""A device that vanished is a fault in every view, and its Event is over when the device is back (4.09)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from neuron_dra.ask.doctor import nodes as doctor_nodes
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.why import answer
from neuron_dra.ask.world import faults, fleet
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

ADVICE = "neuron3 of trn2.48xlarge's 16 devices is missing; the others are published. Replace the instance"


def cluster(*events: Obj, missing: bool = False) -> list[Obj]:
    items = small.base("a")
    if missing:
        for item in items:
            if item["kind"] == "ResourceSlice":
                devices = item["spec"]["devices"]
                item["spec"]["devices"] = [device for device in devices if device["name"] != "neuron-device-3"]
    return [*items, *events]


def world_of(items: list[Obj]) -> World:
    return World(snapshot.build(copy.deepcopy(items)))


def why(items: list[Obj]) -> Report:
    world = world_of(items)
    return answer.REPORTS["Node"](world, world.nodes["a"])


def test_missing_device_is_a_fault_everywhere() -> None:
    """The page has the faults of `all_of_node`, and the states of `status`."""
    world = world_of(cluster(missing=True))
    [view] = fleet.nodes(world)
    [fault] = faults.all_of_node(world, view)
    assert (fault.what, fault.detail) == ("devices missing", "device 3")
    data: dict[str, Any] = status_text.data(world, "")
    assert data["wrong"] == [{"kind": "node", "name": "a", "what": "devices missing", "detail": "device 3"}]
    assert data["nodes"][0]["state"] == "free, but for 1 missing"
    assert "  devices missing: node a (device 3)" in status_text.lines(world, "")
    assert [cause.code for cause in why(cluster(missing=True)).findings] == ["DevicesMissing"]
    assert "DevicesMissing" in [line.code for line in doctor_nodes.lines(world)]


@pytest.mark.parametrize("reason", ["NeuronMissingDevice", "NeuronMissingDeviceFile", "NeuronDeviceUnhealthy"])
def test_event_about_a_repaired_device_gives_no_advice(reason: str) -> None:
    report = why(cluster(small.node_event(reason, ADVICE)))
    over = f"the Event {reason} of 2026-01-01T00:00:00Z is over: the driver publishes all devices as healthy"
    assert (report.fine, report.findings, report.notes) == (True, (), (over,))
    assert not any(
        "Replace" in line.text for line in doctor_nodes.lines(world_of(cluster(small.node_event(reason, ADVICE))))
    )


def test_event_about_a_missing_device_is_told_once() -> None:
    report = why(cluster(small.node_event("NeuronMissingDevice", ADVICE), missing=True))
    assert [cause.code for cause in report.findings] == ["DevicesMissing"]
    assert report.notes == ()
