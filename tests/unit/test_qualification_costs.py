"""A look at tests of UltraServers costs what changed, and decides what a look at everything would (30, net 3)."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import replace

import pytest

from controller.apply.fence import unelected
from controller.apply.requests import Applier
from controller.decisions.actions import Plan
from controller.fleet.fleet_index import FleetIndex
from controller.fleet.limits import DEFAULT_LIMITS
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.observe.results import GroupResult
from controller.plan.planning import plan_of
from controller.qualify.qualifications import Qualifications
from controller.qualify.watches import QualifyWatches
from controller.timing import DEFAULT_TIMING, QualifyTiming
from hack.bench.plan import NOW, fleet, submit
from neuron_dra.core.wire import Obj
from neuron_dra.kube.events import EventRecorder
from tests.unit.beside_scene import Shelf
from tests.unit.test_plan_costs import lines

ASKED: Obj = {
    "metadata": {"name": "nightly", "uid": "q", "resourceVersion": "1", "generation": 1},
    "spec": {"instanceTypes": ["trn3.48xlarge"], "topologySize": 4, "image": "i", "maxGroups": 1},
}


class Looking:
    """Tests of UltraServers over an index whose objects are put in by hand; every write is rejected as a conflict."""

    def __init__(self, index: FleetIndex, *, asked: bool = True) -> None:
        self.index, self.now = index, NOW
        shelf = Shelf({("NeuronUltraServerQualification", "", "nightly"): ASKED} if asked else {})
        self.caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        events = EventRecorder(shelf, "here")
        self.applier = Applier(shelf, self.caches, events, DEFAULT_TIMING, unelected())
        self.watches = QualifyWatches(shelf, lambda: None, QualifyTiming())
        for each in self.watches.reflectors.values():
            each.synced.set()
        self.planned = Plan()
        parts = shelf, self.caches, self.applier, self.watches, events, Metrics(), DEFAULT_LIMITS, QualifyTiming()
        self.tests = Qualifications(*parts, lambda: self.planned.verdicts, lambda: None)

    def plan(self) -> None:
        self.index.refresh()
        self.planned = plan_of(self.index, self.now)

    def look(self) -> None:
        self.index.refresh()
        asyncio.run(self.tests.look(self.index, self.now))

    def cost(self) -> int:
        """Return what the next look costs, once those before it have made their survey."""
        return lines(self.look)


def store(index: FleetIndex, name: str, *of: str) -> None:
    """Store a fresh result of these qualifications in an UltraServer."""
    nodes = index.group_by_name[name].node_names
    results = tuple(GroupResult(each, 1, nodes, nodes, True, 0, NOW, NOW) for each in of)
    index.put_ultraserver(name, replace(index.ultraserver_by_name[name], results=results))


def with_results(groups: int, *of: str) -> FleetIndex:
    """Return a fleet of which all groups have a result of these qualifications."""
    index = fleet(4 * groups)
    for name in list(index.group_by_name):
        store(index, name, *of)
    index.refresh()
    return index


@pytest.mark.xfail(strict=True, raises=AssertionError)
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


@pytest.mark.xfail(strict=True, raises=AssertionError)
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


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_results_that_nobody_asks_for_cost_a_look_a_budget() -> None:
    """The qualification of all these results was deleted; some are removed with each look."""
    costs = []
    for groups in (200, 800):
        there = Looking(with_results(groups, "deleted"), asked=False)
        there.look()
        there.now += datetime.timedelta(seconds=60)
        costs.append(there.cost())
    assert costs[1] <= 1.1 * costs[0]


@pytest.mark.xfail(strict=True, raises=AssertionError)
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


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_groups_that_suit_nobody_cost_a_look_a_budget() -> None:
    """Workloads wait for groups that passed a test, and none of the free ones did."""
    costs = []
    for groups in (400, 1_600):
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
