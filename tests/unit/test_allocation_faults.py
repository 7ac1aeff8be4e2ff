"""A workload is Degraded if its pods cannot start on its nodes. Issue 13, number 9."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.failing_world import LIMITS, U0, U1, U2, allocations, attribute, degraded, evicted, held, running
from tests.unit.ultraserver_world import World

TAG = ("workloadNamespace", "workloadId", "workloadUid", "allocationId", "workloadPhase")
STRATEGIES = ["NoOp", "RestartAll", "MigrateAffected"]
STAYS = [(0, "Bound", *U0), (1, "Bound", *U1)]
MOVED = [(0, "Bound", *U0), (1, "Bound", *U2)]


def lose_tag(world: World, name: str) -> None:
    """An older driver publishes slices, without tags."""
    world.silent.add(name)
    for each in TAG:
        attribute(world, name, each, None)


def move_elsewhere(world: World, name: str) -> None:
    attribute(world, name, "ultraserverId", {"string": "u9"})


def publish_devices(world: World, name: str) -> None:
    attribute(world, name, "resourceType", {"string": "neuron_device"})


def taint(world: World, name: str, key: str, effect: str = "NoSchedule") -> None:
    node = world.get("Node", name)
    world.put({**node, "spec": {**node["spec"], "taints": [{"key": key, "effect": effect}]}})


def cordon(world: World, name: str) -> None:
    node = world.get("Node", name)
    world.put({**node, "spec": {**node["spec"], "unschedulable": True}})


def wait(world: World, seconds: float) -> None:
    """Advance the time in steps, with a plan after each."""
    world.settle(LIMITS)
    world.later(seconds)
    world.settle(LIMITS)


LOST: dict[str, tuple[Any, float]] = {
    "TagLost": (lose_tag, 60 + 30),
    "UltraServerChanged": (move_elsewhere, 30),
    "ShapeChanged": (publish_devices, 30),
}


@pytest.mark.parametrize("reason", LOST)
def test_migrate_affected_leaves_unusable_nodes(reason: str) -> None:
    """13.9."""
    change, seconds = LOST[reason]
    world = running("MigrateAffected")
    change(world, "u1-2")
    wait(world, seconds - 1)
    assert (held(world), degraded(world)[0]) == (STAYS, reason)
    wait(world, 1)
    world.later(601)  # a slot whose node does not close is released after the quarantine
    world.settle(LIMITS)
    assert held(world) == MOVED


@pytest.mark.parametrize("reason", LOST)
@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll"])
def test_the_other_strategies_only_report_it(reason: str, strategy: str) -> None:
    """13.9: a rollback of the driver drops all tags, and RestartAll would evict all pods."""
    change, seconds = LOST[reason]
    world = running(strategy)
    change(world, "u1-2")
    wait(world, seconds)
    wait(world, 7200)
    assert (held(world), evicted(world), degraded(world)[0]) == (STAYS, [], reason)
    assert "u1-2" in degraded(world)[1]
    assert "acts at" not in degraded(world)[1]


def test_short_missing_tag_is_not_reported() -> None:
    """13.9."""
    world = running("MigrateAffected")
    lose_tag(world, "u1-2")
    wait(world, 59)
    assert (degraded(world), held(world)) == (("", ""), STAYS)
    world.silent.clear()
    wait(world, 60)
    assert (degraded(world), held(world)) == (("", ""), STAYS)
    assert "faults" not in allocations(world)[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cordoned_node_is_only_reported(strategy: str) -> None:
    """13.9."""
    world = running(strategy)
    cordon(world, "u1-2")
    wait(world, 7200)
    assert degraded(world) == ("NodeCordoned", "cordoned nodes, where no pod can start: u1-2")
    assert (held(world), evicted(world), world.state("job")[0]) == (STAYS, [], "Allocated")


@pytest.mark.parametrize("how", ["cordon", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"])
def test_on_cordon_migrate_moves_after_the_grace(how: str) -> None:
    """13.9."""
    world = running("MigrateAffected")
    item = world.workload("job")
    item["spec"]["allocationPolicy"]["onCordon"] = "Migrate"
    world.put(item)
    if how == "cordon":
        cordon(world, "u1-2")
    else:
        taint(world, "u1-2", how)
    wait(world, 29)
    assert (held(world), degraded(world)[0]) == (STAYS, "NodeCordoned")
    wait(world, 1)
    assert held(world) == MOVED


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_tainted_node_is_only_reported(strategy: str, effect: str) -> None:
    """13.9."""
    world = running(strategy)
    taint(world, "u1-2", "example.com/maintenance", effect)
    wait(world, 7200)
    assert degraded(world)[0] == "NodeTainted"
    assert (held(world), evicted(world)) == (STAYS, [])


@pytest.mark.parametrize(
    ("key", "effect"), [("aws.amazon.com/neuron", "PreferNoSchedule"), ("node.kubernetes.io/not-ready", "NoSchedule")]
)
def test_harmless_taints_are_ignored(key: str, effect: str) -> None:
    world = running("NoOp")
    taint(world, "u1-2", key, effect)
    world.settle(LIMITS)
    assert degraded(world) == ("", "")


def test_taint_common_to_a_group_is_ignored() -> None:
    """13.9: nodes with accelerators are tainted from the start, and their pods tolerate it."""
    world = running("MigrateAffected")
    for name in (*U0, *U1, *U2):
        taint(world, name, "aws.amazon.com/neuron")
    world.settle(LIMITS)
    assert degraded(world) == ("", "")


def test_group_moves_to_nodes_the_template_fits() -> None:
    """13.9: not to nodes with the resourceType of the changed node."""
    world = running("MigrateAffected", servers=4)
    for name in U1:
        publish_devices(world, name)
    for name in U2:
        publish_devices(world, name)
    wait(world, 30)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *(f"u3-{n}" for n in range(4)))]
