"""One namespace cannot hold others back for ever by new requests for the whole fleet."""

from __future__ import annotations

import datetime
import random

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.plan.planning import Limits
from tests.unit.ultraserver_world import World

SECOND = datetime.timedelta(seconds=1)
THRESHOLD_S, LIMIT_S, STEP_S = 60, 300, 20
LIMITS = Limits(starvation_threshold=THRESHOLD_S * SECOND, starvation_limit=LIMIT_S * SECOND)


class Tenants:
    """Two UltraServers, one node of which is taken. `greedy` requests all of it, `ml` single nodes for short jobs.

    A job of `ml` ends soon after it got its node, so that there is always room for the next.
    """

    def __init__(self) -> None:
        self.world = World([item for name in ("u0", "u1") for item in ultraserver(name)])
        self.world.settle(LIMITS)
        self.world.submit("holder", size=1, namespace="ops")
        self.world.settle(LIMITS)
        self.made = 0
        self.held: list[bool] = []  # by step: some job of `ml` is held back by `greedy`
        self.first: set[str] = set()  # the jobs that were held back in the last turn and still wait

    def submit(self, namespace: str) -> None:
        self.made += 1
        size, count = (4, 2) if namespace == "greedy" else (1, 1)
        self.world.submit(f"w{self.made}", size=size, count=count, namespace=namespace)

    def names(self, namespace: str) -> list[str]:
        items = self.world.all("NeuronUltraServerWorkload")
        return [item["metadata"]["name"] for item in items if item["metadata"]["namespace"] == namespace]

    def waiting(self) -> set[str]:
        return {name for name in self.names("ml") if self.world.state(name)[1] == "WaitsForOlder"}

    def delete(self, namespace: str, name: str) -> None:
        item = self.world.get("NeuronUltraServerWorkload", name, namespace)
        item["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        self.world.put(item)

    def step(self) -> None:
        """Let time pass; jobs of `ml` that got their node end."""
        before = self.waiting()
        self.world.later(STEP_S)
        for _ in range(4):
            self.world.step(LIMITS)
        found = self.waiting()
        if before and not found:
            self.first |= before
        self.first = {name for name in self.first if self.world.state(name)[0] == "Pending"}
        assert not (found and self.first), "jobs are held back again before all that waited had their turn"
        self.held.append(bool(found))
        for name in self.names("ml"):
            if self.world.state(name)[0] == "Allocated":
                self.delete("ml", name)


def most_held_s(held: list[bool]) -> int:
    """Return the longest time in which jobs were held back, within any window of twice the limit."""
    window = 2 * LIMIT_S // STEP_S
    return max(STEP_S * sum(held[first : first + window]) for first in range(max(1, len(held) - window)))


def test_rotated_requests_hold_others_back_for_half_the_time() -> None:
    """A new one each minute, and each is deleted before its own time to hold others back is over."""
    tenants = Tenants()
    for number in range(150):
        if number % 3 == 0:
            tenants.submit("greedy")
        if number % 2 == 0:
            tenants.submit("ml")
        mine = tenants.names("greedy")
        if len(mine) > 15:
            tenants.delete("greedy", min(mine, key=lambda name: int(name[1:])))
        tenants.step()
    assert 0 < most_held_s(tenants.held) <= LIMIT_S + STEP_S
    assert sum(tenants.held[-60:]) > 0  # it has its turn again and again, as the others have


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_requests_holds_others_back_longer(seed: int) -> None:
    rng = random.Random(seed)
    tenants = Tenants()
    often, long = rng.choice((0.1, 0.3, 0.8)), rng.choice((0.0, 0.05, 0.2))
    for _ in range(90):
        if rng.random() < often:
            tenants.submit("greedy")
        if rng.random() < 0.4:
            tenants.submit("ml")
        for name in tenants.names("greedy"):
            if rng.random() < long:
                tenants.delete("greedy", name)
        tenants.step()
    # A workload's finalizer is stored a step before it is in a reservation.
    assert most_held_s(tenants.held) <= LIMIT_S + 2 * STEP_S


def test_message_names_the_end_of_the_turn() -> None:
    """The second request of a namespace goes on with the turn of the first."""
    tenants = Tenants()
    tenants.submit("greedy")
    for _ in range(5):
        tenants.step()
    tenants.submit("ml")
    tenants.submit("greedy")
    tenants.step()
    [first, _] = tenants.names("greedy")
    [job] = tenants.names("ml")
    began = tenants.world.now
    for _ in range(4):
        tenants.step()
    tenants.delete("greedy", first)
    tenants.step()
    ends = (began + LIMIT_S * SECOND).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert tenants.world.message(job).endswith(f"goes first, until {ends} at the latest")
    assert tenants.world.plan(LIMITS).recheck == began + LIMIT_S * SECOND


def test_requests_of_one_namespace_are_no_turn() -> None:
    """Within one namespace each large workload holds others back for its own time."""
    world = World([item for name in ("u0", "u1") for item in ultraserver(name)])
    world.settle(LIMITS)
    world.submit("holder", size=1)
    world.submit("giant", size=4, count=2)
    world.settle(LIMITS)
    world.later(THRESHOLD_S)
    world.submit("job", size=1)
    world.settle(LIMITS)
    assert (world.state("job")[1], world.turns) == ("WaitsForOlder", {})
