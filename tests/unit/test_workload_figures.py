"""What metrics say of workloads: a plan's cost follows what changed, and the figures are those of all workloads."""

from __future__ import annotations

import datetime
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from prometheus_client import generate_latest

from controller.metrics import Metrics
from hack.bench.plan import NOW, submit
from neuron_dra.planner.decisions.actions import Plan
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from tests.unit.test_plan_costs import lines

REASONS = ("InsufficientCapacity", "WaitingForQuota", "QueueRequired")


def put(index: FleetIndex, number: int, draw: random.Random) -> None:
    """Put a workload with any state and conditions."""
    submit(index, number, 4, 1)
    key = f"many/w{number:05}"
    since = (NOW - datetime.timedelta(seconds=draw.randrange(900))).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions: list[dict[str, Any]] = [{"type": "Ready", "status": "False", "reason": draw.choice(REASONS)}]
    conditions.append({"type": "Degraded", "status": draw.choice(["True", "False"]), "reason": "NodeGone"})
    conditions.append({"type": "EndsSoon", "status": draw.choice(["True", "False"]), "reason": "BlockEnds"})
    status = {
        "state": draw.choice(["Pending", "Pending", "Allocated", "Failed"]),
        "conditions": [{**each, "lastTransitionTime": since} for each in conditions],
    }
    made = replace(index.workload_by_key[key], status=status, deleting=draw.random() < 0.1)
    index.put_workload(key, made)


def said(metrics: Metrics, index: FleetIndex) -> str:
    metrics.planned(0.1, index, Plan(), NOW)
    return generate_latest(metrics.registry).decode()


def without_times(text: str) -> list[str]:
    """Return what is said, without the numbers of plans and the times at which counters began."""
    return sorted(line for line in text.splitlines() if "_plan_seconds" not in line and "_created" not in line)


def test_figures_cost_what_changed() -> None:
    costs = []
    for number in (20, 2_000):
        index, metrics, draw = FleetIndex(), Metrics(), random.Random(1)
        for each in range(number):
            put(index, each, random.Random(each % 7))
        said(metrics, index)
        put(index, 7, draw)
        costs.append(lines(partial(metrics.planned, 0.1, index, Plan(), NOW)))
    assert costs[1] <= costs[0] + 10


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_all_workloads(seed: int) -> None:
    draw = random.Random(seed)
    index, metrics = FleetIndex(), Metrics()
    for _ in range(60):
        number = draw.randrange(12)
        if draw.random() < 0.3:
            index.put_workload(f"many/w{number:05}", None)
        else:
            put(index, number, draw)
        assert without_times(said(metrics, index)) == without_times(said(Metrics(), index))
