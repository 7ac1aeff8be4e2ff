"""Many nodes that are unavailable at once are an outage, not single failures. Issue 13, number 4."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions import states
from neuron_dra.planner.decisions.actions import DeleteTemplate, Evict
from neuron_dra.planner.fleet import outage
from neuron_dra.planner.observed.model import ClusterNode
from neuron_dra.planner.plan.planning import Limits
from tests.unit.failing_world import (
    LIMITS,
    U0,
    U1,
    U2,
    break_links,
    degraded,
    evicted,
    held,
    not_ready,
    ready_again,
    running,
)
from tests.unit.ultraserver_world import World

ACTING = ["RestartAll", "MigrateAffected"]


def all_ready(world: World) -> None:
    for node in world.all("Node"):
        if node["status"]["conditions"][0]["status"] != "True":
            ready_again(world, node["metadata"]["name"])


def condition(world: World, kind: str) -> dict[str, Any]:
    return next((c for c in world.workload("job")["status"]["conditions"] if c["type"] == kind), {})


@pytest.mark.parametrize("strategy", ACTING)
def test_outage_evicts_no_pod(strategy: str) -> None:
    """13.4: kubelets that all stop for six minutes made RestartAll evict every pod as soon as they were back."""
    world = running(strategy)
    before = held(world)
    not_ready(world, *U0, *U1)
    for _ in range(8):
        world.later(45)
        world.settle(LIMITS)
    assert (held(world), evicted(world), len(world.all("ResourceClaimTemplate"))) == (before, [], 1)
    reason, message = degraded(world)
    assert reason == "NodeNotReady"
    assert (
        "outage: 8 of 12 nodes of UltraServers (66 %) are not Ready, are reported as unhealthy, or have lost their "
        "tags: u0-0, u0-1"
    ) in message
    assert "nothing is evicted because of failures until this is over" in message
    all_ready(world)
    world.settle(LIMITS)
    world.later(3600)
    world.settle(LIMITS)
    assert (held(world), evicted(world), degraded(world), world.state("job")[0]) == (before, [], ("", ""), "Allocated")


@pytest.mark.parametrize("strategy", ACTING)
def test_below_the_share_a_failure_is_one(strategy: str) -> None:
    """13.4: 4 of 8 nodes are 50 percent."""
    world = running(strategy, servers=2, count=1)
    not_ready(world, "u0-0", "u0-1", "u0-2")
    world.later(61)
    world.settle(LIMITS)
    assert evicted(world) == ["pod-u0-3"]


@pytest.mark.parametrize("strategy", ACTING)
def test_outage_end_restarts_grace_periods(strategy: str) -> None:
    """13.4."""
    world = running(strategy)
    not_ready(world, *U0, *U1)
    world.later(600)
    world.settle(LIMITS)
    for name in (*U0, *U1[1:]):
        ready_again(world, name)
    world.settle(LIMITS)
    assert (evicted(world), degraded(world)[1].split("; ")) == (
        [],
        [
            "nodes are not Ready: u1-0",
            f"{strategy} acts at 2026-03-01T12:11:00Z if the fault lasts until then",
        ],
    )
    assert condition(world, "Outage")["status"] == "False"
    assert condition(world, "Outage")["lastTransitionTime"] == "2026-03-01T12:10:00Z"
    world.later(59)
    world.settle(LIMITS)
    assert evicted(world) == []
    world.later(1)
    world.settle(LIMITS)
    assert "pod-u1-1" in evicted(world)


@pytest.mark.parametrize("strategy", ACTING)
def test_outage_end_restarts_grace_period_of_published_faults(strategy: str) -> None:
    """13.4."""
    world = running(strategy)
    break_links(world, "u1-0")
    world.settle(LIMITS)
    not_ready(world, *U0, *U1[1:])
    world.later(600)
    world.settle(LIMITS)
    for name in (*U0, *U1[1:]):
        ready_again(world, name)
    world.settle(LIMITS)
    world.later(29)
    world.settle(LIMITS)
    assert (evicted(world), degraded(world)[0]) == ([], "LinkDown")
    world.later(1)
    world.settle(LIMITS)
    assert "pod-u1-1" in evicted(world)


@pytest.mark.parametrize("strategy", ACTING)
def test_nothing_begins_in_an_outage(strategy: str) -> None:
    """13.4: not even in the first plan of a controller that was away for longer than the grace period."""
    world = running(strategy, count=1)
    before = held(world)
    not_ready(world, *U0[:3], *U1)
    world.later(600)
    world.step(LIMITS)
    assert (held(world), world.state("job")) == (before, ("Allocated", "Allocated"))
    world.settle(LIMITS)
    assert (held(world), evicted(world), len(world.all("ResourceClaimTemplate"))) == (before, [], 1)


def test_outage_pauses_a_migration() -> None:
    """13.4: the pods of the old group are not evicted during an outage."""
    world = running("MigrateAffected")
    world.budget = {f"pod-claim-{name}": "not now" for name in U1}
    not_ready(world, "u1-2")
    world.later(60)
    for _ in range(6):
        world.step(LIMITS)
    assert (1, "Draining", *U1) in held(world)
    not_ready(world, *U0, "u2-0", "u2-1", "u2-2")
    world.step(LIMITS)
    world.log.clear()
    world.budget = {}
    for _ in range(4):
        world.step(LIMITS)
        world.later(60)
    assert [action for action in world.log if isinstance(action, Evict)] == []
    assert "outage: 8 of 12 nodes" in degraded(world)[1]
    all_ready(world)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_deleted_workload_is_released_in_an_outage() -> None:
    """13.4: a user's deletion is not a failure."""
    world = running("MigrateAffected")
    not_ready(world, *U0, *U1[:3])
    world.settle(LIMITS)
    world.delete_workload("job")
    world.settle(LIMITS)
    assert evicted(world) == ["pod-u1-3"]


def test_nodes_without_tags_count_for_an_outage() -> None:
    """13.4: a rollback of the driver on all nodes drops all tags."""
    world = running("MigrateAffected")
    world.silent = {*U0, *U1}
    for item in world.all("ResourceSlice"):
        for device in item["spec"]["devices"]:
            for name in ("workloadNamespace", "workloadId", "workloadUid", "allocationId", "workloadPhase"):
                device["attributes"].pop(name, None)
        world.put(item)
    not_ready(world, "u1-0")
    world.later(600)
    world.settle(LIMITS)
    assert evicted(world) == []
    assert "outage: 8 of 12 nodes of UltraServers (66 %) are not Ready" in degraded(world)[1]


@pytest.mark.parametrize(("away", "is_outage"), [(54, False), (55, False), (56, True)])
def test_the_share_is_more_than_55_percent(away: int, is_outage: bool) -> None:
    """13.4."""
    nodes = {f"n{i}": ClusterNode(f"n{i}", f"uid{i}", "", i >= away, True, None) for i in range(100)}
    counted = outage.count(nodes, (), nodes, {})
    found = outage.judge(counted.total, counted.away, at_least=3, percent=55)
    assert (found is not None) == is_outage


@pytest.mark.parametrize(("away", "is_outage"), [(2, False), (3, True)])
def test_two_nodes_are_no_outage(away: int, is_outage: bool) -> None:
    """13.4."""
    nodes = {f"n{i}": ClusterNode(f"n{i}", f"uid{i}", "", i >= away, True, None) for i in range(3)}
    counted = outage.count(nodes, (), nodes, {})
    found = outage.judge(counted.total, counted.away, at_least=3, percent=55)
    assert (found is not None) == is_outage


def test_given_up_nodes_are_no_outage() -> None:
    """13.4."""
    off = {f"n{i}": ClusterNode(f"n{i}", f"uid{i}", "", False, True, None, out_of_service=True) for i in range(5)}
    nodes = {**off, "n5": ClusterNode("n5", "uid5", "", True, True, None)}
    assert outage.count(nodes, (), nodes, {}) == outage.Count(1, ())


def test_the_share_and_the_number_are_settings() -> None:
    """13.4."""
    strict = Limits(
        node_failure_grace=datetime.timedelta(seconds=60),
        fault_grace=datetime.timedelta(seconds=30),
        outage_nodes=1,
        outage_percent=5,
    )
    world = running("RestartAll")
    not_ready(world, "u1-2")
    world.later(600)
    world.settle(strict)
    assert evicted(world) == []


# -- Draining starts when pods can be evicted -----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ACTING)
def test_dead_group_drains_when_eviction_can_follow(strategy: str) -> None:
    """13.4: a rack that loses its switch returns with its pods, which were evicted if the group had been closed."""
    world = running(strategy, servers=3, count=1)
    not_ready(world, *U0)
    world.later(61)
    world.settle(LIMITS)
    assert [one for one in held(world) if one[1] == "Draining"] == []
    assert not [action for action in world.log if isinstance(action, DeleteTemplate)]
    assert "to give up a node that will not come back, delete its Node" in world.message("job") + degraded(world)[1]
    for name in U0:
        ready_again(world, name)
    world.settle(LIMITS)
    assert (held(world), evicted(world), world.state("job")) == ([(0, "Bound", *U0)], [], ("Allocated", "Allocated"))
    assert "restarts" not in world.workload("job")["status"]


def test_migration_names_the_pods_it_waits_for() -> None:
    """13.4."""
    world = running("MigrateAffected", servers=3, count=1)
    not_ready(world, *U0)
    world.later(61)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (0, "Pending", *U1)]
    assert world.state("job") == ("PartiallyAllocated", "WaitingForPods")
    assert "waiting for pods and claims on the nodes: ml/pod-u0-0, ml/pod-u0-1" in world.message("job")


@pytest.mark.parametrize("strategy", ACTING)
def test_group_with_given_up_nodes_drains(strategy: str) -> None:
    """13.4."""
    world = running(strategy, servers=3, count=1)
    not_ready(world, *U0)
    world.later(61)
    world.settle(LIMITS)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    for name in U0:
        node = world.get("Node", name)
        world.put({**node, "spec": {**node["spec"], "taints": [taint]}})
        world.remove("ResourceClaim", f"claim-{name}", "ml")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]


def test_early_restart_is_cancelled_on_recovery() -> None:
    """13.4: the controller dies after recording the restart, and the next one finds all nodes healthy."""
    world = running("RestartAll")
    not_ready(world, "u1-2")
    world.later(61)
    world.step(LIMITS)
    assert world.state("job") == ("Deallocating", "Restarting")
    ready_again(world, "u1-2")
    world.settle(LIMITS)
    status = world.workload("job")["status"]
    assert (held(world), evicted(world)) == ([(0, "Bound", *U0), (1, "Bound", *U1)], [])
    assert [name for name in ("restarting", "restarts", "restartedAt") if name in status] == []
    assert world.state("job") == ("Allocated", "Allocated")


def test_draining_restart_continues_on_recovery() -> None:
    """13.4: Draining never becomes Bound again."""
    world = running("RestartAll")
    world.budget = {f"pod-claim-{name}": "not now" for name in (*U0, *U1)}
    not_ready(world, "u1-2")
    world.later(61)
    world.step(LIMITS)
    world.step(LIMITS)
    closed = {one["allocationId"] for one in _allocations(world) if one["phase"] == Phase.DRAINING.value}
    assert len(closed) == 2
    ready_again(world, "u1-2")
    world.budget = {}
    for _ in range(12):
        world.step(LIMITS)
        assert not [o for o in _allocations(world) if o["allocationId"] in closed and o["phase"] != "Draining"]
    assert world.state("job") == ("Allocated", "Allocated")
    assert world.workload("job")["status"]["restarts"] == 1


@pytest.mark.parametrize("after", [Phase.BOUND, Phase.PENDING])
def test_draining_group_never_opens_again(after: Phase) -> None:
    """13.4."""
    with pytest.raises(ValueError, match=f"cannot go from Draining to {after.value}"):
        states.check_step(Phase.DRAINING, after)


def _allocations(world: World) -> list[dict[str, Any]]:
    return [each for item in world.all("NeuronUltraServer") for each in item["status"].get("allocations", [])]
