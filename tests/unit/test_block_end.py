"""The end of capacity blocks: what is reserved there, and what workloads and pods are told. Issue 36, number 4."""

from __future__ import annotations

import datetime

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core import capacity_block
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.planner.decisions.actions import WriteWorkloadStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import condition
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.failing_world import LIMITS, U0, running
from tests.unit.ultraserver_world import START, World

LEAD_S, NOTICE_S = 3600, 1800


def ends(world: World, hours: float | None, *names: str) -> None:
    """Let the capacity block of these nodes end so many hours from now; None removes the annotation."""
    for name in names:
        node = world.get("Node", name)
        end = None if hours is None else (world.now + datetime.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
        node["metadata"]["annotations"] = {} if end is None else {ANNOTATION: end}
        world.put(node)


def fleet(*hours: float | None) -> World:
    world = World([item for number in range(len(hours)) for item in ultraserver(f"u{number}")])
    for number, each in enumerate(hours):
        ends(world, each, *(f"u{number}-{node}" for node in range(4)))
    world.settle()
    return world


def told(world: World) -> tuple[str, str]:
    found = condition(world.workload("job")["status"], "EndsSoon")
    return str(found.get("status")), str(found.get("reason"))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01T11:30:00Z", datetime.datetime(2026, 12, 1, 11, 30, tzinfo=datetime.UTC)),
        ("2026-12-01T11:30:00.5+02:00", datetime.datetime(2026, 12, 1, 9, 30, 0, 500_000, tzinfo=datetime.UTC)),
    ],
)
def test_end_is_a_time_with_a_zone(text: str, moment: datetime.datetime) -> None:
    assert capacity_block.end(text) == moment


@pytest.mark.parametrize(
    "text", ["soon", "2026-12-01", "2026-12-01T11:30:00", "9999-12-31T23:59:59Z", "2026-02-30T00:00:00Z", "1764588600"]
)
def test_other_texts_are_no_end(text: str) -> None:
    with pytest.raises(ValueError, match="2026-12-01T11:30:00Z"):
        capacity_block.end(text)


def test_workload_gets_a_block_that_lasts() -> None:
    world = fleet(10, None, 40)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    [nodes] = world.reserved("job").values()
    assert nodes[0] in ("u1-0", "u2-0")


@pytest.mark.parametrize(("hours", "fits"), [(25, True), (24.99, False)])
def test_lead_counts_as_the_end(hours: float, fits: bool) -> None:
    """EC2 takes instances back an hour before the end of the block."""
    world = fleet(hours)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    assert (world.state("job")[0] == "Allocated") == fits


def test_workload_waits_for_a_block_that_lasts_and_holds_nobody_back() -> None:
    world = fleet(10, 12)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    assert world.state("job") == ("Pending", "BlockEndsTooSoon")
    assert world.message("job") == (
        "needs 1 x 4 trn3.48xlarge nodes for 24 h (spec.expectedDuration); 2 of these groups are "
        "free, and 0 of them in capacity blocks that last so long: EC2 takes instances back up to 60 min before the "
        "end of their block"
    )
    world.later(3600)
    world.settle()
    world.submit("short", size=4, count=2, expectedDuration="1h")
    world.settle()
    assert world.state("short")[0] == "Allocated"


def test_extension_lets_it_in() -> None:
    world = fleet(10)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    ends(world, 48, *U0)
    world.settle()
    assert world.state("job")[0] == "Allocated"


def test_nothing_is_reserved_in_the_last_hour_of_a_block() -> None:
    world = fleet(0.9)
    world.submit("job", size=4)
    world.settle()
    assert world.state("job") == ("Pending", "BlockEndsTooSoon")


def test_unknown_end_keeps_nobody_out() -> None:
    world = fleet(None)
    world.submit("job", size=4, expectedDuration="9999h")
    world.settle()
    assert (world.state("job")[0], told(world)) == ("Allocated", ("None", "None"))


def test_group_moves_only_to_a_block_that_lasts() -> None:
    """What has run already is not needed again."""
    world = fleet(30, 20, 27)
    world.submit("job", size=4, expectedDuration="24h", allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle()
    [first] = world.reserved("job").values()
    world.later(3600)
    world.remove("Node", first[0])
    for _ in range(5):
        world.later(60)
        world.settle()
    lasting = {"u0-0": "u2-0", "u2-0": "u0-0"}
    assert world.reserved("job")[0][0] == lasting[first[0]]


def test_ultraserver_says_when_its_blocks_end() -> None:
    world = fleet(10, None)
    [first, second] = world.all("NeuronUltraServer")
    assert condition(first["status"], "CapacityBlockEnd")["message"] == (
        "ends at 2026-03-01T22:00:00Z: u0-0, u0-1, u0-2, u0-3"
    )
    assert condition(second["status"], "CapacityBlockEnd") == {}


def test_annotation_that_is_no_time_is_named_and_does_not_count() -> None:
    world = fleet(None)
    node = world.get("Node", "u0-1")
    node["metadata"]["annotations"] = {ANNOTATION: "Friday"}
    world.put(node)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    [server] = world.all("NeuronUltraServer")
    degraded = condition(server["status"], "Degraded")
    assert (degraded["reason"], world.state("job")[0]) == ("InvalidBlockEnd", "Allocated")
    assert f"(annotation {ANNOTATION}: write a time of this century such as" in degraded["message"]


def test_workload_is_told_half_an_hour_before_and_its_pods_once() -> None:
    world = running("NoOp", servers=1, count=1)
    ends(world, 3, *U0)
    world.settle(LIMITS)
    assert told(world) == ("False", "CapacityBlock")
    assert "spec.expectedDuration does not say" in condition(world.workload("job")["status"], "EndsSoon")["message"]
    wakes = START + datetime.timedelta(hours=3, seconds=-LEAD_S - NOTICE_S)
    index = FleetIndex.of(world.snapshot())
    assert plan_of(index, world.now, LIMITS).recheck == wakes
    world.later(3 * 3600 - LEAD_S - NOTICE_S - 1)
    world.settle(LIMITS)
    assert told(world) == ("False", "CapacityBlock")
    world.later(1)
    world.log.clear()
    world.settle(LIMITS)
    assert told(world) == ("True", "CapacityBlockEnds")
    [write] = [each for each in world.log if isinstance(each, WriteWorkloadStatus)]
    assert sorted(write.told) == [(f"pod-{name}", f"pod-claim-{name}") for name in U0]
    world.later(600)
    world.log.clear()
    world.settle(LIMITS)
    assert world.log == []


def test_extension_takes_it_back() -> None:
    world = running("NoOp", servers=1, count=1)
    ends(world, 1.2, *U0)
    world.settle(LIMITS)
    assert told(world) == ("True", "CapacityBlockEnds")
    ends(world, 48, *U0)
    world.settle(LIMITS)
    assert told(world) == ("False", "CapacityBlock")
    ends(world, None, *U0)
    world.settle(LIMITS)
    assert told(world) == ("None", "None")


def test_workload_that_ends_later_than_its_block_is_told_at_once() -> None:
    world = running("NoOp", servers=1, count=1)
    item = world.workload("job")
    item["spec"]["expectedDuration"] = "10h"
    world.put(item)
    ends(world, 6, *U0)
    world.settle(LIMITS)
    assert told(world) == ("False", "EndsBeforeWorkload")


def test_kept_decision_ends_when_the_time_has_come() -> None:
    """A healthy workload is not decided again in each plan."""
    world = running("NoOp", servers=1, count=1)
    ends(world, 3, *U0)
    world.settle(LIMITS)
    index = FleetIndex.of(world.snapshot())
    before = plan_of(index, world.now, LIMITS)
    assert len(before.kept.decided) == 1
    later = world.now + datetime.timedelta(hours=2)
    after = plan_of(index, later, LIMITS, kept=before.kept)
    assert [each for each in after.actions if isinstance(each, WriteWorkloadStatus)]


@pytest.mark.parametrize(("strategy", "moves"), [("RestartAll", False), ("MigrateAffected", True)])
def test_nodes_that_vanish_at_the_end_restart_nothing(strategy: str, moves: bool) -> None:
    """All of them go: a restart would find no place. A single group may still move to another block."""
    world = running(strategy, servers=2, count=1)
    [first] = world.reserved("job").values()
    ends(world, 1.2, *first)
    world.settle(LIMITS)
    for name in first:
        world.remove("Node", name)
        world.later(30)
        world.settle(LIMITS)
    assert (world.reserved("job")[0] != first) == moves
    assert "restarting" not in world.workload("job")["status"]
    if not moves:
        degraded = condition(world.workload("job")["status"], "Degraded")
        assert degraded["reason"] == "NodeGone"
        assert degraded["message"].endswith(
            "their capacity block ends, so nothing is restarted because of nodes that are lost"
        )
        assert told(world) == ("True", "CapacityBlockEnds")


def test_nodes_that_vanish_without_a_known_end_restart_the_workload() -> None:
    world = running("RestartAll", servers=2, count=1)
    world.remove("Node", world.reserved("job")[0][0])
    world.step(LIMITS)
    assert "restarting" in world.workload("job")["status"]


def test_waiting_for_a_longer_block_writes_nothing_as_time_passes() -> None:
    world = fleet(10)
    world.submit("job", size=4, expectedDuration="24h")
    world.settle()
    world.later(90)
    assert world.plan().actions == ()
