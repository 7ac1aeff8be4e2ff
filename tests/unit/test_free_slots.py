"""Free slots follow every reservation that a plan makes and drops."""

from __future__ import annotations

import pytest

from controller.observe.model import Known, Workload
from controller.plan import placement
from controller.plan.census import Census
from controller.plan.context import DEFAULT_LIMITS, PlanningContext
from controller.plan.fleet_index import FleetIndex
from controller.plan.places import everywhere
from hack.bench.ultraservers import ultraserver
from tests.unit.ultraserver_world import START, World

TYPE = "trn3.48xlarge"


@pytest.fixture
def context() -> PlanningContext:
    """Three UltraServers with one used node, and two workloads."""
    world = World([item for block in ("u0", "u1", "u2") for item in ultraserver(block)])
    world.settle()
    world.claim("foreign", ["u2-3"])
    for name in ("one", "two"):
        world.submit(name, size=2)
    return PlanningContext.of(FleetIndex.of(world.snapshot()), START, DEFAULT_LIMITS, Known())


def counted(context: PlanningContext, size: int) -> list[placement.Slot]:
    """Return the free slots, counted again, the best fit first."""
    found = placement.slots(context.index.groups, context.holdings, TYPE, size)
    return sorted(found, key=lambda slot: slot.fit)


def free(context: PlanningContext, size: int) -> list[placement.Slot]:
    return list(context.free_slots.free(TYPE, size).best(everywhere("neuron_node")))


def workload(context: PlanningContext, name: str) -> Workload:
    return next(each for each in context.index.workloads if each.name == name)


def test_free_slots_follow_reservations(context: PlanningContext) -> None:
    seen = []
    for name in ("one", "two"):
        before = free(context, 2)
        context.holdings.reserve(workload(context, name), 0, before[0], START)
        assert [free(context, size) for size in (1, 2, 4)] == [counted(context, size) for size in (1, 2, 4)]
        seen.append(len(before) - len(free(context, 2)))
    context.holdings.drop(context.holdings.of(workload(context, "one").uid)[0])
    assert [free(context, size) for size in (1, 2, 4)] == [counted(context, size) for size in (1, 2, 4)]
    assert seen == [1, 1]


def test_shortage_has_current_numbers(context: PlanningContext) -> None:
    asks = workload(context, "one")
    before = context.free_slots.shortage(asks, 9)
    context.holdings.reserve(workload(context, "two"), 0, free(context, 2)[0], START)
    after = context.free_slots.shortage(asks, 9)
    census = Census()
    for group in context.index.groups:
        census.put(group.name, group, context.holdings)
    assert after == placement.shortage(census.tally(TYPE, {}), asks, len(free(context, 2)), 9)
    assert before != after


def test_slots_of_nodes_ignore_reservations(context: PlanningContext) -> None:
    have = {"u1-2", "u1-3", "u2-2", "u2-3"}
    others = frozenset(node.name for node in context.index.nodes) - have
    groups = sorted(context.index.groups, key=lambda each: each.name)
    assert context.free_slots.of_nodes(have, TYPE, 2) == placement.slots(groups, others, TYPE, 2)
    assert context.free_slots.of_nodes({"gone"}, TYPE, 2) == ()
