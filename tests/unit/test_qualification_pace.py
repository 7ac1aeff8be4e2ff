"""How many tests begin, and how many results are written, in a minute. Issue 36, number 2."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from controller.qualify.pace import Pace
from controller.qualify.qualifications import RESULTS_AT_ONCE, TESTS_AT_ONCE
from controller.timing import QualifyTiming

NOW = datetime.datetime(2026, 11, 26, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)


def made(pace: Pace, moments: list[float]) -> list[float]:
    """Return when writes are made that are tried at these seconds."""
    found: list[float] = []
    for each in moments:
        if pace.room(NOW + each * SECOND):
            pace.spend(NOW + each * SECOND)
            found.append(each)
    return found


def test_some_writes_are_made_at_once_and_then_one_now_and_then() -> None:
    found = made(Pace(3, 2.0), [0.0] * 10 + [0.1 * each for each in range(61)])
    assert [round(each, 1) for each in found] == [0.0, 0.0, 0.0, 2.0, 4.0, 6.0]


def test_pause_allows_as_many_at_once_again() -> None:
    assert made(Pace(3, 2.0), [0.0] * 5 + [100.0] * 5) == [0.0] * 3 + [100.0] * 3


def test_clock_that_is_set_back_stops_nothing_for_long() -> None:
    found = made(Pace(2, 2.0), [1000.0] * 3 + [float(each) for each in range(10)])
    assert found == [1000.0, 1000.0, 2.0, 4.0, 6.0, 8.0]


@given(st.lists(st.floats(0, 600), max_size=400).map(sorted))
def test_a_minute_has_at_most_twice_its_share(moments: list[float]) -> None:
    timing = QualifyTiming()
    for at_once, every_s in ((TESTS_AT_ONCE, timing.begin_s), (RESULTS_AT_ONCE, timing.result_s)):
        found = made(Pace(at_once, every_s), moments)
        assert at_once * every_s == 60
        for each in found:
            assert sum(each <= other < each + 60 for other in found) <= 2 * at_once
