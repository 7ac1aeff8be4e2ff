"""Nodes change hands only after a read of the claims on them. ADR 16, rule 7."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import pytest

from controller.apply.claim_reads import ClaimReads
from controller.apply.fence import unelected
from controller.apply.sender import Sender
from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING
from neuron_dra.errors import ApiError, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.decisions.actions import NodesToRead, Plan
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import Known, PublishedNode, ReadClaims, condition
from neuron_dra.planner.plan.expiry import VALID
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.failing_world import LIMITS, running
from tests.unit.test_expiry import free, unused
from tests.unit.test_planning import fleet
from tests.unit.ultraserver_world import START, World

NODES = tuple(f"u0-{number}" for number in range(4))


def to_be_opened() -> World:
    world = fleet()
    world.step()
    world.submit("job")
    return world


def to_be_freed() -> World:
    world = running("NoOp", servers=1, count=1)
    free(world)
    world.delete_workload("job")
    return world


def to_be_given_up() -> World:
    world = unused(60)
    world.later(31)
    world.settle(LIMITS)
    world.later(30)
    return world


SCENES = [to_be_opened, to_be_freed, to_be_given_up]


@dataclass(slots=True)
class Asked:
    """A cluster, and the first plan that asks for a read of claims."""

    world: World
    index: FleetIndex
    plan: Plan

    @classmethod
    def in_scene(cls, scene: Callable[[], World]) -> Asked:
        world = scene()
        for _ in range(20):
            index = FleetIndex.of(world.snapshot())
            plan = plan_of(index, world.now, LIMITS, Known(read_claims={}))
            if plan.to_read:
                return cls(world, index, plan)
            for action in plan.actions:
                world.write(action)
            world.tag_nodes()
        raise AssertionError("no plan asks for a read of claims")

    @property
    def nodes(self) -> set[str]:
        return {name for request in self.plan.to_read for name in request.nodes}

    def again(
        self, age: datetime.timedelta = datetime.timedelta(), other: Collection[str] = (), **known: object
    ) -> Plan:
        """Plan again after a read of this age; `other` nodes published something else when it was made."""
        reads = {}
        for name in self.nodes:
            published = self.index.published_by_name[name]
            seen = replace(published) if name in other else published
            reads[name] = ReadClaims(seen, self.world.now - age)
        return plan_of(self.index, self.world.now, LIMITS, Known(read_claims=reads))


@pytest.mark.parametrize("scene", SCENES)
def test_plan_asks_for_the_claims_on_nodes_and_changes_nothing_until_they_are_read(scene: Callable[[], World]) -> None:
    asked = Asked.in_scene(scene)
    assert asked.plan.actions == ()
    assert {request.namespace for request in asked.plan.to_read} == {"ml"}


@pytest.mark.parametrize("scene", SCENES)
def test_plan_after_the_read_is_that_of_complete_knowledge(scene: Callable[[], World]) -> None:
    asked = Asked.in_scene(scene)
    assert asked.again().actions == plan_of(asked.index, asked.world.now, LIMITS).actions != ()


@pytest.mark.parametrize("scene", SCENES)
def test_read_before_the_last_change_of_a_node_does_not_count(scene: Callable[[], World]) -> None:
    asked = Asked.in_scene(scene)
    assert asked.again(other=[min(asked.nodes)]).actions == ()


def test_nodes_are_given_up_only_just_after_the_read() -> None:
    asked = Asked.in_scene(to_be_given_up)
    assert asked.again(VALID).actions
    assert asked.again(VALID * 2).actions == ()


@pytest.mark.parametrize("scene", [to_be_opened, to_be_freed])
def test_workload_says_that_claims_cannot_be_read(scene: Callable[[], World]) -> None:
    asked = Asked.in_scene(scene)
    plan = plan_of(asked.index, asked.world.now, LIMITS, Known(read_claims={}, unread_claims={"ml": "no answer"}))
    [write] = plan.actions
    ready = condition(write.status, "Ready")  # type: ignore[attr-defined]
    text = "reservations cannot be changed, because the claims on their nodes cannot be read: no answer"
    assert (ready["reason"], ready["message"]) == ("ReservationNotStored", text)


# -- the reads ---------------------------------------------------------------------------------------------------------


class ReadCaches(Caches[FleetIndex]):
    """Caches that record what is read."""

    def __init__(self) -> None:
        super().__init__(KubeClient(KubeConfig("server:")), lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        self.error: ApiError | None = None
        self.read: list[set[str]] = []

    async def reread_claims(self, nodes: Collection[str]) -> None:
        self.read.append({*nodes})
        if self.error is not None:
            raise self.error


class Reads:
    """The reads of a controller over that server."""

    def __init__(self) -> None:
        self.caches = ReadCaches()
        self.sender = Sender(unelected(), DEFAULT_TIMING.outbox)
        self.reads = ClaimReads(self.caches, DEFAULT_TIMING.pods, self.sender)
        self.published = {name: PublishedNode(name, "", "t", "neuron_node", "u0", 0, ()) for name in (*NODES, "other")}

    async def look(self, *asked: NodesToRead, now: datetime.datetime = START) -> datetime.datetime | None:
        due = self.reads.look(asked, self.published, now)
        await self.sender.send_all()
        return due


@pytest.fixture
def reads() -> Reads:
    return Reads()


ASKED = NodesToRead("ml", NODES)


async def test_nodes_of_a_namespace_are_read_together_and_once(reads: Reads) -> None:
    await reads.look(NodesToRead("ml", NODES[:2]), NodesToRead("ml", NODES[2:]), NodesToRead("calm", ("other",)))
    await reads.look(ASKED)
    assert sorted(reads.caches.read, key=len) == [{"other"}, {*NODES}]
    assert reads.reads.found.keys() == {*NODES}


async def test_read_does_not_count_for_a_plan_that_began_before_its_end(reads: Reads) -> None:
    reads.reads.look([ASKED], reads.published, START)
    known = Known(read_claims=reads.reads.found)
    await reads.sender.send_all()
    assert (known.read_claims, {*reads.reads.found}) == ({}, {*NODES})


async def test_node_that_publishes_something_else_is_read_again(reads: Reads) -> None:
    await reads.look(ASKED)
    reads.published[NODES[0]] = replace(reads.published[NODES[0]])
    await reads.look(ASKED)
    assert reads.caches.read == [{*NODES}, {NODES[0]}]


async def test_old_read_is_repeated_for_nodes_that_are_given_up(reads: Reads) -> None:
    recent = NodesToRead("ml", NODES, VALID)
    await reads.look(recent)
    await reads.look(ASKED, now=START + 2 * VALID)
    assert len(reads.caches.read) == 1
    await reads.look(recent, now=START + 2 * VALID)
    assert len(reads.caches.read) == 2


async def test_failed_read_is_told_and_waits(reads: Reads) -> None:
    reads.caches.error = Unavailable("no answer")
    await reads.look(ASKED)
    due = await reads.look(ASKED)
    assert (reads.reads.errors, reads.reads.found, len(reads.caches.read)) == ({"ml": "no answer"}, {}, 1)
    assert due is not None
    reads.caches.error = None
    reads.reads.end_waits()
    await reads.look(ASKED)
    assert (reads.reads.errors, {*reads.reads.found}) == ({}, {*NODES})
