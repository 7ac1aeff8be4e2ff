"""Reservations of nodes, their tags, and when no pod of a workload can run on a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_dra.core.notice import UNTOLD
from neuron_dra.core.ultraserver import Allocation, Phase, Tag
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.observed.model import (
    NOTHING_KNOWN,
    ClaimUse,
    ClusterNode,
    FleetSnapshot,
    PublishedNode,
    Reservation,
    UltraServer,
)
from tests.unit.ultraserver_world import START

NODES = ("n0", "n1")


def allocation(allocation_id: str = "a-1", phase: Phase = Phase.BOUND, index: int = 0, **more: Any) -> Allocation:
    nodes = more.pop("nodes", NODES)
    uids = tuple(f"uid-{name}" for name in nodes)
    return Allocation("ml", "llm", "uid-llm", allocation_id, phase, nodes, len(nodes), index, node_uids=uids, **more)


def node(name: str, **more: Any) -> ClusterNode:
    return ClusterNode(**{"name": name, "uid": f"uid-{name}", "provider_id": "", "ready": True, "schedulable": True,
                          "capacity_block": None, **more})  # fmt: skip


def published(name: str, tagged: Allocation | None = None, **more: Any) -> PublishedNode:
    tag = Tag("ml", "llm", "uid-llm", tagged.allocation_id, tagged.phase) if tagged else None
    return PublishedNode(name, f"uid-{name}", "trn3.48xlarge", "neuron_node", "u0", 0, (1, 2, 4), tag=tag, **more)


def claim(name: str, *nodes: str, workload_uid: str | None = "uid-llm") -> ClaimUse:
    return ClaimUse("ml", name, nodes, workload_uid, workload_id="llm" if workload_uid else None)


def assumed(*allocations: Allocation) -> list[Reservation]:
    return [Reservation("us-u0", each) for each in allocations]


def holdings(
    *held: Allocation,
    nodes: tuple[ClusterNode, ...] = (node("n0"), node("n1")),
    shown: tuple[PublishedNode, ...] = (),
    claims: tuple[ClaimUse, ...] = (),
) -> Holdings:
    stored = UltraServer("us-u0", "uid-u0", "7", 1, {}, {}, tuple(Reservation("us-u0", each) for each in held))
    return Holdings(FleetIndex.of(FleetSnapshot(published=shown, nodes=nodes, claims=claims, ultraservers=(stored,))))


def sight(
    nodes: tuple[ClusterNode, ...] = (node("n0"), node("n1")),
    shown: tuple[PublishedNode, ...] = (),
    claims: tuple[ClaimUse, ...] = (),
) -> Sight:
    index = FleetIndex.of(FleetSnapshot(published=shown, nodes=nodes, claims=claims))
    return Sight(index, NOTHING_KNOWN, START, DEFAULT_LIMITS)


@pytest.mark.parametrize("ids", [("a-1", "a-2"), ("a-2", "a-1")])
def test_bound_reservation_wins_over_pending(ids: tuple[str, str]) -> None:
    bound = allocation(ids[0], Phase.BOUND)
    coming = allocation(ids[1], Phase.PENDING, nodes=("n2", "n3"))
    draining = allocation("a-0", Phase.DRAINING, nodes=("n4", "n5"))
    assert holdings(coming, bound, draining).of("uid-llm").live() == {0: Reservation("us-u0", bound)}


def test_duplicate_pending_choice_is_stable() -> None:
    one, other = (allocation(each, Phase.PENDING) for each in ("a-1", "a-2"))
    assert holdings(one, other).of("uid-llm").live() == holdings(other, one).of("uid-llm").live()


def test_reservations_are_in_index_order() -> None:
    held = [allocation("a-3", index=0), allocation("a-1", index=2), allocation("a-2", index=1)]
    assert [each.allocation.ultraserver_index for each in holdings(*held).of("uid-llm")] == [0, 1, 2]


def test_nodes_with_reservation_or_claim_are_taken() -> None:
    held = [allocation(f"a-{n}", phase, n, nodes=(f"n{n}",)) for n, phase in enumerate(Phase)]
    found = holdings(*held, claims=(claim("x", "n7", "n8", workload_uid=None),))
    assert [name for name in (f"n{n}" for n in range(10)) if name in found] == ["n0", "n1", "n2", "n7", "n8"]


SHOWS = allocation(phase=Phase.PENDING)


@pytest.mark.parametrize(
    ("shown", "there"),
    [
        (published("n0"), node("n0")),
        (published("n0", allocation("a-old", Phase.PENDING)), node("n0")),
        (published("n0", allocation(phase=Phase.BOUND)), node("n0")),
        (published("n0", SHOWS, complete=False), node("n0")),
        (published("n0", SHOWS), node("n0", uid="uid-another")),
        (published("n0", SHOWS), node("elsewhere")),
        (published("elsewhere", SHOWS), node("n0")),
    ],
)
def test_only_the_exact_tag_is_an_answer(shown: PublishedNode, there: ClusterNode) -> None:
    found = sight(nodes=(there, node("n1")), shown=(shown, published("n1", SHOWS)))
    assert (found.shows("n0", SHOWS, Phase.PENDING), found.without_tag(SHOWS), found.has_tags(SHOWS)) == (
        *(False, ["n0"], False),
    )


def test_answered_needs_ready_tagged_unused_nodes() -> None:
    shown = tuple(published(name, SHOWS) for name in NODES)
    assert sight(shown=shown).has_tags(SHOWS)
    assert sight(shown=shown, claims=(claim("mine", "n0"),)).has_tags(SHOWS)
    assert not sight(shown=shown, claims=(claim("x", "n1", workload_uid=None),)).has_tags(SHOWS)
    unready = (node("n0"), node("n1", ready=False))
    assert sight(nodes=unready, shown=shown).without_tag(SHOWS) == ["n1"]


# -- Draining ----------------------------------------------------------------------------------------------------------

DRAINING = allocation(phase=Phase.DRAINING)
OPEN = published("n1", allocation(phase=Phase.BOUND))


def closed(shown: PublishedNode | None, there: ClusterNode | None, *, final: bool) -> bool:
    found = sight((there,) if there is not None else (), (shown,) if shown is not None else ())
    return found.is_closed("n1", DRAINING, final=final)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    ("shown", "there"),
    [
        (None, node("n1")),
        (OPEN, None),
        (OPEN, node("n1", uid="uid-another")),
        (OPEN, node("n1", out_of_service=True)),
        (published("n1", DRAINING), node("n1")),
    ],
)
def test_closed_needs_tag_or_no_running_plugin(
    shown: PublishedNode | None, there: ClusterNode | None, final: bool
) -> None:
    assert closed(shown, there, final=final)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    "shown",
    [
        OPEN,
        replace(OPEN, complete=False),
        published("n1", DRAINING, complete=False),
        published("n1", allocation(phase=Phase.PENDING)),  # its plugin may be about to show Bound
    ],
)
def test_possibly_open_node_is_not_closed(shown: PublishedNode, final: bool) -> None:
    assert not closed(shown, node("n1"), final=final)


@pytest.mark.parametrize("tagged", [None, allocation("a-old", Phase.BOUND), allocation("a-old", Phase.PENDING)])
def test_node_without_the_reservation_closes_with_its_workload(tagged: Allocation | None) -> None:
    shown = published("n1", tagged)
    assert [closed(shown, node("n1"), final=final) for final in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("nodes", "shown", "claims", "leaves"),
    [
        ((node("n0"), node("n1")), (OPEN,), (), True),
        ((node("n0"), node("n1", ready=False)), (OPEN,), (), False),
        ((node("n0"), node("n1")), (published("n1", DRAINING),), (), False),
        ((node("n0"), node("n1")), (), (claim("mine", "n0"),), True),
        ((node("n0"), node("n1", ready=False)), (OPEN,), (claim("mine", "n1"),), True),
        ((node("n0"), node("n1")), (), (claim("x", "n0", workload_uid="uid-other"),), False),
        ((node("n0"), node("n1")), (), (claim("mine", "n9"),), False),
    ],
)
def test_pods_may_run_while_open_or_claimed(
    nodes: tuple[ClusterNode, ...], shown: tuple[PublishedNode, ...], claims: tuple[ClaimUse, ...], leaves: bool
) -> None:
    assert sight(nodes, shown, claims).may_run(Reservation("us-u0", DRAINING)) is leaves


def test_claim_on_two_nodes_is_listed_once() -> None:
    claims = (claim("both", "n0", "n1"), claim("a", "n1", workload_uid="uid-other"))
    found = sight(claims=claims)
    assert found.uses(NODES) == [claims[0], claims[1]]
    assert found.foreign(allocation()) == [claims[1]]


# -- changes by a plan -------------------------------------------------------------------------------------------------


def test_changes_update_workload_and_ultraserver() -> None:
    found = holdings(allocation("a-1"), allocation("a-2", Phase.DRAINING, index=1, nodes=("n2", "n3")))
    first, second = found.of("uid-llm")
    found.put("uid-llm", found.of("uid-llm").drain(first, notice=UNTOLD).drop(second))
    left = Reservation("us-u0", allocation("a-1", Phase.DRAINING, notice=UNTOLD))
    assert (found.of("uid-llm"), found.at("us-u0"), found.of("uid-llm").live()) == (Held((left,)), [left], {})
    assert [name for name in ("n0", "n1", "n2", "n3") if name in found] == ["n0", "n1"]


def test_bound_nodes_drain_before_release() -> None:
    """Bound becomes only Draining, and Draining only free (15)."""
    bound = Held.of([Reservation("us-u0", allocation("a-1"))])
    with pytest.raises(ValueError, match="a reservation cannot go from Bound to free"):
        bound.drop(*bound)
    draining = bound.drain(*bound, notice=UNTOLD)
    with pytest.raises(ValueError, match="a reservation cannot go from Draining to Bound"):
        draining.bind(*draining)
    assert draining.drop(*draining) == Held()


def test_reservation_that_a_decision_has_changed_is_another_one() -> None:
    """A mistake in a decision is an error of its workload, and does not change anything silently."""
    bound = Held.of([Reservation("us-u0", allocation("a-1"))])
    with pytest.raises(ValueError, match="that its workload does not have"):
        bound.drain(*bound, notice=UNTOLD).drain(*bound, notice=UNTOLD)


def test_draft_has_the_taken_nodes_after_a_decision() -> None:
    found = holdings(allocation("a-1"), allocation("a-2", Phase.DRAINING, index=1, nodes=("n2", "n3")))
    held = found.of("uid-llm")
    draft = found.draft("uid-llm", held.drop(*held.draining))
    assert draft is not None
    assert ([name for name in ("n0", "n2") if name in draft], draft.ultraservers) == (["n0"], frozenset({"us-u0"}))
    assert found.draft("uid-llm", held.drain(*held.bound, notice=UNTOLD)) is None
    assert "n2" in found


# -- the world ---------------------------------------------------------------------------------------------------------


def test_growing_workload_keeps_its_published_size() -> None:
    held = [allocation("a-0", index=0, world_size=4), allocation("a-1", index=1, nodes=("n2", "n3"), world_size=4)]
    found = Held.of(Reservation("us-u0", each) for each in held)
    assert [each.allocation.world_size for each in found.with_world_size(2, None, 2)] == [4, 4]
    grown = found.with_world_size(2, None, 3)
    assert [(each.allocation.world_size, each.allocation.rank0_node) for each in grown] == [(6, "n0")] * 2


def test_size_follows_the_groups_while_none_has_rank_0() -> None:
    """30.10: of three groups the first and the last were lost, and the second still published six nodes."""
    held = allocation("a-1", index=1, nodes=("n2", "n3"), world_size=6, rank0_node="n0")
    found = Held.of([Reservation("us-u0", held)]).with_world_size(2, None, 2)
    assert [(each.allocation.world_size, each.allocation.rank0_node) for each in found] == [(4, "n0")]


def test_assumed_reservation_has_its_nodes() -> None:
    have = holdings()
    have.assume(assumed(allocation(phase=Phase.PENDING)))
    assert [one.allocation.allocation_id for one in have.of("uid-llm")] == ["a-1"]
    assert ("n0" in have, have.nodes_of_namespace("ml"), [*have.changed]) == (True, 2, ["us-u0"])


def test_assumed_reservation_that_is_stored_counts_once() -> None:
    have = holdings(allocation())
    have.assume(assumed(allocation(phase=Phase.PENDING)))
    assert [one.allocation.phase for one in have.of("uid-llm")] == [Phase.BOUND]
    assert have.nodes_of_namespace("ml") == 2


def test_assumed_reservation_counts_against_limits_when_a_plan_drops_it() -> None:
    """It may be stored, so no other workload may get its part of the limit until the answer."""
    have = holdings()
    have.assume(assumed(allocation(phase=Phase.PENDING)))
    have.put("uid-llm", Held())
    assert ("n0" in have, have.nodes_of_namespace("ml")) == (False, 2)
