"""Laws about tests, spares and the ends of blocks: each holds in a story, and finds a controller that breaks it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import pytest

from neuron_dra.core.ultraserver import object_name
from neuron_dra.planner.fleet import suitable
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.fleet.spares import SparePool
from neuron_dra.planner.observed import discovery
from neuron_dra.planner.plan import block_end
from tests.support.fleet import blocks, programs, qualifications, spares
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.pods import PLAIN, Job
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule

Story = Callable[[Schedule], Coroutine[Any, Any, None]]
Sabotage = Callable[[pytest.MonkeyPatch], None]


def violation(story: Story, actors: Collection[str]) -> str:
    """Return what a story violates, in a fleet that has come up; empty for nothing."""

    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        await story(schedule)
        await fleet.settle("the story")

    return run(1, drive=drive, actors=actors).violation


async def a_workload_that_wants_a_test(schedule: Schedule) -> None:
    """Nothing is tested, and a workload takes only nodes that passed lately."""
    await qualifications.begin(schedule, suspend=True)
    await schedule.fleet.submit("sure", 4, 1, qualification={"maxAge": "10m"})
    await schedule.fleet.sleep(30.0)


async def a_workload_beside_bad_nodes(schedule: Schedule) -> None:
    """Tests fail twice on one of two groups, and both are requested."""
    fleet = schedule.fleet
    fleet.programs.on = {sorted(fleet.nodes)[0]: programs.FAILS}
    await qualifications.begin(schedule, topologySize=4, maxGroups=2, period="1h")
    await fleet.sleep(150.0)
    fleet.programs.on.clear()
    await fleet.submit("one", 4, 1)
    await fleet.submit("other", 4, 1)
    await fleet.sleep(30.0)


async def a_plain_pod_beside_tests(schedule: Schedule) -> None:
    """A pod with an ordinary claim runs, and everything is tested."""
    fleet = schedule.fleet
    fleet.pods.jobs["plain"] = Job("plain", USERS, PLAIN, 1)
    await fleet.sleep(20.0)
    await qualifications.begin(schedule, topologySize=4, maxGroups=2)
    await fleet.sleep(60.0)


async def bad_nodes_in_the_pool(schedule: Schedule) -> None:
    """Tests fail twice on the group that is the spare, and the other group is reserved."""
    fleet = schedule.fleet
    await fleet.submit("job", 4, 1)
    await fleet.sleep(20.0)
    [kept] = spares.shown(fleet.view)
    bad = next(node for node in fleet.nodes.values() if object_name(node.block) == kept)
    fleet.programs.on = {bad.name: programs.FAILS}
    await qualifications.begin(schedule, topologySize=4, maxGroups=2, period="1h")
    await fleet.sleep(150.0)


async def a_spare_whose_block_ends(schedule: Schedule) -> None:
    """EC2 may take the spare back."""
    fleet = schedule.fleet
    [kept] = spares.shown(fleet.view)
    end = (fleet.clock.now() + datetime.timedelta(hours=0.9)).replace(microsecond=0)
    for node in (each for each in fleet.nodes.values() if object_name(each.block) == kept):
        node.ends(end, fleet.clock.now())
        await blocks.write_end(schedule, node)
    await fleet.sleep(30.0)


async def a_workload_whose_block_ends(schedule: Schedule) -> None:
    """A block gets an end, of which workloads are told at once; then that is put off."""
    fleet = schedule.fleet
    await fleet.submit("job", 4, 2)
    await fleet.sleep(30.0)
    for hours in (1.4, 30.0):
        end = (fleet.clock.now() + datetime.timedelta(hours=hours)).replace(microsecond=0)
        for node in fleet.nodes.values():
            node.ends(end, fleet.clock.now())
            await blocks.write_end(schedule, node)
        await fleet.settle(f"an end in {hours:g} h")


def chooses_unqualified_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(suitable, "is_qualified", lambda workload, slot, now: True)


def hides_unqualified_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(discovery._Discovered, "_unqualified", lambda self: ())


def ignores_foreign_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FleetIndex, "is_taken", lambda self, node, more=0: self.reserved(node) + more > 0)
    patch.setattr(Sight, "foreign", lambda self, allocation: [])


def keeps_unqualified_spares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SparePool, "_is_usable", lambda self, slot: slot.until is None or slot.until >= self.needed_until)


def keeps_spares_that_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SparePool, "_is_usable", lambda self, slot: not slot.unqualified)


def says_nothing_of_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block_end, "ends_soon", lambda view: None)


TESTED = {"qualifications"}
LAWS: list[tuple[Story, set[str], Sabotage, str]] = [
    (a_workload_that_wants_a_test, TESTED, chooses_unqualified_nodes, "no test of its nodes has passed within 10m"),
    (a_workload_beside_bad_nodes, TESTED, chooses_unqualified_nodes, "is reserved, and tests failed twice on"),
    (a_workload_beside_bad_nodes, TESTED, hides_unqualified_nodes, "is not Degraded, and tests failed twice on"),
    (a_plain_pod_beside_tests, TESTED, ignores_foreign_claims, "is tested while claim .* is prepared on"),
    (bad_nodes_in_the_pool, {*TESTED, "spares"}, keeps_unqualified_spares, "shown as a spare, and tests failed"),
    (a_spare_whose_block_ends, {"blocks", "spares"}, keeps_spares_that_end, "shown as a spare, and its block ends"),
    (a_workload_whose_block_ends, {"blocks"}, says_nothing_of_ends, "has EndsSoon None"),
]


@pytest.mark.parametrize(("story", "actors"), {story: (story, actors) for story, actors, _, _ in LAWS}.values())
def test_story_violates_nothing(story: Story, actors: set[str]) -> None:
    """36."""
    assert violation(story, actors) == ""


@pytest.mark.parametrize(("story", "actors", "sabotage", "found"), LAWS)
def test_law_finds(
    story: Story, actors: set[str], sabotage: Sabotage, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """36."""
    sabotage(monkeypatch)
    text = violation(story, actors)
    assert re.search(found, text), text
