"""What a plan says is free follows every reservation that it makes and drops."""

from __future__ import annotations

import pytest
from ultraserver_world import START, World

from controller import placement
from controller.draft import DEFAULT_LIMITS, Draft
from controller.fleet_index import FleetIndex
from controller.model import Workload
from neuron_dra.testing.ultraservers import ultraserver

TYPE = "trn3.48xlarge"


@pytest.fixture
def draft() -> Draft:
    """Three UltraServers, of which one node is in use by somebody, and two workloads."""
    world = World([item for block in ("u0", "u1", "u2") for item in ultraserver(block)])
    world.settle()
    world.claim("foreign", ["u2-3"])
    for name in ("one", "two"):
        world.submit(name, size=2)
    return Draft.of(FleetIndex.of(world.snapshot()), START, DEFAULT_LIMITS)


def counted(draft: Draft, size: int) -> list[placement.Slot]:
    """Return the free slots, counted again, the best fit first."""
    found = placement.slots(draft.snapshot.groups, draft.holdings, TYPE, size)
    return sorted(found, key=lambda slot: slot.fit)


def free(draft: Draft, size: int) -> list[placement.Slot]:
    return list(draft.room.free(TYPE, size))


def workload(draft: Draft, name: str) -> Workload:
    return next(each for each in draft.snapshot.workloads if each.name == name)


def test_what_is_free_follows_each_reservation(draft: Draft) -> None:
    seen = []
    for name in ("one", "two"):
        before = draft.room.free(TYPE, 2)
        draft.holdings.reserve(workload(draft, name), 0, before[0], START)
        assert [free(draft, size) for size in (1, 2, 4)] == [counted(draft, size) for size in (1, 2, 4)]
        seen.append(len(before) - len(draft.room.free(TYPE, 2)))
    draft.holdings.drop(draft.holdings.of(workload(draft, "one").uid)[0])
    assert [free(draft, size) for size in (1, 2, 4)] == [counted(draft, size) for size in (1, 2, 4)]
    assert seen == [1, 1]


def test_a_shortage_names_the_figures_of_this_moment(draft: Draft) -> None:
    asks = workload(draft, "one")
    before = draft.room.shortage(asks, 9)
    draft.holdings.reserve(workload(draft, "two"), 0, draft.room.free(TYPE, 2)[0], START)
    after = draft.room.shortage(asks, 9)
    assert after == placement.shortage(draft.snapshot.groups, draft.holdings, asks, free(draft, 2), 9)
    assert before != after


def test_the_slots_of_some_nodes_are_found_whoever_holds_them(draft: Draft) -> None:
    have = {"u1-2", "u1-3", "u2-2", "u2-3"}
    others = frozenset(node.name for node in draft.snapshot.nodes) - have
    groups = sorted(draft.snapshot.groups, key=lambda each: each.name)
    assert draft.room.of_nodes(have, TYPE, 2) == placement.slots(groups, others, TYPE, 2)
    assert draft.room.of_nodes({"gone"}, TYPE, 2) == ()
