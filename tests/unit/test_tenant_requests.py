"""A workload's request does not keep others from free nodes, and its reservations fit its spec."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core.wire import Obj
from neuron_dra.planner.decisions.actions import WriteUltraServerStatus
from neuron_dra.planner.plan.planning import Limits
from tests.unit.ultraserver_world import World

SECOND = datetime.timedelta(seconds=1)
LIMITS = Limits(starvation_threshold=60 * SECOND, starvation_limit=300 * SECOND)


def fleet(count: int) -> World:
    world = World([item for number in range(count) for item in ultraserver(f"u{number}")])
    world.settle(LIMITS)
    return world


def resize(world: World, name: str, **spec: Any) -> None:
    item = world.workload(name)
    item["spec"] |= spec
    item["metadata"]["generation"] += 1
    world.put(item)


def degraded(world: World, name: str) -> tuple[str, str, str]:
    [found] = [each for each in world.workload(name)["status"]["conditions"] if each["type"] == "Degraded"]
    return found["status"], found["reason"], found["message"]


def foreign_template(name: str) -> Obj:
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": "ml"}, "spec": {"spec": {}}}


# -- 13.1 --------------------------------------------------------------------------------------------------------------


def test_impossible_request_delays_no_other() -> None:
    """13.1"""
    world = fleet(4)
    world.submit("typo", size=4, count=1000)
    world.settle(LIMITS)
    world.later(100)
    world.submit("job", size=4)
    world.settle(LIMITS)
    assert world.state("job") == ("Allocated", "Allocated")
    assert world.state("typo") == ("Pending", "ExceedsFleet")
    assert world.message("typo") == (
        "needs 1000 x 4 trn3.48xlarge nodes; 3 of 1000 groups of 4 are free: short of 3988 nodes; 12 of 16 nodes are "
        "free; all healthy UltraServers together have 4 groups of 4: "
        "set spec.serverCount to at most 4, or add or repair nodes; it holds no other workload back"
    )


def test_impossible_size_message_lists_sizes() -> None:
    """13.1"""
    world = World(ultraserver("u0", group=2))
    world.submit("job", size=4)
    world.settle(LIMITS)
    assert world.message("job").endswith(
        "all healthy UltraServers together have 0 groups of 4: there are 2 of 1 and 1 of 2, or add or repair "
        "nodes; it holds no other workload back"
    )


def test_request_blocked_by_a_fault_blocks_no_other() -> None:
    """13.1"""
    world = fleet(2)
    world.get("Node", "u0-0")["spec"]["unschedulable"] = True
    world.submit("giant", size=4, count=2)
    world.settle(LIMITS)
    world.later(100)
    world.submit("job", size=4)
    world.settle(LIMITS)
    assert (world.state("giant"), world.state("job")[0]) == (("Pending", "InsufficientCapacity"), "Allocated")


def starving_workload() -> World:
    """A large workload that waits for a node, and a small one that waits for the large one."""
    world = fleet(2)
    world.submit("holder", size=1)
    world.settle(LIMITS)
    world.later(1)
    world.submit("giant", size=4, count=2)
    world.settle(LIMITS)
    world.later(100)
    world.submit("job", size=1)
    world.settle(LIMITS)
    return world


def test_wait_message_names_the_large_workload() -> None:
    """13.1"""
    world = starving_workload()
    assert world.state("job") == ("Pending", "WaitsForOlder")
    assert world.message("job") == (
        "workload ml/giant has waited longer for 2 x 4 nodes and goes first, until 2026-03-01T12:06:01Z at the latest"
    )


def test_large_workload_delays_others_for_a_time() -> None:
    """13.1"""
    world = starving_workload()
    ends = datetime.datetime(2026, 3, 1, 12, 6, 1, tzinfo=datetime.UTC)
    world.later((ends - world.now).total_seconds() - 1)
    world.settle(LIMITS)
    assert world.plan(LIMITS).recheck == ends
    assert world.state("job") == ("Pending", "WaitsForOlder")
    world.later(1)
    world.settle(LIMITS)
    assert (world.state("job")[0], world.state("giant")) == ("Allocated", ("Pending", "InsufficientCapacity"))


def test_several_large_workloads_delay_once() -> None:
    """13.1"""
    world = fleet(2)
    world.submit("holder", size=1)
    world.settle(LIMITS)
    for number in range(4):
        world.later(80)
        world.submit(f"giant{number}", size=4, count=2)
        world.settle(LIMITS)
    world.submit("job", size=1)
    world.settle(LIMITS)
    assert world.state("job") == ("Pending", "WaitsForOlder")
    for _ in range(30):
        world.later(10)
        world.settle(LIMITS)
    assert world.state("job")[0] == "Allocated"


def test_growth_queues_in_order() -> None:
    """13.1"""
    world = fleet(2)
    world.submit("grows", size=1)
    world.later(1)
    world.submit("holder", size=1)
    world.settle(LIMITS)
    world.later(1)
    world.submit("giant", size=4, count=2)
    world.settle(LIMITS)
    world.later(100)
    world.settle(LIMITS)
    resize(world, "grows", serverCount=2)
    world.settle(LIMITS)
    assert world.state("grows") == ("PartiallyAllocated", "WaitsForOlder")


def test_growth_queues_after_earlier_requests() -> None:
    """13.1"""
    world = fleet(1)
    world.submit("grows", size=1)
    world.submit("holder", size=2)
    world.settle(LIMITS)
    world.submit("filler", size=1)
    world.settle(LIMITS)
    world.later(10)
    world.submit("first", size=1)
    world.settle(LIMITS)
    world.later(10)
    resize(world, "grows", serverCount=2)
    world.settle(LIMITS)
    world.delete_workload("filler")
    world.settle(LIMITS)
    assert (world.state("first")[0], world.state("grows")[0]) == ("Allocated", "PartiallyAllocated")


# -- 13.6 --------------------------------------------------------------------------------------------------------------


def test_reservation_of_another_size_is_surplus() -> None:
    """13.6: topologySize changed between the reservation and the first status."""
    world = fleet(1)
    world.submit("job", size=2)
    while not world.reserved("job"):
        world.step(LIMITS)
    resize(world, "job", topologySize=4)
    world.settle(LIMITS)
    assert world.state("job") == ("Allocated", "Allocated")
    assert world.reserved("job") == {0: ("u0-0", "u0-1", "u0-2", "u0-3")}
    [template] = world.all("ResourceClaimTemplate")
    modes = [
        each["opaque"]["parameters"].get("ultraserverMode") for each in template["spec"]["spec"]["devices"]["config"]
    ]
    assert modes == [4, None]


def test_changed_size_recreates_reservation() -> None:
    """13.6"""
    world = fleet(1)
    world.submit("job", size=2)
    world.settle(LIMITS)
    resize(world, "job", topologySize=1)
    world.settle(LIMITS)
    assert (world.state("job")[0], {len(nodes) for nodes in world.reserved("job").values()}) == ("Allocated", {1})
    [template] = world.all("ResourceClaimTemplate")
    assert template["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["ultraserverMode"] == 1


def test_reservation_of_another_type_is_surplus() -> None:
    """13.6"""
    world = World([*ultraserver("u0"), *ultraserver("v0", "trn2u.48xlarge")])
    world.submit("job", size=2)
    world.settle(LIMITS)
    resize(world, "job", instanceType="trn2u.48xlarge")
    world.settle(LIMITS)
    assert world.reserved("job") == {0: ("v0-0", "v0-1")}


@pytest.mark.parametrize(("size", "count"), [(3, 1), (0, 1), (2, 0), (2, -1), (2, 1025), (4, 20_000_000)])
def test_invalid_spec_reserves_nothing(size: int, count: int) -> None:
    """13.6"""
    world = fleet(1)
    world.submit("job", size=size, count=count)
    world.settle(LIMITS)
    assert (world.state("job"), world.reserved("job")) == (("Failed", "InvalidSpec"), {})
    assert world.message("job").startswith(
        f"spec.topologySize is {size}, spec.serverCount {count}: write 1, 2 or 4 nodes"
    )


@pytest.mark.parametrize("count", [-1, 0, 1025, 20_000_000])
def test_invalid_count_keeps_a_running_job(count: int) -> None:
    world = fleet(1)
    world.submit("job", size=2)
    world.settle(LIMITS)
    before = world.reserved("job")
    resize(world, "job", serverCount=count)
    world.settle(LIMITS)
    assert (world.state("job"), world.reserved("job")) == (("Allocated", "InvalidSpec"), before)


# -- 13.7 --------------------------------------------------------------------------------------------------------------


def test_duplicate_template_name_fails_the_younger() -> None:
    """13.7"""
    world = fleet(2)
    for name in ("a", "b"):
        world.submit(name, size=4, resourceClaimTemplate={"name": "same"})
    world.settle(LIMITS)
    assert (world.state("a")[0], world.state("b")) == ("Allocated", ("Failed", "TemplateNameTaken"))
    assert world.reserved("b") == {}
    assert world.message("b") == (
        "ResourceClaimTemplate ml/same belongs to workload ml/a: delete this workload and create it with another "
        "spec.resourceClaimTemplate.name"
    )
    world.delete_workload("a")
    world.settle(LIMITS)
    assert world.state("b") == ("Allocated", "Allocated")


def test_taken_template_name_prevents_reservation() -> None:
    """13.7"""
    world = fleet(1)
    world.put(foreign_template("job"))
    world.submit("job")
    world.settle(LIMITS)
    assert (world.state("job"), world.reserved("job")) == (("Failed", "TemplateNameTaken"), {})
    assert not [each for each in world.log if isinstance(each, WriteUltraServerStatus) and each.status["allocations"]]


def test_taken_template_name_releases_pending_nodes() -> None:
    """13.7: a Failed workload kept its UltraServers."""
    world = fleet(1)
    world.silent = {"u0-1"}
    world.submit("job")
    world.step(LIMITS)
    world.step(LIMITS)
    assert world.reserved("job") != {}
    world.put(foreign_template("job"))
    world.settle(LIMITS)
    assert (world.state("job"), world.reserved("job")) == (("Failed", "TemplateNameTaken"), {})


def replaced() -> World:
    """A running workload whose template was replaced by another owner's."""
    world = fleet(2)
    world.submit("job", size=4, count=2, allocationPolicy={"failureStrategy": "NoOp"})
    world.settle(LIMITS)
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.put(foreign_template("job"))
    world.settle(LIMITS)
    return world


def test_replaced_template_keeps_the_nodes() -> None:
    """13.7: a workload with Bound slots never becomes Failed."""
    world = replaced()
    assert (world.state("job")[0], len(world.reserved("job"))) == ("Allocated", 2)
    assert degraded(world, "job") == (
        "True",
        "TemplateNameTaken",
        "ResourceClaimTemplate ml/job exists and has another owner: delete it, or delete this workload and create it "
        "with another spec.resourceClaimTemplate.name",
    )


def test_replaced_template_allows_shrinking() -> None:
    """13.7"""
    world = replaced()
    world.get("Node", "u0-0")["status"]["conditions"][0]["status"] = "False"
    resize(world, "job", serverCount=1)
    world.settle(LIMITS)
    assert list(world.reserved("job")) == [0]
    assert degraded(world, "job")[1] == "NodeNotReady"
    assert "has another owner" in degraded(world, "job")[2]


def test_template_returns_after_a_replacement() -> None:
    """13.7"""
    world = replaced()
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.settle(LIMITS)
    [template] = world.all("ResourceClaimTemplate")
    assert template["metadata"]["ownerReferences"][0]["uid"] == world.workload("job")["metadata"]["uid"]
    assert (world.state("job")[0], degraded(world, "job")[0]) == ("Allocated", "False")


# -- 13.11 -------------------------------------------------------------------------------------------------------------


def test_pair_with_a_down_link_is_no_pair() -> None:
    """13.11"""
    unseen = ("u0-2", "u0-3")
    world = World(
        item
        for item in ultraserver("u0")
        if item["metadata"]["name"] not in unseen and item["spec"].get("nodeName") not in unseen
    )
    for item in world.all("ResourceSlice"):
        for device in item["spec"]["devices"]:
            device["attributes"]["linkVertical"] = {"bool": False}
    world.submit("job", size=2)
    world.settle(LIMITS)
    assert (world.state("job")[0], world.reserved("job")) == ("Pending", {})
