"""Status writes that only change messages are delayed; others are not."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import pytest

from controller.apply.status_throttle import StatusThrottle
from controller.timing import DEFAULT_TIMING
from neuron_dra.planner.decisions.actions import (
    CreateUltraServer,
    Evict,
    Plan,
    WriteWorkloadStatus,
)
from tests.unit.test_plan_costs import lines

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
MESSAGE_INTERVAL = datetime.timedelta(seconds=DEFAULT_TIMING.writes.message_s)
NUMBERS_INTERVAL = datetime.timedelta(seconds=DEFAULT_TIMING.writes.numbers_s)
SPREAD_S = DEFAULT_TIMING.writes.spread_s
SECOND = datetime.timedelta(seconds=1)
SOON = NOW + datetime.timedelta(seconds=1)


def status(text: str, *, reason: str = "WaitingForPods", **more: Any) -> dict[str, Any]:
    return {"state": "Deallocating", "conditions": [{"type": "Ready", "reason": reason, "message": text}], **more}


def write(before: dict[str, Any], after: dict[str, Any], uid: str = "u") -> WriteWorkloadStatus:
    return WriteWorkloadStatus("ml", "job", uid, "1", before, after, False, owners=frozenset({uid}))


@pytest.fixture
def wording() -> StatusThrottle:
    made = StatusThrottle(DEFAULT_TIMING.writes)
    made.written(write({}, status("waiting for 256 pods")), NOW)
    return made


FEWER = write(status("waiting for 256 pods"), status("waiting for 255 pods"))


def test_message_change_is_deferred_and_replanned(wording: StatusThrottle) -> None:
    others = CreateUltraServer({}), Evict("ml", "pod", "p")
    plan = wording.without_deferrable(Plan(actions=(*others, FEWER)), SOON)
    assert (plan.actions, plan.recheck) == (others, NOW + MESSAGE_INTERVAL)


def test_earlier_recheck_is_kept(wording: StatusThrottle) -> None:
    earlier = NOW + datetime.timedelta(seconds=2)
    assert wording.without_deferrable(Plan(actions=(FEWER,), recheck=earlier), SOON) == Plan(recheck=earlier)


def test_deferred_message_is_written_when_due(wording: StatusThrottle) -> None:
    plan = Plan(actions=(FEWER,))
    assert wording.without_deferrable(plan, NOW + MESSAGE_INTERVAL) == plan


@pytest.mark.parametrize(
    "after",
    [
        status("waiting for a budget", reason="EvictionBlocked"),
        status("waiting for 255 pods", allocatedUltraServers=["us-a"]),
        {**status("waiting for 255 pods"), "state": "Pending"},
    ],
)
def test_other_changes_are_written_at_once(wording: StatusThrottle, after: dict[str, Any]) -> None:
    plan = Plan(actions=(write(status("waiting for 256 pods"), after),))
    assert wording.without_deferrable(plan, SOON) == plan


def test_message_is_written_after_quiet_time(wording: StatusThrottle) -> None:
    other = write(status("waiting for 8 pods"), status("waiting for 7 pods"), uid="other")
    assert wording.without_deferrable(Plan(actions=(other,)), SOON) == Plan(actions=(other,))


def test_numbers_of_a_waiting_workload_are_written_once_a_minute() -> None:
    """30.12: a node that became free rewrote the messages of 2,000 workloads."""
    made = StatusThrottle(DEFAULT_TIMING.writes)
    dues: set[datetime.datetime | None] = set()
    for uid in map(str, range(64)):
        one = write({**status("short of 8"), "state": "Pending"}, {**status("short of 16"), "state": "Pending"}, uid)
        made.written(one, NOW)
        made.written(write({}, {}, "later"), NOW + MESSAGE_INTERVAL)
        plan = made.without_deferrable(Plan(actions=(one,)), NOW + MESSAGE_INTERVAL)
        assert plan.actions == ()
        dues.add(plan.recheck)
    assert dues <= {NOW + NUMBERS_INTERVAL + number * SECOND for number in range(SPREAD_S)}
    assert len(dues) > SPREAD_S // 2


def test_other_words_of_a_waiting_workload_are_written_sooner() -> None:
    made = StatusThrottle(DEFAULT_TIMING.writes)
    one = write({**status("short of 8"), "state": "Pending"}, {**status("split over 8"), "state": "Pending"})
    made.written(one, NOW)
    assert made.without_deferrable(Plan(actions=(one,)), SOON) == Plan(recheck=NOW + MESSAGE_INTERVAL)


def test_a_write_costs_the_same_however_many_were_written() -> None:
    costs = []
    for number in (10, 1_000):
        made = StatusThrottle(DEFAULT_TIMING.writes)
        for each in range(number):
            made.written(write({}, status("new"), f"u{each}"), NOW)
        again = write({}, status("new"), "u7")
        costs.append(lines(partial(made.written, again, SOON)))
    assert costs[1] == costs[0]
