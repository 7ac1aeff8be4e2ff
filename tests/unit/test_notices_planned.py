"""What the controller tells the pods of a workload, in its reservations, before they end. Issue 36, number 4."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from controller.metrics import Metrics
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.planner.decisions.actions import Evict
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.failing_world import LIMITS, U0, allocations, not_ready, running, start_pods
from tests.unit.ultraserver_world import World

MINUTE = datetime.timedelta(minutes=1)


def ends(world: World, minutes: float, *names: str) -> str:
    """Let the block of these nodes end so that EC2 takes them back in so many minutes; return that moment."""
    moment = world.now + minutes * MINUTE
    for name in names:
        node = world.get("Node", name)
        end = moment + LIMITS.block_lead
        node["metadata"]["annotations"] = {ANNOTATION: end.strftime("%Y-%m-%dT%H:%M:%SZ")}
        world.put(node)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def notices(world: World) -> list[tuple[str, Any]]:
    """Phase and notice of each reservation."""
    return [(each["phase"], each.get("notice")) for each in allocations(world)]


def now(world: World) -> str:
    return world.now.strftime("%Y-%m-%dT%H:%M:%SZ")


def until(world: World, phase: str, limits: Limits = LIMITS) -> None:
    """Plan and write, one plan after the other, until a reservation has this phase."""
    for _ in range(20):
        if any(found == phase for found, _ in notices(world)):
            return
        world.step(limits)
        world.tag_nodes()
    raise AssertionError(f"no reservation became {phase}: {notices(world)}")


def test_open_groups_have_no_notice_until_half_an_hour_before_the_end() -> None:
    world = running("NoOp", servers=2, count=2)
    moment = ends(world, 31, *U0)
    world.settle(LIMITS)
    assert notices(world) == [("Bound", None)] * 2
    world.later(60)
    world.settle(LIMITS)
    assert notices(world) == [("Bound", {"reason": "CapacityBlockEnds", "time": moment})] * 2


def test_extension_moves_the_notice_and_takes_it_back() -> None:
    world = running("NoOp", servers=1, count=1)
    for minutes in (20.0, 29.0):
        moment = ends(world, minutes, *U0)
        world.settle(LIMITS)
        assert notices(world) == [("Bound", {"reason": "CapacityBlockEnds", "time": moment})]
    ends(world, 300, *U0)
    world.settle(LIMITS)
    assert notices(world) == [("Bound", None)]


def test_notice_is_written_once() -> None:
    world = running("NoOp", servers=1, count=1)
    ends(world, 20, *U0)
    world.settle(LIMITS)
    world.log.clear()
    world.later(300)
    world.settle(LIMITS)
    assert world.log == []


def test_notice_stays_when_the_first_nodes_are_gone() -> None:
    world = running("RestartAll", servers=1, count=1)
    moment = ends(world, 20, *U0)
    world.settle(LIMITS)
    for name in U0:
        world.remove("Node", name)
        world.settle(LIMITS)
        assert notices(world) == [("Bound", {"reason": "CapacityBlockEnds", "time": moment})]


def test_group_that_moves_is_told_when_it_drains() -> None:
    world = running("MigrateAffected")
    node = world.get("Node", "u0-1")
    node["spec"]["unschedulable"] = True
    world.put(node)
    item = world.workload("job")
    item["spec"]["allocationPolicy"]["onCordon"] = "Migrate"
    world.put(item)
    world.step(LIMITS)
    world.later(31)
    until(world, "Draining")
    assert sorted(notices(world), key=str) == [
        ("Bound", None),
        ("Draining", {"reason": "Migrating", "time": now(world)}),
        ("Pending", None),
    ]
    assert not [each for each in world.log if isinstance(each, Evict)]


def test_restarted_groups_are_told_when_they_drain() -> None:
    world = running("RestartAll", servers=2, count=1)
    world.remove("Node", U0[0])
    world.step(LIMITS)
    world.later(61)
    until(world, "Draining")
    assert notices(world) == [("Draining", {"reason": "Restarting", "time": now(world)})]
    assert not [each for each in world.log if isinstance(each, Evict)]


@pytest.mark.parametrize("end", ["deleted", "shrunk", "expired"])
def test_groups_that_are_released_are_told(end: str) -> None:
    world = running("NoOp", servers=2, count=2)
    match end:
        case "deleted":
            world.delete_workload("job")
        case "shrunk":
            item = world.workload("job")
            item["spec"]["serverCount"] = 1
            world.put(item)
        case "expired":
            for claim in world.all("ResourceClaim"):
                world.remove("ResourceClaim", claim["metadata"]["name"], claim["metadata"]["namespace"])
            item = world.workload("job")
            item["spec"]["ttlSecondsUnused"] = 60
            world.put(item)
            world.settle(LIMITS)
            world.later(61)
    until(world, "Draining")
    told = [found for phase, found in notices(world) if phase == "Draining"]
    assert told == [{"reason": "Releasing", "time": now(world)}] * (1 if end == "shrunk" else 2)


def test_node_that_does_not_answer_delays_no_other_node() -> None:
    """Nodes that show Draining have written the notice; a dead one shows nothing new, and its pod is not evicted."""
    world = running("NoOp", servers=2, count=1)
    start_pods(world)
    not_ready(world, U0[0])
    world.delete_workload("job")
    until(world, "Draining")
    world.step(LIMITS)
    assert [each.name for each in world.log if isinstance(each, Evict)] == ["pod-u0-1", "pod-u0-2", "pod-u0-3"]


def test_new_reservation_has_no_notice() -> None:
    world = World([item for number in range(2) for item in ultraserver(f"u{number}")])
    world.settle(LIMITS)
    world.submit("job", size=4)
    world.settle(LIMITS)
    assert notices(world) == [("Bound", None)]


def test_metrics_have_the_next_end_and_who_loses_nodes() -> None:
    world = running("NoOp", servers=2, count=1)
    ends(world, 20, *U0)
    world.settle(LIMITS)
    metrics, index = Metrics(), FleetIndex.of(world.snapshot())
    metrics.planned(0.1, index, plan_of(index, world.now), world.now)
    first = (world.now + 20 * MINUTE + LIMITS.block_lead).timestamp()
    names = ("ending_workloads", "next_block_end_timestamp_seconds")
    assert [metrics.registry.get_sample_value(f"neuron_ultraserver_{name}") for name in names] == [1, first]
    metrics.leading(False)
    assert [metrics.registry.get_sample_value(f"neuron_ultraserver_{name}") for name in names] == [0, 0]
