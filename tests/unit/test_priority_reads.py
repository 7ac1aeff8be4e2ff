"""Which PriorityClasses are read: a look costs what changed, and its values are those of a look at everything."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from controller.apply.leader import Alone
from controller.apply.priorities import AT_ONCE, MOST, Priorities
from controller.timing import DEFAULT_TIMING
from hack.bench.plan import NOW
from neuron_dra.errors import NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from tests.support.sending import new_sender, sent
from tests.unit.test_plan_costs import lines

CLASSES = ("high", "low", "gone")
LATEST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class Classes(KubeClient):
    """An API server with these PriorityClasses. None: the class cannot be read."""

    def __init__(self, values: dict[str, int | None]) -> None:
        super().__init__(KubeConfig("classes:"))
        self.values = values
        self.reads: list[str] = []

    async def _send(self, method: str, path: str, *_: Any) -> bytes:
        name = path.rpartition("/")[2]
        self.reads.append(name)
        if name not in self.values:
            raise NotFound("no such class", status=404)
        value = self.values[name]
        if value is None:
            raise Unavailable("not now", status=503)
        return msgspec.json.encode({"kind": "PriorityClass", "metadata": {"name": name}, "value": value})


class Reading:
    """Priorities of an index whose workloads are put in by hand."""

    def __init__(self, values: dict[str, int | None] | None = None) -> None:
        self.server = Classes({} if values is None else values)
        self.index, self.now = FleetIndex(), NOW
        self.sender = new_sender()
        self.priorities = Priorities(self.server, DEFAULT_TIMING.writes, self.sender)

    def put(self, name: str, priority: str, namespace: str = "ml") -> None:
        meta = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}
        spec = {"instanceType": "t", "topologySize": 1, "serverCount": 1, "priorityClassName": priority}
        self.index.put_workload(f"{namespace}/{name}", decode.workload({"metadata": meta, "spec": spec}))

    def remove(self, name: str, namespace: str = "ml") -> None:
        self.index.put_workload(f"{namespace}/{name}", None)

    def look(self) -> None:
        """Decide what to read."""
        self.priorities.look(self.index, self.now)

    def settle(self) -> None:
        """Look and read until nothing is due."""
        asyncio.run(self._settle())

    async def _settle(self) -> None:
        due = self.now
        for _ in range(100):
            found = await sent(self.sender, lambda: self.priorities.look(self.index, self.now))
            due = found or LATEST
            if due > self.now:
                return
        raise AssertionError(f"a class is still due at {due}")

    def begin(self) -> None:
        """Begin to lead after another replica led."""
        asyncio.run(self.priorities.begin(self.index, self.now))


def test_a_look_costs_the_same_however_many_workloads_have_a_class() -> None:
    costs = []
    for number in (20, 2_000):
        there = Reading({"high": 1, "low": 2})
        for each in range(number):
            there.put(f"w{each}", "high", f"n{each}")
        there.settle()
        nothing = lines(there.look)
        there.put("w7", "low")
        costs.append((nothing, lines(there.look)))
    assert costs[1] == costs[0]


def test_a_tenant_with_3000_classes_costs_a_look_a_budget() -> None:
    costs = []
    for number in (300, 3_000):
        there = Reading()
        for each in range(number):
            there.put(f"w{each}", f"class-{each}")
        there.settle()
        there.put("another", "class-x")
        one_more = lines(there.look)
        there.settle()
        there.now += datetime.timedelta(hours=1)
        all_are_due = lines(there.look)
        costs.append((one_more, all_are_due))
    assert costs[1][0] == costs[0][0]
    assert costs[1][1] <= 1.1 * costs[0][1]


def test_every_class_is_read_however_many_do_not_exist() -> None:
    there = Reading({"last": 7})
    for each in range(1_000):
        there.put(f"w{each}", f"class-{each}")
    there.put("job", "last")
    there.settle()
    assert there.priorities.found == {"last": 7}


def test_a_class_of_another_namespace_is_read_before_a_thousand() -> None:
    there = Reading({"production": 7})
    for each in range(1_000):
        there.put(f"w{each}", f"class-{each}", "many")
    there.look()
    there.put("job", "production", "other")
    there.settle()
    assert there.server.reads.index("production") < AT_ONCE
    assert there.priorities.found == {"production": 7}


def test_a_class_that_another_namespace_named_first_is_read_in_the_turn_of_each() -> None:
    there = Reading({"production": 7})
    for each in range(1_000):
        there.put(f"w{each}", f"class-{each}", "many")
    there.put("last", "production", "many")
    there.put("job", "production", "other")
    there.settle()
    assert there.server.reads.index("production") < AT_ONCE
    assert there.server.reads.count("production") == 1


def test_classes_that_a_term_left_unread_are_read_in_the_next() -> None:
    there = Reading({"high": 1})
    there.put("job", "high")
    there.sender.fence.enter(0)
    there.look()
    there.sender.fence.enter(Alone.term)
    there.settle()
    assert there.priorities.found == {"high": 1}


def test_a_class_that_was_deleted_with_its_last_workload_is_forgotten() -> None:
    """Also if its value arrives after the workload is gone."""
    there = Reading({"high": 1})
    there.put("job", "high")
    there.look()
    there.remove("job")
    there.settle()
    assert there.priorities.found == {}


def test_a_class_that_cannot_be_read_keeps_its_value_in_its_term() -> None:
    there = Reading({"high": 1})
    there.put("job", "high")
    there.settle()
    there.server.values["high"] = None
    there.now += datetime.timedelta(minutes=5)
    there.settle()
    assert there.priorities.found == {"high": 1}


def test_a_class_is_read_again_after_a_minute_and_not_before() -> None:
    there = Reading({"high": 1})
    there.put("job", "high")
    there.settle()
    there.server.values["high"] = 2
    there.now += datetime.timedelta(seconds=59)
    there.settle()
    assert there.priorities.found == {"high": 1}
    there.now += datetime.timedelta(seconds=1)
    there.settle()
    assert (there.priorities.found, there.server.reads) == ({"high": 2}, ["high", "high"])


def test_a_new_leader_begins_without_the_values_of_its_last_term() -> None:
    """Another replica led meanwhile. What it cannot read now, it does not know."""
    there = Reading({"high": 1, "low": 2})
    there.put("job", "high")
    there.put("other", "low")
    there.settle()
    there.server.values["high"] = None
    there.begin()
    assert there.priorities.found == {"low": 2}


def test_a_new_leader_reads_the_classes_above_its_first_hundred_later() -> None:
    there = Reading({f"class-{number}": number for number in range(250)})
    for number in range(250):
        there.put(f"w{number}", f"class-{number}")
    there.begin()
    at_first = len(there.priorities.found)
    there.settle()
    assert (at_first, there.priorities.found) == (MOST, there.server.values)


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.there = Reading({})

    @rule(name=st.sampled_from("abc"), namespace=st.sampled_from("mn"), priority=st.sampled_from(["", *CLASSES]))
    def put_workload(self, name: str, namespace: str, priority: str) -> None:
        self.there.put(name, priority, namespace)

    @rule(name=st.sampled_from("abc"), namespace=st.sampled_from("mn"))
    def remove_workload(self, name: str, namespace: str) -> None:
        self.there.remove(name, namespace)

    @rule(name=st.sampled_from(CLASSES), value=st.sampled_from([1, 2]))
    def make_class(self, name: str, value: int) -> None:
        self.there.server.values[name] = value

    @rule(name=st.sampled_from(CLASSES))
    def delete_class(self, name: str) -> None:
        self.there.server.values.pop(name, None)

    @rule()
    def look_between(self) -> None:
        self.there.settle()

    @rule()
    def set_the_clock_back(self) -> None:
        self.there.now -= datetime.timedelta(days=1)
        self.there.priorities.end_waits()

    @invariant()
    def values_are_those_of_a_look_at_everything(self) -> None:
        self.there.now += datetime.timedelta(seconds=60)
        self.there.settle()
        whole = Reading()
        whole.server, whole.index = self.there.server, self.there.index
        whole.priorities = Priorities(whole.server, DEFAULT_TIMING.writes, whole.sender)
        whole.settle()
        assert self.there.priorities.found == whole.priorities.found


def test_values_are_those_of_a_look_at_everything() -> None:
    run_state_machine_as_test(Changes, settings=settings(max_examples=40, stateful_step_count=20, deadline=None))
