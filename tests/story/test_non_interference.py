"""A tenant's requests in its own namespace never delay another tenant's workload for long. Issue 13, acceptance 1:
`make night ONLY=interference` runs ten thousand such sequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from neuron_dra.core import tenants
from neuron_dra.planner.plan import allocation, queue
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.interference import (
    ACTORS,
    BESIDE,
    Tenant,
    allocated,
    beside_a_victim,
    flood,
    flood_beside_all,
    flood_beyond_the_fleet,
    flood_of_giants,
    rotate,
)
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule

AT_ONCE = 10

Drive = Callable[[Fleet, int], Any]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, 21, AT_ONCE))
def test_tenant_does_not_delay_others(first: int) -> None:
    found = [beside_a_victim(seed) for seed in range(first, first + AT_ONCE)]
    assert [(each.seed, each.violation) for each in found if each.violation] == []


@pytest.mark.timeout(600)
def test_tenant_takes_every_action() -> None:
    traces = [beside_a_victim(seed).trace for seed in range(1, 17)]
    did = {line.split("the tenant ")[1].split()[0] for trace in traces for line in trace if ": the tenant " in line}
    assert did >= {"asks", "has", "deletes", "changes", "runs"}


async def a_typo_in_the_evening(fleet: Fleet, steps: int) -> None:
    """A tenant's impossible request has waited for long when another tenant creates a workload."""
    schedule = Schedule(fleet)
    await schedule.begin()
    await Tenant(schedule, 1, 0, enforced=False).request_too_much()
    await fleet.sleep(700.0)
    fleet.trace(f"the victim was allocated after {await allocated(fleet, 1, 1, None, 60.0):.0f} s")


def test_unsatisfiable_workload_blocks_no_other() -> None:
    """13.1"""
    assert re.search(r"allocated after \d s$", run(1, drive=a_typo_in_the_evening, actors=ACTORS).trace[-1])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("drive", "requests"),
    [(flood, 1000), (flood, 3000), (flood_beyond_the_fleet, 3000), (flood_of_giants, 1000), (flood_of_giants, 3000)],
)
def test_thousands_of_requests_do_not_delay_others(drive: Drive, requests: int) -> None:
    """Issue 30, acceptance 1."""
    outcome = run(1, steps=requests, drive=drive, actors=ACTORS, replicas=1)
    assert outcome.violation == ""
    assert f"beside {requests} requests" in outcome.trace[-1]


@pytest.mark.parametrize("drive", [flood, flood_beyond_the_fleet, flood_of_giants])
def test_many_requests_do_not_delay_others(drive: Drive) -> None:
    """Issue 30: the same with fewer requests, in every run of the tests."""
    assert run(1, steps=60, drive=drive, actors=ACTORS, replicas=1).violation == ""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "requests", [100, pytest.param(1000, marks=pytest.mark.long), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_requests_beside_tests_queues_and_jobs_do_not_delay_others(requests: int) -> None:
    """4.02."""
    outcome = run(1, steps=requests, drive=flood_beside_all, actors=BESIDE, replicas=1)
    assert outcome.violation == ""
    assert f"beside {requests} requests" in outcome.trace[-1]


@pytest.mark.timeout(600)
def test_rotated_requests_hold_others_back_for_half_the_time() -> None:
    """Issue 30: one request for the whole fleet after the other, so that one of them is always the oldest."""
    outcome = run(1, steps=18, drive=rotate, actors=ACTORS)
    assert outcome.violation == ""
    assert re.search(r"jobs were held back for [3-9]\d min of 180$", outcome.trace[-1])


@pytest.mark.timeout(600)
def test_few_sequences_find_a_blocking_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """13.1. A controller without turns: with them, a namespace blocks the others for a bounded time only."""
    monkeypatch.setattr(allocation, "_exceeds_fleet", lambda *_: None)
    right = queue.held_back
    monkeypatch.setattr(queue, "held_back", lambda *of: (right(*of)[0], None))
    seeds = (400, *range(1, 60))  # the first one found it when this was last measured, which only saves time
    violations = (beside_a_victim(seed).violation for seed in seeds)
    assert "the victim was allocated after" in next((text for text in violations if text), "nothing")


def test_blocking_controller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """13.1"""
    monkeypatch.setattr(allocation, "_exceeds_fleet", lambda *_: None)
    assert re.search(r"allocated after \d\d s$", run(1, drive=a_typo_in_the_evening, actors=ACTORS).trace[-1])


@pytest.mark.parametrize(("drive", "names"), [(flood_of_giants, "flood0"), (None, "rogue")])
def test_message_that_names_another_tenants_objects_is_found(
    monkeypatch: pytest.MonkeyPatch, drive: Drive | None, names: str
) -> None:
    """4.02."""
    monkeypatch.setattr(tenants, "shown", lambda kind, namespace, name, *, reader: f"{kind} {namespace}/{name}")
    outcome = beside_a_victim(1) if drive is None else run(1, steps=20, drive=drive, actors=ACTORS, replicas=1)
    assert re.search(f"a message in namespace fleet names {names}.* of tenant-a", outcome.violation)
