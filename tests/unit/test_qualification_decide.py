"""Which tests of UltraServers begin, which end, and what a workload gets because of them. Issue 36, number 2."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.qualify import survey, yielding
from controller.qualify.decide import QualifyView, StartTest, StopTest, Write, WriteQualification, decide
from controller.qualify.model import GroupTest, Qualification
from controller.qualify.yielding import Yields, yields
from controller.timing import QualifyTiming
from hack.bench.plan import NOW, fleet, submit
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.qualification import NAMESPACE, GroupKey, Target, target
from neuron_dra.planner.decisions.actions import WantedGroup
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.fleet.places import Overlay
from neuron_dra.planner.fleet.spares import SparePool
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import condition
from neuron_dra.planner.observed.results import GroupResult, written
from tests.unit.ultraserver_world import World

HOUR = datetime.timedelta(hours=1)
NOBODY = Yields({}, frozenset())
ASKED = Qualification("nightly", "q", "1", 1, ("trn3.48xlarge",), 4, "i", 24 * HOUR, 48 * HOUR, 2, HOUR)


def store_result(index: FleetIndex, name: str, *, hours: float = 1, **changes: Any) -> None:
    """Store a result of all nodes of an UltraServer, so many hours old."""
    nodes = index.group_by_name[name].node_names
    uids = tuple(str(entry.get("nodeUid")) for entry in index.group_by_name[name].topology)
    moment = NOW - hours * HOUR
    made = GroupResult("nightly", 1, nodes, uids, True, 0, moment, moment)
    stored = index.ultraserver_by_name[name]
    index.put_ultraserver(name, replace(stored, results=(replace(made, **changes),)))
    index.refresh()


def seen(
    index: FleetIndex,
    asked: Qualification = ASKED,
    tests: Sequence[GroupTest] = (),
    *,
    wanted: Sequence[WantedGroup] = (),
    given: Yields = NOBODY,
    waits: Mapping[GroupKey, datetime.datetime] | None = None,
    may_begin: int = 64,
) -> QualifyView:
    surveyed = survey.survey(index, asked, NOW)
    due = survey.due(index, asked, wanted, NOW, DEFAULT_LIMITS.block_lead)
    return QualifyView(
        index,
        {"nightly": asked},
        tests,
        {"nightly": surveyed},
        {"nightly": due},
        given,
        (),
        waits or {},
        {},
        may_begin,
        DEFAULT_LIMITS,
        QualifyTiming(),
        NOW,
    )


def begun(writes: Sequence[Write]) -> list[str]:
    found = []
    for each in writes:
        if isinstance(each, StartTest):
            tested = target(NAMESPACE, each.body["metadata"]["annotations"])
            assert tested is not None
            found.append(tested.ultraserver)
    return found


def names(index: FleetIndex) -> list[str]:
    return sorted(index.group_by_name)


def test_oldest_results_are_tested_again_first_and_fresh_ones_not_at_all() -> None:
    index = fleet(16)
    first, second, third, fourth = names(index)
    store_result(index, first, hours=30)
    store_result(index, second, hours=40)
    store_result(index, third, hours=2)
    assert begun(decide(seen(index, replace(ASKED, most=8))).writes) == [fourth, second, first]


def test_failed_groups_are_confirmed_before_others_and_wanted_ones_before_all() -> None:
    index = fleet(12)
    first, second, third = names(index)
    store_result(index, second, hours=1, passed=False, failures=1)
    store_result(index, third, hours=2)
    assert begun(decide(seen(index, replace(ASKED, most=3))).writes) == [second, first]
    wanted = [WantedGroup("trn3.48xlarge", 4, HOUR)]
    store_result(index, first, hours=0.5)
    assert begun(decide(seen(index, replace(ASKED, most=3), wanted=wanted)).writes) == [second, third]


def test_results_of_an_earlier_spec_are_due() -> None:
    index = fleet(4)
    [name] = names(index)
    store_result(index, name)
    assert begun(decide(seen(index)).writes) == []
    assert begun(decide(seen(index, replace(ASKED, generation=2))).writes) == [name]


def test_nothing_begins_while_a_group_waits_or_somebody_could_have_its_nodes() -> None:
    index = fleet(4)
    [name] = names(index)
    assert begun(decide(seen(index, waits={("q", name, 0): NOW + HOUR})).writes) == []
    assert begun(decide(seen(index, given=Yields({}, frozenset({"trn3.48xlarge"})))).writes) == []
    assert begun(decide(seen(index, waits={("q", name, 0): NOW})).writes) == [name]


def test_storm_stops_tests_and_says_so() -> None:
    index = fleet(12)
    for name in names(index)[:2]:
        store_result(index, name, hours=30, passed=False, failures=1)
    writes = decide(seen(index)).writes
    assert begun(writes) == []
    [status] = [each for each in writes if isinstance(each, WriteQualification)]
    ready = condition(status.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "FailureStorm")
    assert ready["message"].startswith("2 of the last 2 groups failed")


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.data())
def test_at_most_so_many_groups_are_tested_and_no_node_twice(groups: int, most: int, size: int, data: Any) -> None:
    index = fleet(4 * groups)
    for name in names(index):
        if size == 4 and data.draw(st.booleans()):
            store_result(index, name, hours=data.draw(st.floats(0, 60)))
    found = [
        each for each in decide(seen(index, replace(ASKED, most=most, size=size))).writes if isinstance(each, StartTest)
    ]
    targets = [decode.workload({**each.body, "metadata": {**each.body["metadata"]}}).target for each in found]
    nodes = [(each.ultraserver, each.first_id + offset) for each in targets if each for offset in range(size)]
    assert len(found) <= most
    assert len(nodes) == len(set(nodes)) == size * len(found)


# -- yields


def start_tests(world: World, *ultraservers: str, size: int = 4) -> list[GroupTest]:
    """Let tests have nodes: the first ones of these UltraServers."""
    for number, name in enumerate(ultraservers):
        target = Target("nightly", "q", 1, name, 0)
        made = {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {
                "name": f"t{number}",
                "namespace": NAMESPACE,
                "annotations": {"neuron.aws.com/tests": target.text},
            },
            "spec": {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": 1},
        }
        world.put(made)
    world.settle()
    found = [decode.workload(each) for each in world.all("NeuronUltraServerWorkload")]
    return [GroupTest(each, each.target) for each in found if each.target is not None]


def three() -> World:
    world = World([item for number in range(3) for item in ultraserver(f"u{number}")])
    world.settle()
    return world


def ending(world: World, tests: Sequence[GroupTest], *sizes: tuple[int, int]) -> tuple[set[str], bool]:
    """Return which tests end for workloads of these sizes and counts, and whether others may begin."""
    index = FleetIndex.of(world.snapshot())
    for number, (size, count) in enumerate(sizes):
        submit(index, number, size, count)
    waiting = [each for each in index.workloads if each.target is None]
    found = yields(index, waiting, tests, NOW, DEFAULT_LIMITS)
    by_uid = {test.workload.uid: test.workload.name for test in tests}
    return {by_uid[uid] for uid in found.tests}, not found.pausing


def test_tests_get_the_nodes_that_they_name() -> None:
    world = three()
    tests = start_tests(world, "us-u2", "us-u1", size=2)
    index = FleetIndex.of(world.snapshot())
    held = {test.workload.name: index.held(test.workload.uid)[0].allocation.nodes for test in tests}
    assert held == {"t0": ("u2-0", "u2-1"), "t1": ("u1-0", "u1-1")}


def test_as_few_tests_end_as_workloads_need() -> None:
    world = three()
    tests = start_tests(world, "us-u0", "us-u1", "us-u2")
    assert ending(world, tests, (4, 1)) == ({"t0"}, False)
    assert ending(world, tests, (4, 2)) == ({"t0", "t1"}, False)
    assert ending(world, tests, (1, 1), (1, 1)) == ({"t0"}, False)
    assert ending(world, tests, (4, 1), (4, 1)) == ({"t0", "t1"}, False)


def test_many_that_suit_nobody_keep_no_test_from_ending_for_another_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some free groups are looked at for each namespace."""
    monkeypatch.setattr(yielding, "SLOTS_AT_MOST", 2)
    world = three()
    tests = start_tests(world, "us-u0")
    index = FleetIndex.of(world.snapshot())
    submit(index, 0, 4, 1, "picky")
    submit(index, 1, 4, 3, "other")
    picky, other = (each for each in index.workloads if each.target is None)
    found = yields(index, [replace(picky, qualified_within=HOUR), other], tests, NOW, DEFAULT_LIMITS)
    assert found.tests == {tests[0].workload.uid: "other/w00001"}


def test_nobody_wants_a_test_of_nodes_that_failed_who_does_not_ask_for_one() -> None:
    world = World(ultraserver("u0"))
    world.settle()
    result_of(world, "us-u0", passed=False, failures=2, unqualified=True, message="slow")
    world.submit("job", size=1)
    world.settle()
    assert world.plan().waiting.wanted == {}
    world.submit("sure", size=1, qualification={"maxAge": "1h"})
    world.settle()
    assert [*world.plan().waiting.wanted] == [WantedGroup("trn3.48xlarge", 1, HOUR)]


def test_none_ends_for_what_does_not_fit_or_has_free_nodes() -> None:
    world = three()
    tests = start_tests(world, "us-u0", "us-u1")
    assert ending(world, tests, (4, 4)) == (set(), True)
    assert ending(world, tests, (4, 1)) == (set(), False)
    assert ending(world, tests, (4, 2)) == ({"t0"}, False)


def test_test_ends_for_the_workload_that_waits() -> None:
    world = three()
    tests = start_tests(world, "us-u0")
    index = FleetIndex.of(world.snapshot())
    uid = tests[0].workload.uid
    view = seen(index, tests=tests, given=Yields({uid: "ml/job"}, frozenset()))
    [stop] = [each for each in decide(view).writes if isinstance(each, StopTest)]
    assert stop.why == "ml/job waits for nodes"


# -- what a workload gets


def result_of(world: World, name: str, **changes: Any) -> None:
    nodes = tuple(f"{name.removeprefix('us-')}-{number}" for number in range(4))
    uids = tuple(world.get("Node", node)["metadata"]["uid"] for node in nodes)
    made = GroupResult("nightly", 1, nodes, uids, True, 0, world.now, world.now)
    item = world.get("NeuronUltraServer", name, "neuron-dra-driver")
    item["status"]["qualifications"] = written([replace(made, **changes)])
    world.put(item)


def test_workload_gets_only_groups_that_passed_in_time() -> None:
    world = three()
    result_of(world, "us-u2")
    result_of(world, "us-u1", passed_at=world.now - 2 * HOUR)
    world.submit("job", size=4, qualification={"maxAge": "1h"})
    world.submit("second", size=2, qualification={"maxAge": "1h"})
    world.settle()
    assert world.reserved("job") == {0: ("u2-0", "u2-1", "u2-2", "u2-3")}
    assert world.state("second") == ("Pending", "NotQualified")
    assert "2 x" not in world.message("second")


def test_unqualified_nodes_are_not_chosen_even_in_part() -> None:
    world = World(ultraserver("u0"))
    world.settle()
    result_of(world, "us-u0", passed=False, failures=2, unqualified=True, message="slow")
    world.submit("job", size=1)
    world.settle()
    assert world.state("job") == ("Pending", "NotQualified")
    found = condition(world.get("NeuronUltraServer", "us-u0", "neuron-dra-driver")["status"], "Degraded")
    assert (found["status"], found["reason"]) == ("True", "Unqualified")
    assert "u0-0, u0-1, u0-2, u0-3 (nightly: slow)" in found["message"]
    assert "qualifications" in world.get("NeuronUltraServer", "us-u0", "neuron-dra-driver")["status"]


def test_spares_are_groups_that_passed_and_never_unqualified_ones() -> None:
    index = fleet(12)
    first, second, third = names(index)
    pool = SparePool((("trn3.48xlarge", 1),), NOW)

    def spares() -> list[str]:
        free = Overlay(index.places("trn3.48xlarge", 4))
        return [slot.ultraserver for slot in pool.of(free, "trn3.48xlarge")]

    assert spares() == [third]
    store_result(index, first)
    assert spares() == [first]
    store_result(index, first, passed=False, unqualified=True)
    store_result(index, third, passed=False, unqualified=True)
    assert spares() == [second]


def test_workload_that_waits_for_a_test_holds_nobody_back() -> None:
    world = three()
    world.submit("sure", size=4, count=3, qualification={"maxAge": "1h"})
    world.settle()
    world.now += 2 * HOUR
    world.submit("job", size=4)
    world.settle()
    assert world.state("job")[0] == "Allocated"


def test_group_whose_capacity_block_ends_before_the_test_is_not_due() -> None:
    """Seed 6026 of the fleet: the tests of such groups got no nodes, and the other groups were never tested."""
    index = FleetIndex.of(three().snapshot())
    ends_soon = NOW + ASKED.timeout + DEFAULT_LIMITS.block_lead - datetime.timedelta(seconds=1)
    node = index.node_by_name["u0-0"]
    index.put_node(node.name, replace(node, block_end=ends_soon))
    index.refresh()
    due_slots = [slot for slot, _ in survey.due(index, ASKED, (), NOW, DEFAULT_LIMITS.block_lead)]
    assert [slot.ultraserver for slot in due_slots] == ["us-u1", "us-u2"]
