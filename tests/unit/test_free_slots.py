"""Free slots follow every reservation that a plan makes and drops."""

from __future__ import annotations

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import NOTHING_KEPT
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.census import Census
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.fleet.places import everywhere
from neuron_dra.planner.fleet.view import Step
from neuron_dra.planner.observed.model import Known, Workload
from neuron_dra.planner.plan.ledger import Ledger
from neuron_dra.planner.plan.planning import begin
from tests.unit.ultraserver_world import START, World

TYPE = "trn3.48xlarge"


@pytest.fixture
def ledger() -> Ledger:
    """Three UltraServers with one used node, and two workloads."""
    world = World([item for block in ("u0", "u1", "u2") for item in ultraserver(block)])
    world.settle()
    world.claim("foreign", ["u2-3"])
    for name in ("one", "two"):
        world.submit(name, size=2)
    return begin(FleetIndex.of(world.snapshot()), START, DEFAULT_LIMITS, Known(), NOTHING_KEPT)


def counted(ledger: Ledger, size: int) -> list[placement.Slot]:
    """Return the free slots, counted again, the best fit first."""
    found = placement.slots(ledger.index.groups, ledger.holdings, TYPE, size)
    return sorted(found, key=lambda slot: slot.fit)


def free(ledger: Ledger, size: int) -> list[placement.Slot]:
    return list(ledger.free_slots.free(TYPE, size).best(everywhere("neuron_node")))


def workload(ledger: Ledger, name: str) -> Workload:
    return next(each for each in ledger.index.workloads if each.name == name)


def reserve(ledger: Ledger, name: str, slot: placement.Slot) -> None:
    view = ledger.view(workload(ledger, name))
    ledger.after(view, Step(None, view.reserving([0], [slot]).held), None)


def test_a_decision_sees_what_it_has_given_up_itself(ledger: Ledger) -> None:
    """Its own draft counts for it, and for nobody else."""
    reserve(ledger, "one", free(ledger, 2)[0])
    before = free(ledger, 2)
    view = ledger.view(workload(ledger, "one"))
    without = view.having(view.held.drop(*view.held))
    assert len(list(without.free().best(everywhere("neuron_node")))) == len(before) + 1
    assert without.shortage(9) != view.shortage(9) == ledger.free_slots.shortage(workload(ledger, "two"), 9)
    assert free(ledger, 2) == before


def test_free_slots_follow_reservations(ledger: Ledger) -> None:
    seen = []
    for name in ("one", "two"):
        before = free(ledger, 2)
        reserve(ledger, name, before[0])
        assert [free(ledger, size) for size in (1, 2, 4)] == [counted(ledger, size) for size in (1, 2, 4)]
        seen.append(len(before) - len(free(ledger, 2)))
    uid = workload(ledger, "one").uid
    held = ledger.holdings.of(uid)
    ledger.holdings.put(uid, held.drop(*held))
    assert [free(ledger, size) for size in (1, 2, 4)] == [counted(ledger, size) for size in (1, 2, 4)]
    assert seen == [1, 1]


def test_shortage_has_current_numbers(ledger: Ledger) -> None:
    asks = workload(ledger, "one")
    before = ledger.free_slots.shortage(asks, 9)
    reserve(ledger, "two", free(ledger, 2)[0])
    after = ledger.free_slots.shortage(asks, 9)
    census = Census()
    for group in ledger.index.groups:
        census.put(group.name, group, ledger.holdings)
    assert after == placement.shortage(census.tally(TYPE, {}), asks, len(free(ledger, 2)), 9)
    assert before != after


def test_slots_of_nodes_ignore_reservations(ledger: Ledger) -> None:
    have = {"u1-2", "u1-3", "u2-2", "u2-3"}
    others = frozenset(node.name for node in ledger.index.nodes) - have
    groups = sorted(ledger.index.groups, key=lambda each: each.name)
    assert ledger.free_slots.of_nodes(have, TYPE, 2) == placement.slots(groups, others, TYPE, 2)
    assert ledger.free_slots.of_nodes({"gone"}, TYPE, 2) == ()
