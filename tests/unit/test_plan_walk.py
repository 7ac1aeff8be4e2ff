"""Calls of planning go down through its modules for every kind of failure."""

from __future__ import annotations

import pytest

from tests.support.walk import Return, Walk
from tests.unit.failing_world import LIMITS, not_ready, running


@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll", "MigrateAffected"])
def test_recovery_calls_downward_only(strategy: str) -> None:
    """A node fails and is given up, with each strategy (15, acceptance 2)."""
    world = running(strategy)
    with Walk(["controller"]) as walk:
        not_ready(world, "u0-1")
        world.later(61)
        world.settle(LIMITS)
        world.remove("Node", "u0-1")
        world.settle(LIMITS)
    assert "controller.plan.recovery" in walk.modules
    assert dict(walk.returns) == {}


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
