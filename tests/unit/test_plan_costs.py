"""30, net 3: the cost of a plan is counted, not timed: UltraServers and slots looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from controller.plan import placement
from controller.plan.fleet_index import FleetIndex
from controller.plan.planning import plan_of
from hack.bench.ultraservers import ultraserver
from tests.unit.ultraserver_world import World

BLOCKS = 12
WAITING = 30


@pytest.fixture
def index() -> FleetIndex:
    """A fleet for which requests of one namespace wait, each for another number of groups, none of which fits."""
    world = World([item for number in range(BLOCKS) for item in ultraserver(f"u{number:02}")])
    world.settle()
    for number in range(WAITING):
        world.submit(f"w{number:02}", size=4, count=BLOCKS + 1 + number)
    world.settle()
    return FleetIndex.of(world.snapshot())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many UltraServers were looked at, by function."""
    found: Counter[str] = Counter()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(groups: Any, *rest: Any) -> Any:
            groups = list(groups)
            found[name] += len(groups)
            return real(groups, *rest)

        return call

    for name in ("tally", "slots"):
        monkeypatch.setattr(placement, name, counting(name, getattr(placement, name)))
    return found


def test_distinct_requests_share_one_count_of_the_fleet(index: FleetIndex, counted: Counter[str]) -> None:
    plan_of(index, World().now)
    assert counted["tally"] <= BLOCKS


def test_plan_without_a_change_counts_nothing(index: FleetIndex, counted: Counter[str]) -> None:
    plan_of(index, World().now)
    counted.clear()
    plan_of(index, World().now)
    assert counted == Counter()
