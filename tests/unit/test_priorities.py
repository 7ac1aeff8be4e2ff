"""The PriorityClass of a workload orders who waits, and takes nothing from anyone. Issue 35."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.observed.model import FleetSnapshot
from neuron_dra.planner.plan.planning import Limits, plan
from tests.unit.ultraserver_world import World


class Prioritized(World):
    """A world with three PriorityClasses."""

    priorities: dict[str, int] = {"high": 1000, "low": -10, "zero": 0}  # noqa: RUF012 - never changed

    def snapshot(self) -> FleetSnapshot:
        return replace(super().snapshot(), priorities=self.priorities)


def fleet(count: int = 1) -> Prioritized:
    world = Prioritized([item for n in range(count) for item in ultraserver(f"u{n}")])
    world.settle()
    return world


def submit(world: World, name: str, priority: str = "", **spec: Any) -> None:
    world.later(1)
    chosen: dict[str, Any] = {"priorityClassName": priority} if priority else {}
    world.submit(name, **chosen, **spec)


def free(world: World, holder: str) -> None:
    world.delete_workload(holder)
    world.settle()


@pytest.mark.parametrize(
    ("first", "second", "served"),
    [
        ("", "", "early"),
        ("", "high", "late"),
        ("high", "high", "early"),
        ("low", "", "late"),
        ("", "low", "early"),
        ("zero", "", "early"),
        ("unknown", "", "early"),
        ("unknown", "high", "late"),
    ],
)
def test_priority_orders_who_waits(first: str, second: str, served: str) -> None:
    world = fleet()
    world.submit("holder")
    world.settle()
    submit(world, "early", first)
    submit(world, "late", second)
    world.settle()
    free(world, "holder")
    assert [name for name in ("early", "late") if world.reserved(name)] == [served]


def test_priority_takes_no_reserved_node() -> None:
    world = fleet()
    submit(world, "holder", "low")
    world.settle()
    submit(world, "urgent", "high")
    world.settle()
    world.later(100_000)
    world.settle()
    assert (world.state("holder")[0], world.state("urgent")[0]) == ("Allocated", "Pending")


def test_starving_workload_does_not_hold_back_one_of_higher_priority() -> None:
    world = fleet(2)
    world.submit("holder")
    world.settle()
    submit(world, "starving", "low", count=2)
    world.settle()
    world.later(Limits().starvation_threshold.total_seconds() + 1)
    submit(world, "same", "low")
    submit(world, "urgent", "high")
    world.settle()
    assert (world.state("urgent")[0], world.state("same")) == ("Allocated", ("Pending", "WaitsForOlder"))


def test_class_that_does_not_exist_is_named_while_the_workload_waits() -> None:
    world = fleet()
    world.submit("holder")
    world.settle()
    submit(world, "waiting", "unknown")
    world.settle()
    assert world.message("waiting").endswith(
        "; PriorityClass unknown does not exist or cannot be read: it waits with priority 0"
    )


def test_allocated_workloads_do_not_depend_on_priorities() -> None:
    world = fleet()
    submit(world, "job", "high")
    world.settle()
    world.priorities = {}
    assert plan(world.snapshot(), world.now).actions == ()
