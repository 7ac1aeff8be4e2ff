"""30, net 3: the cost of a plan is counted, not timed: the lines of the controller and its planner that it executes.

A line in a loop counts each time. NEURON_DRA_NODES is the size of the large fleet.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import controller
from hack.bench.ultraservers import ultraserver
from neuron_dra import planner
from neuron_dra.planner.decisions.actions import Kept, WriteUltraServerStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import FINALIZER, UltraServer, Workload
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.ultraserver_world import START, World

SMALL = 1_000
LARGE = int(os.environ.get("NEURON_DRA_NODES", "10000"))
COUNTED = (str(Path(controller.__file__).parent), str(Path(planner.__file__).parent))


Followed = tuple[FleetIndex, Kept]
"""An index, and what its last plan has left."""


def fleet(nodes: int) -> Followed:
    """Return the index of a settled fleet of UltraServers of four nodes, in places of 16, 64 and 256 nodes."""
    world = World(ultraserver("u0"))
    world.settle()
    made = decode.snapshot(world.objects.values())
    [stored] = made.ultraservers
    index = FleetIndex()
    for number in range(nodes // 4):
        name = f"u{number:05}"
        layers = (f"a{number // 64}", f"b{number // 16}", f"c{number // 4}")
        for node in made.nodes:
            index.put_node(node.name.replace("u0", name), replace(node, name=node.name.replace("u0", name)))
        for each in made.published:
            copy = replace(each, name=each.name.replace("u0", name), ultraserver_id=name, layers=layers)
            index.put_published(copy.name, copy)
        index.put_ultraserver(f"us-{name}", renamed(stored, name))
    index.refresh()
    while (plan := plan_of(index, START)).actions:
        written(index, plan.actions)
    return index, plan.kept


def renamed(stored: UltraServer, name: str) -> UltraServer:
    """Return another UltraServer like this one."""
    topology = [{**entry, "nodeName": entry["nodeName"].replace("u0", name)} for entry in stored.spec["topology"]]
    status = {**stored.status, "ultraserverId": name}
    return replace(stored, name=f"us-{name}", uid=name, spec={**stored.spec, "topology": topology}, status=status)


def written(index: FleetIndex, actions: Any) -> None:
    """Store the statuses of UltraServers, and the labels and topologies as if they had no effect on a plan."""
    for action in actions:
        if isinstance(action, WriteUltraServerStatus):
            before = index.ultraserver_by_name[action.name]
            item = {
                "metadata": {"name": before.name, "uid": before.uid, "resourceVersion": "2", "generation": 1},
                "spec": before.spec,
                "status": action.status,
            }
            index.put_ultraserver(action.name, decode.ultraserver(item))
        elif hasattr(action, "labels"):
            labels = {name: value for name, value in action.labels.items() if value is not None}
            node = index.node_by_name[action.name]
            index.put_node(action.name, replace(node, labels={**node.labels, **labels}))
        else:
            raise AssertionError(action)
    index.refresh()


def workload(name: str, *, count: int, namespace: str = "ml") -> Workload:
    """Return a workload of groups of four nodes."""
    meta = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": "2026-03-01T12:00:00Z"}
    spec = {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": count}
    finalizers = [FINALIZER]
    return decode.workload({"metadata": {**meta, "resourceVersion": "1", "finalizers": finalizers}, "spec": spec})


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list; at the end it has one number: how many lines of both were executed meanwhile."""
    executed = 0
    found: list[int] = []

    def local(_: FrameType, event: str, __: object) -> Any:
        nonlocal executed
        executed += event == "line"
        return local

    def trace(frame: FrameType, _: str, __: object) -> Any:
        return local if frame.f_code.co_filename.startswith(COUNTED) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
        found.append(executed)


def lines(call: Callable[[], object]) -> int:
    """Return how many lines of the controller and its planner a call executes."""
    with counted() as found:
        call()
    assert found[0] > 0, "no line of the controller or its planner is seen"
    return found[0]


def cost(followed: Followed, workloads: list[Workload]) -> int:
    """Return what it costs to follow new workloads and plan them; nothing is stored."""
    index, kept = followed

    def decide() -> None:
        for each in workloads:
            index.put_workload(each.uid, each)
        index.refresh()
        plan_of(index, START, kept=kept)

    found = lines(decide)
    for each in workloads:
        index.put_workload(each.uid, None)
    return found


@pytest.fixture(scope="module")
def small() -> Followed:
    return fleet(SMALL)


@pytest.fixture(scope="module")
def large() -> Followed:
    return fleet(LARGE)


def test_decision_costs_the_same_in_any_fleet(small: Followed, large: Followed) -> None:
    """The smallest place with room is found, and the best fits in it, without a look at the others."""
    eight = [workload("w", count=2)]
    assert 0 < cost(large, eight) <= 2 * cost(small, eight)


def test_burst_costs_as_many_times_as_it_has_workloads(small: Followed, large: Followed) -> None:
    burst = [workload(f"w{number:03}", count=2) for number in range(100)]
    assert cost(large, burst) <= 2 * cost(small, burst)
    assert cost(large, burst) <= 200 * cost(large, burst[:1])


def test_changed_free_numbers_count_the_fleet_not_again(large: Followed) -> None:
    """Between workloads that wait, others are reserved: the message of each has other numbers."""
    wide = [workload(f"a{number:02}", count=LARGE // 4 + number) for number in range(20)]
    mixed = [workload(f"{'ab'[number % 2]}{number:02}", count=(LARGE, 2)[number % 2]) for number in range(40)]
    assert cost(large, wide) <= 40 * cost(large, wide[:1])
    assert cost(large, mixed) <= 80 * cost(large, mixed[:2])


def test_plan_without_a_change_costs_nothing(small: Followed, large: Followed) -> None:
    assert cost(large, []) <= 1.1 * cost(small, []) < 500


def test_workloads_that_wait_cost_little_while_nothing_changes_for_them(small: Followed) -> None:
    """A hundred wait. A plan that nothing has changed for them takes their decisions from the one before."""
    waiting = [workload(f"w{number:03}", count=SMALL // 4 + 1 + number) for number in range(100)]
    index, kept = small
    for each in waiting:
        index.put_workload(each.uid, each)
    index.refresh()
    first = lines(lambda: plan_of(index, START, kept=kept))
    kept = plan_of(index, START, kept=kept).kept
    again = lines(lambda: plan_of(index, START, kept=kept))
    for each in waiting:
        index.put_workload(each.uid, None)
    assert again < first / 4
