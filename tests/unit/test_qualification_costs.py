"""A look at tests of UltraServers costs what changed, and decides what a look at everything would (30, net 3)."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from controller.apply.fence import Fence, unelected
from controller.apply.leader import Leadership
from controller.apply.requests import Applier
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.qualify.decide import QualifyView, StoreResults, WriteQualification, decide, forgotten, sources
from controller.qualify.qualifications import Qualifications
from controller.qualify.watches import QualifyWatches
from controller.timing import DEFAULT_TIMING, QualifyTiming
from hack.bench.plan import NOW, fleet, submit
from neuron_dra.core.qualification import Target
from neuron_dra.core.ultraserver import Allocation, Phase
from neuron_dra.core.wire import Obj
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.decisions.actions import Plan, WaitingWorkloads, WantedGroup
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.observed.model import Reservation
from neuron_dra.planner.observed.results import GroupResult, Source
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.beside_scene import Shelf
from tests.unit.test_plan_costs import lines

ASKED: Obj = {
    "metadata": {"name": "nightly", "uid": "q", "resourceVersion": "1", "generation": 1},
    "spec": {"instanceTypes": ["trn3.48xlarge"], "topologySize": 4, "image": "i", "maxGroups": 1},
}


class Looking:
    """Tests of UltraServers over an index whose objects are put in by hand; every write is rejected as a conflict."""

    def __init__(self, index: FleetIndex, *, asked: bool = True, leadership: Leadership | None = None) -> None:
        self.index, self.now = index, NOW
        self.shelf = shelf = Shelf({("NeuronUltraServerQualification", "", "nightly"): ASKED} if asked else {})
        self.caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        events = EventRecorder(shelf, "here")
        self.fence = unelected() if leadership is None else Fence(leadership)
        self.applier = Applier(shelf, self.caches, events, DEFAULT_TIMING, self.fence)
        self.watches = QualifyWatches(shelf, lambda: None, QualifyTiming())
        for each in self.watches.reflectors.values():
            each.synced.set()
        self.planned = Plan()
        parts = shelf, self.caches, self.applier, self.watches, events, Metrics(), DEFAULT_LIMITS, QualifyTiming()
        self.tests = Qualifications(*parts, lambda: self.planned.waiting, lambda: None)

    def plan(self) -> None:
        self.index.refresh()
        self.planned = plan_of(self.index, self.now)

    def look(self) -> None:
        """Decide, and send what is due."""
        self.index.refresh()

        async def look() -> None:
            await self.tests.look(self.index, self.now)
            await self.applier.sender.send_all()

        asyncio.run(look())

    def view(self) -> QualifyView:
        """Return what the next decision depends on."""
        return self.tests._view(self.index, self.watches.qualifications(), self.now)

    def cost(self) -> int:
        """Return what the next look costs, once those before it have made their survey."""
        return lines(self.look)


def store(index: FleetIndex, name: str, *of: str) -> None:
    """Store a fresh result of these qualifications in an UltraServer."""
    group = index.group_by_name[name]
    uids = tuple(str(entry.get("nodeUid")) for entry in group.topology)
    results = tuple(GroupResult(each, 1, group.node_names, uids, True, 0, NOW, NOW) for each in of)
    index.put_ultraserver(name, replace(index.ultraserver_by_name[name], results=results))


def with_results(groups: int, *of: str) -> FleetIndex:
    """Return a fleet of which all groups have a result of these qualifications."""
    index = fleet(4 * groups)
    for name in list(index.group_by_name):
        store(index, name, *of)
    index.refresh()
    return index


@pytest.mark.parametrize("asked", [False, True])
def test_a_look_costs_the_same_however_many_wait(asked: bool) -> None:
    """They wait for more than the fleet has. One of them changes."""
    costs = []
    for number in (100, 2_000):
        there = Looking(with_results(2, "nightly") if asked else fleet(8), asked=asked)
        for each in range(number):
            submit(there.index, each, 4, 3)
        there.plan()
        there.look()
        submit(there.index, 7, 4, 4)
        costs.append(there.cost())
    assert costs[1] <= costs[0] + 10


@pytest.mark.parametrize("asked", [False, True])
def test_a_look_costs_the_same_however_many_groups_have_results(asked: bool) -> None:
    """The results are gone through from time to time; this is a look between two of them."""
    costs = []
    for groups in (20, 400):
        there = Looking(with_results(groups, *(["nightly"] if asked else [])), asked=asked)
        there.plan()
        there.look()
        costs.append(there.cost())
    assert costs[1] <= costs[0] + 10


def test_nothing_is_kept_of_qualifications_that_are_gone() -> None:
    there = Looking(fleet(8), asked=False)
    there.look()  # the first one of a term forgets everything
    names = [f"q{number}" for number in range(5)]
    items = []
    for name in names:
        items.append(
            {**ASKED, "metadata": {**ASKED["metadata"], "name": name, "uid": name, "resourceVersion": "99999"}}
        )
    for item in items:
        there.watches.remember(False, item)
    for asked in there.watches.qualifications().values():
        there.tests._written(WriteQualification(asked, {}, soon=False), there.now)
    there.tests._refusals = dict.fromkeys(names, "a policy")
    there.look()
    assert (list(there.tests._said), list(there.tests._refusals)) == (names, names)  # the control
    for item in items:
        there.watches.reflectors["neuronultraserverqualifications"].forget(item)
    there.look()
    assert (there.tests._said, there.tests._refusals) == ({}, {})


def test_results_that_nobody_asks_for_cost_a_look_a_budget() -> None:
    """The qualification of all these results was deleted; some are removed with each look."""
    costs = []
    for groups in (150, 450):
        there = Looking(with_results(groups, "deleted"), asked=False)
        there.look()
        there.now += datetime.timedelta(seconds=60)
        costs.append(there.cost())
    assert costs[1] <= 1.1 * costs[0]


def test_groups_that_may_not_be_tested_yet_cost_a_look_nothing() -> None:
    """All groups are due, but a workload waits that could have them."""
    costs = []
    for groups in (20, 400):
        there = Looking(fleet(4 * groups))
        submit(there.index, 0, 4, 1)
        there.plan()
        there.look()
        costs.append(there.cost())
    assert costs[1] <= costs[0] + 10


def test_groups_that_suit_nobody_cost_a_look_a_budget() -> None:
    """Workloads wait for groups that passed a test, and none of the free ones did."""
    costs = []
    for groups in (100, 400):
        there = Looking(with_results(groups), asked=True)
        for each in range(100):
            key = f"many/w{each:05}"
            submit(there.index, each, 4, 1)
            within = datetime.timedelta(hours=1)
            there.index.put_workload(key, replace(there.index.workload_by_key[key], qualified_within=within))
        there.plan()
        there.look()
        costs.append(there.cost())
    assert costs[1] <= 1.1 * costs[0]


# -- what is decided


class Turned(Leadership):
    """The Lease of two replicas: another one holds it now and then."""

    def __init__(self) -> None:
        self.term = self.tenure = 1

    def holds(self) -> bool:
        return True

    def come_back(self, *, another_led: bool) -> None:
        self.term += 1
        self.tenure += another_led


def begun(there: Looking) -> list[str]:
    """Return the requests that begin a test, since the last call."""
    found = [path for method, path, _ in there.shelf.writes if method == "POST"]
    there.shelf.writes.clear()
    return found


@pytest.mark.parametrize("another_led", [False, True])
def test_what_was_found_due_does_not_survive_a_term_in_which_another_replica_led(another_led: bool) -> None:
    lease = Turned()
    index = fleet(400)  # its results are gone through every few seconds at most
    there = Looking(index, leadership=lease)
    there.fence.enter(1)
    submit(index, 0, 4, 1)
    there.plan()
    there.look()
    assert begun(there) == []  # a workload waits
    for name in list(index.group_by_name):
        store(index, name, "nightly")  # the other replica tests all
    index.put_workload("many/w00000", None)
    lease.come_back(another_led=another_led)
    there.fence.enter(2)
    there.plan()
    there.look()
    assert bool(begun(there)) is not another_led


def test_one_term_goes_on_with_what_it_has_found() -> None:
    """Nobody else led, and nothing was tested meanwhile."""
    there = Looking(fleet(8))
    there.look()
    assert len(begun(there)) == 1
    surveyed = there.tests._surveyed
    there.look()
    assert there.tests._surveyed is surveyed


KINDS = st.fixed_dictionaries(
    {
        "size": st.sampled_from([1, 4]),
        "count": st.sampled_from([1, 2, 9]),
        "target": st.sampled_from([None, None, None, 0, 1, 2]),
        "within": st.sampled_from([0, 0, 1]),
        "deleting": st.sampled_from([False, False, False, True]),
    }
)
ULTRASERVERS = 3
PLACES = st.integers(0, ULTRASERVERS - 1)
NUMBERS = st.integers(0, 5)


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.there = Looking(fleet(4 * ULTRASERVERS))
        asyncio.run(self.there.watches.relist())
        self.names = sorted(self.there.index.group_by_name)

    @rule(number=NUMBERS, kind=KINDS)
    def put_workload(self, number: int, kind: dict[str, Any]) -> None:
        index, key = self.there.index, f"many/w{number:05}"
        submit(index, number, kind["size"], kind["count"])
        target = None
        if kind["target"] is not None:
            target = Target("nightly", "q", 1, self.names[kind["target"]], 0)
        within = datetime.timedelta(hours=kind["within"])
        made = replace(index.workload_by_key[key], target=target, qualified_within=within, deleting=kind["deleting"])
        index.put_workload(key, made)

    @rule(number=NUMBERS)
    def remove_workload(self, number: int) -> None:
        self.there.index.put_workload(f"many/w{number:05}", None)

    @rule(place=PLACES, of=st.sets(st.sampled_from(["nightly", "weekly", "deleted"])))
    def store_results(self, place: int, of: Collection[str]) -> None:
        index = self.there.index
        if self.names[place] in index.ultraserver_by_name and self.names[place] in index.group_by_name:
            store(self.there.index, self.names[place], *sorted(of))

    @rule(place=PLACES, number=st.none() | NUMBERS, phase=st.sampled_from(list(Phase)))
    def reserve(self, place: int, number: int | None, phase: Phase) -> None:
        index, name = self.there.index, self.names[place]
        stored, group = index.ultraserver_by_name.get(name), index.group_by_name.get(name)
        if stored is None or group is None:
            return
        held: tuple[Reservation, ...] = ()
        if number is not None:
            workload = f"w{number:05}"
            one = Allocation("many", workload, f"uid-many-{workload}", "id", phase, group.node_names, 4, 0)
            held = (Reservation(name, one),)
        index.put_ultraserver(name, replace(stored, reservations=held))

    @rule(place=PLACES)
    def delete_ultraserver(self, place: int) -> None:
        self.there.index.put_ultraserver(self.names[place], None)

    @rule(asked=st.booleans())
    def ask(self, asked: bool) -> None:
        watch = self.there.watches.reflectors["neuronultraserverqualifications"]
        (watch.remember if asked else watch.forget)(ASKED)

    @invariant()
    def decision_is_that_of_a_look_at_everything(self) -> None:
        there = self.there
        there.now += datetime.timedelta(seconds=60)
        there.plan()
        index = there.index
        assert index.tests == {each.uid: each for each in index.workloads if each.target is not None}
        kept = there.view()
        wanted: dict[WantedGroup, None] = {}
        for each in index.workloads:
            verdict = there.planned.verdicts.get(each.uid)
            if verdict is not None and verdict.reason == "NotQualified" and each.qualified_within:
                wanted[WantedGroup(each.instance_type, each.size, each.qualified_within)] = None
        whole = Looking(FleetIndex.of(index.snapshot()), asked="nightly" in kept.asked)
        whole.now, whole.watches = there.now, there.watches
        whole.tests._watches = there.watches
        whole.planned = replace(there.planned, waiting=WaitingWorkloads(dict(there.planned.verdicts), {}, wanted))
        seen = whole.view()
        everything = replace(seen, due=whole.tests._surveyed.due if whole.tests._surveyed is not None else {})
        assert kept.yields == everything.yields
        found, expected = decide(kept), decide(everything)
        assert (found.errors, expected.errors) == ({}, {})
        assert found.writes == expected.writes
        own = sources(kept.asked.values())
        assert {each.ultraserver: each for each in forgotten(index, own)} == left_over(index, own)


def left_over(index: FleetIndex, own: Collection[Source]) -> dict[str, StoreResults]:
    """Return what removes the results of qualifications that do not exist, by a look at every UltraServer."""
    found = {}
    for each in index.ultraservers:
        kept = tuple(result for result in each.results if result.source in own)
        if kept != each.results:
            found[each.name] = StoreResults(each.name, each.version, kept)
    return found


def test_decision_is_that_of_a_look_at_everything() -> None:
    run_state_machine_as_test(Changes, settings=settings(max_examples=25, stateful_step_count=12, deadline=None))
