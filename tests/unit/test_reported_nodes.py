"""Nodes of which agents report faults: not chosen, shown, and left as failureStrategy says. Issue 36, number 1."""

from __future__ import annotations

from typing import Any

import pytest

from controller.metrics import Metrics
from hack.bench.ultraservers import ultraserver
from neuron_dra.core import node_conditions
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.failing_world import LIMITS, U0, U1, U2, degraded, evicted, held, running
from tests.unit.ultraserver_world import World

STAYS = [(0, "Bound", *U0), (1, "Bound", *U1)]
MOVED = [(0, "Bound", *U0), (1, "Bound", *U2)]
EKS = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NeuronDMAError", "message": "nd3: DMA error"}
EKS_GOOD = {"type": "AcceleratedHardwareReady", "status": "True", "reason": "NeuronAcceleratedHardwareIsReady"}
DETECTOR = {"type": "NeuronHealth", "status": "True", "reason": "NeuronHasError_HBM_UNCORRECTABLE_ERROR"}
DETECTOR_GOOD = {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError"}
SAYS = "nodes that agents report as unhealthy: u1-2 (AcceleratedHardwareReady is False, NeuronDMAError: nd3: DMA error)"


def report(world: World, name: str, *conditions: dict[str, Any]) -> None:
    """Write conditions of a Node as its agents do; the Ready condition stays."""
    node = world.get("Node", name)
    ready = [each for each in node["status"]["conditions"] if each["type"] == "Ready"]
    world.put({**node, "status": {**node["status"], "conditions": [*ready, *conditions]}})


def wait(world: World, seconds: float) -> None:
    world.settle(LIMITS)
    world.later(seconds)
    world.settle(LIMITS)


@pytest.mark.parametrize("condition", [EKS, DETECTOR], ids=["eks", "detector"])
def test_reported_node_is_not_chosen(condition: dict[str, Any]) -> None:
    world = World(ultraserver("u0"))
    world.settle(LIMITS)
    report(world, "u0-1", condition)
    world.submit("job", size=2, count=1)
    world.settle(LIMITS)
    assert world.reserved("job") == {0: ("u0-2", "u0-3")}


@pytest.mark.parametrize(
    "conditions",
    [
        [EKS_GOOD, DETECTOR_GOOD],
        [{**EKS, "status": "Unknown"}],
        [{**DETECTOR, "reason": "NeuronHasNoError"}],
        [{"type": "SomethingElse", "status": "False"}],
    ],
    ids=["good", "unknown", "good reason", "not named"],
)
def test_other_conditions_change_nothing(conditions: list[dict[str, Any]]) -> None:
    world = World(ultraserver("u0"))
    report(world, "u0-0", *conditions)
    world.submit("job", size=4, count=1)
    world.settle(LIMITS)
    assert world.state("job") == ("Allocated", "Allocated")


def test_ultraserver_quotes_the_agent() -> None:
    world = World(ultraserver("u0"))
    report(world, "u0-1", EKS, DETECTOR)
    world.settle(LIMITS)
    [server] = world.all("NeuronUltraServer")
    [condition] = [each for each in server["status"]["conditions"] if each["type"] == "Degraded"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "True",
        "NodeUnhealthy",
        "nodes that agents report as unhealthy, which cannot be reserved: u0-1 (AcceleratedHardwareReady is False, "
        "NeuronDMAError: nd3: DMA error; NeuronHealth is True, NeuronHasError_HBM_UNCORRECTABLE_ERROR)",
    )


@pytest.mark.parametrize("strategy", ["MigrateAffected", "RestartAll"])
def test_strategy_acts_after_the_grace(strategy: str) -> None:
    world = running(strategy)
    report(world, "u1-2", EKS)
    wait(world, 29)
    assert (held(world), evicted(world)) == (STAYS, [])
    acts = f"{strategy} acts at 2026-03-01T12:00:30Z if the fault lasts until then"
    assert degraded(world) == ("NodeUnhealthy", f"{SAYS}; {acts}")
    wait(world, 1)
    assert "pod-u1-2" in evicted(world)


def test_group_moves_to_a_healthy_ultraserver() -> None:
    world = running("MigrateAffected")
    report(world, "u1-2", EKS)
    wait(world, 30)
    assert (held(world), degraded(world)) == (MOVED, ("", ""))


def test_no_op_only_reports_it() -> None:
    world = running("NoOp")
    report(world, "u1-2", EKS)
    wait(world, 7200)
    assert (held(world), evicted(world), degraded(world)[0]) == (STAYS, [], "NodeUnhealthy")


def test_fault_that_ends_within_the_grace_moves_nothing() -> None:
    world = running("MigrateAffected")
    report(world, "u1-2", EKS)
    wait(world, 29)
    report(world, "u1-2", EKS_GOOD)
    wait(world, 3600)
    assert (held(world), evicted(world), degraded(world)) == (STAYS, [], ("", ""))


@pytest.mark.parametrize("time", [None, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-03-02T12:00:00Z", "soon"])
def test_times_of_agents_do_not_matter(time: str | None) -> None:
    world = running("MigrateAffected")
    report(world, "u1-2", {**EKS, "lastTransitionTime": time, "lastHeartbeatTime": time})
    wait(world, 29)
    assert held(world) == STAYS
    wait(world, 1)
    assert held(world) == MOVED


def test_one_of_two_agents_is_enough() -> None:
    world = running("MigrateAffected")
    report(world, "u1-2", EKS_GOOD, DETECTOR)
    wait(world, 30)
    assert held(world) == MOVED


@pytest.mark.parametrize("strategy", ["MigrateAffected", "RestartAll"])
def test_storm_of_reports_is_an_outage(strategy: str) -> None:
    """An update of an agent, or a wrong rule of it, must not evict every job."""
    world = running(strategy)
    for name in (*U0, *U1):
        report(world, name, EKS)
    wait(world, 7200)
    assert (held(world), evicted(world), degraded(world)[0]) == (STAYS, [], "NodeUnhealthy")
    assert "outage: 8 of 12 nodes of UltraServers (66 %)" in degraded(world)[1]
    for name in (*U0, *U1[1:]):
        report(world, name, EKS_GOOD)
    wait(world, 29)
    assert evicted(world) == []
    wait(world, 1)
    assert "pod-u1-0" in evicted(world)


def test_reservation_that_is_not_open_yet_leaves_a_reported_node() -> None:
    world = World([*ultraserver("u0"), *ultraserver("u1")])
    world.settle(LIMITS)
    world.silent.update(U0)
    world.submit("job", size=4, count=1)
    world.step(LIMITS)
    report(world, "u0-0", EKS)
    world.settle(LIMITS)
    assert world.reserved("job") == {0: U1}


def test_another_setting_names_other_conditions() -> None:
    world = World(ultraserver("u0"))
    report(world, "u0-0", EKS, {"type": "LinkSlow", "status": "True"})
    named = node_conditions.parse("LinkSlow=True")
    assert decode.cluster_node(world.get("Node", "u0-0"), named).reported == (("LinkSlow", "LinkSlow is True"),)
    assert decode.cluster_node(world.get("Node", "u0-0"), ()).reported == ()


def test_metric_counts_reported_nodes() -> None:
    world = World(ultraserver("u0"))
    report(world, "u0-1", EKS, DETECTOR)
    report(world, "u0-2", EKS_GOOD)
    world.settle(LIMITS)
    metrics, index = Metrics(), FleetIndex.of(world.snapshot())
    metrics.planned(0.1, index, plan_of(index, world.now), world.now)
    assert metrics.registry.get_sample_value("neuron_ultraserver_reported_nodes") == 1
    metrics.leading(True)
    metrics.leading(False)
    assert metrics.registry.get_sample_value("neuron_ultraserver_reported_nodes") == 0
