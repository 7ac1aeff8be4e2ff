"""Calls of planning go down through its modules for every kind of failure."""

from __future__ import annotations

import pytest

from hack.bench.ultraservers import ultraserver
from tests.support.walk import Return, Walk
from tests.unit.failing_world import LIMITS, not_ready, running
from tests.unit.ultraserver_world import World

RETURNS = 11  # one for the pass that stores the finalizer first (4.02)
"""32 stays in 22 modules. What decisions read is in `planner/fleet`, what they say in `planner/decisions`.

At edec578 all of it was in `controller/plan`: 130 stays in 24 modules, 106 returns; in the 12 modules that decided, 46
with 34. In all three rooms together it is 193 in 41 with 152 now.
"""


@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll", "MigrateAffected"])
def test_recovery_calls_downward_only(strategy: str) -> None:
    """A node fails and is given up, with each strategy (15, acceptance 2)."""
    world = running(strategy)
    with Walk(["controller", "neuron_dra.planner"]) as walk:
        not_ready(world, "u0-1")
        world.later(61)
        world.settle(LIMITS)
        world.remove("Node", "u0-1")
        world.settle(LIMITS)
    assert "neuron_dra.planner.plan.recovery" in walk.modules
    assert dict(walk.returns) == {}


def test_a_workload_is_decided_in_few_modules() -> None:
    """30, acceptance 5: 8 nodes from Pending to Allocated to released, function by function."""
    world = World([item for name in ("u0", "u1", "u2") for item in ultraserver(name)])
    world.settle()
    claims = [("c0", "u0-0"), ("c1", "u1-0")]
    with Walk(["neuron_dra.planner.plan"]) as walk:
        uid = world.submit("job", size=4, count=2)["metadata"]["uid"]
        world.settle()
        assert world.state("job") == ("Allocated", "Allocated")
        for name, node in claims:
            world.claim(name, [node], workload_uid=uid)
        world.settle()
        world.delete_workload("job")
        world.step()
        world.step()
        world.step()
        for name, _ in claims:
            world.objects.pop(("ResourceClaim", "ml", name), None)
        world.settle()
    assert not world.all("NeuronUltraServerWorkload")
    assert len(walk.modules) > 20, "the modules that decide are not seen any more"
    assert dict(walk.returns) == {}
    assert walk.came_back <= RETURNS, walk.stays


def test_a_callback_is_a_return() -> None:
    """The recorder reports a call back up."""
    here = globals()["__name__"]
    with Walk([here, "json"]) as walk:
        encode()
    assert walk.returns == {Return(here, "json.encoder", "plain"): 1}


def encode() -> str:
    import json

    return json.dumps({1, 2}, default=plain)


def plain(value: set[int]) -> list[int]:
    return sorted(value)
