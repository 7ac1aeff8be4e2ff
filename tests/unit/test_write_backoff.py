"""Rejected and ineffective writes are retried with growing pauses. Issue 13, number 10."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apply.write_backoff import Backoff
from controller.timing import DEFAULT_TIMING
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    Evict,
    LabelNode,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)

START = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
TEN_MINUTES = datetime.timedelta(minutes=10)


def status(version: str, reason: str = "Allocated", since: str = "2026-03-01T12:00:00Z") -> Action:
    conditions = [{"type": "Ready", "reason": reason, "lastTransitionTime": since}]
    return WriteWorkloadStatus("ml", "job", "uid", version, {}, {"state": reason, "conditions": conditions}, False)


WRITES: dict[str, Callable[[int], Action]] = {
    "an eviction": lambda n: Evict("ml", "pod-0", "uid-0"),
    "labels": lambda n: LabelNode("node-0", "uid-0", {"a": "b"}),
    "the status of a workload": lambda n: status(str(n), since=f"2026-03-01T12:00:{n:02}Z"),
    "the status of an UltraServer": lambda n: WriteUltraServerStatus(
        "us-0", str(n), {"state": str(n)}, {"state": "Ready"}
    ),
    "a template": lambda n: CreateTemplate({"metadata": {"namespace": "ml", "name": "job"}}),
}


def due_at(backoff: Backoff, action: Action, now: datetime.datetime) -> datetime.datetime:
    """Return when a write is due: `now`, or the time of its next try."""
    return backoff.next_try(action) or now


def tries(make: Callable[[int], Action], after: Callable[[Backoff, Action, datetime.datetime], None]) -> list[float]:
    """Return the times of a write within an hour in which each plan has it."""
    backoff, now = Backoff(DEFAULT_TIMING.writes), START
    found: list[float] = []
    while now < START + datetime.timedelta(hours=1):
        action = make(len(found))
        due = due_at(backoff, action, now)
        if due > now:
            now = due
            continue
        found.append((now - START).total_seconds())
        after(backoff, action, now)
    return found


@pytest.mark.parametrize("make", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("after", [Backoff.refused, Backoff.written], ids=["refused", "without effect"])
def test_ineffective_writes_are_limited(
    make: Callable[[int], Action], after: Callable[[Backoff, Action, datetime.datetime], None]
) -> None:
    """13.10: eight pods that a budget protects got 930 evictions in ten minutes."""
    found = tries(make, after)
    most = max(sum(begin <= other < begin + 600 for other in found) for begin in found)
    assert 6 <= most <= 12
    assert max(two - one for one, two in itertools.pairwise(found)) < 91


def test_a_write_that_is_rejected_for_days_is_tried_again() -> None:
    """13.10: after 646 tries, some 16 hours, the growing wait was too large for a number, and every pass failed."""
    backoff, now, action = Backoff(DEFAULT_TIMING.writes), START, WRITES["labels"](0)
    for _ in range(3_000):
        backoff.refused(action, now)
        now = due_at(backoff, action, now)
    assert now > START + datetime.timedelta(days=3)


def test_another_object_does_not_wait() -> None:
    """13.10."""
    backoff = Backoff(DEFAULT_TIMING.writes)
    first, second = Evict("ml", "pod-0", "uid-0"), Evict("ml", "pod-1", "uid-1")
    backoff.refused(first, START)
    assert (due_at(backoff, first, START) > START, due_at(backoff, second, START)) == (True, START)
    again = replace(first, uid="another pod of the same name")
    assert due_at(backoff, again, START) == START


def test_new_content_waits_only_after_rejection() -> None:
    backoff = Backoff(DEFAULT_TIMING.writes)
    backoff.written(status("1"), START)
    assert due_at(backoff, status("2", "Degraded"), START) == START
    assert due_at(backoff, status("2"), START) > START
    backoff.refused(status("3"), START)
    assert due_at(backoff, status("4", "Degraded"), START) > START


def test_effective_write_resets_the_backoff() -> None:
    """13.10: an UltraServer with many jobs in sequence becomes free after each, with the same status."""
    backoff = Backoff(DEFAULT_TIMING.writes)
    for number in range(30):
        now = START + datetime.timedelta(seconds=10 * number)
        for reason in ("Reserved", "Free"):
            action = status(str(number), reason)
            assert due_at(backoff, action, now) == now
            backoff.written(action, now)


def test_success_resets_the_delay() -> None:
    backoff = Backoff(DEFAULT_TIMING.writes)
    for number in range(6):
        backoff.refused(status(str(number)), START)
    assert due_at(backoff, status("7"), START) > START + datetime.timedelta(seconds=10)
    backoff.written(status("7", "Pending"), START)
    assert due_at(backoff, status("8"), START) == START


def test_quiet_objects_are_dropped() -> None:
    backoff, one = Backoff(DEFAULT_TIMING.writes), Evict("ml", "pod-0", "uid-0")
    for _ in range(9):
        backoff.refused(one, START)
    later = START + TEN_MINUTES + datetime.timedelta(seconds=91)
    backoff.refused(Evict("ml", "pod-1", "uid-1"), later)
    backoff.refused(one, later)
    assert due_at(backoff, one, later) == later + datetime.timedelta(seconds=5)


def test_writes_that_had_their_effect_are_forgotten_after_a_minute() -> None:
    """4.02: a tenant that creates and deletes workloads all the time must not make each of them stay for long."""
    backoff, now = Backoff(DEFAULT_TIMING.writes), START
    reverted = LabelNode("node-0", "uid-0", {"a": "b"})
    for number in range(600):
        now = START + datetime.timedelta(seconds=number)
        backoff.written(Evict("ml", f"pod-{number}", f"uid-{number}"), now)
        if number % 20 == 0:
            backoff.written(reverted, now)
    assert len(backoff._written) == len(backoff._last) <= 130
    assert due_at(backoff, reverted, now) > now + datetime.timedelta(seconds=60)  # the control: it had none


def test_template_of_a_recreated_workload_does_not_wait() -> None:
    backoff = Backoff(DEFAULT_TIMING.writes)
    former, new = (CreateTemplate(template_of(uid)) for uid in ("uid-1", "uid-2"))
    backoff.refused(former, START)
    assert (due_at(backoff, former, START) > START, due_at(backoff, new, START)) == (True, START)


def template_of(uid: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": "job", "ownerReferences": [{"uid": uid}]}}


def test_rejected_eviction_waits_longer_than_other_rejected_writes() -> None:
    backoff = Backoff(DEFAULT_TIMING.writes)
    eviction, labels = Evict("ml", "pod-0", "uid-0"), LabelNode("node-0", "uid-0", {})
    assert (backoff.next_try(eviction), backoff.next_try(labels)) == (None, None)
    backoff.refused(eviction, START)
    backoff.refused(labels, START)
    delays = [(due_at(backoff, write, START) - START).total_seconds() for write in (eviction, labels)]
    assert delays == [DEFAULT_TIMING.writes.first_eviction_s, DEFAULT_TIMING.writes.first_s]


@given(st.lists(st.tuples(st.sampled_from(sorted(WRITES)), st.booleans(), st.floats(0, 30)), max_size=60))
def test_rejections_are_limited_in_any_order(steps: list[tuple[str, bool, float]]) -> None:
    """13.10."""
    backoff, now = Backoff(DEFAULT_TIMING.writes), START
    refused: dict[str, list[datetime.datetime]] = {}
    for number, (name, is_refused, wait) in enumerate(steps):
        now += datetime.timedelta(seconds=wait)
        action = WRITES[name](number)
        if due_at(backoff, action, now) > now:
            continue
        if is_refused:
            backoff.refused(action, now)
            refused.setdefault(name, []).append(now)
        else:
            backoff.written(action, now)
            refused.pop(name, None)
    for moments in refused.values():
        assert all(sum(begin <= each < begin + TEN_MINUTES for each in moments) <= 12 for begin in moments)
