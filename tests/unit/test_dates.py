"""Dates that the API server stores, from year 1 to 9999, in every sum and difference of the controller."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import durations
from neuron_dra.planner.observed import decode

DATES = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00")


@pytest.mark.parametrize(
    ("text", "found"), [*((text, decode.EPOCH) for text in DATES[:2]), *((text, decode.LATEST) for text in DATES[2:])]
)
def test_dates_far_away_are_cut(text: str, found: datetime.datetime) -> None:
    assert decode.time(text) == found


@given(st.datetimes(timezones=st.timezones()).map(lambda each: each.isoformat()) | st.text(max_size=30))
def test_no_sum_overflows(text: str) -> None:
    found = decode.time(text)
    assert decode.EPOCH - datetime.timedelta(days=1) <= found <= decode.LATEST
    assert found + durations.LONGEST - durations.LONGEST - durations.LONGEST < found


@given(st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(8999, 12, 30)))
def test_other_dates_are_kept(moment: datetime.datetime) -> None:
    moment = moment.replace(tzinfo=datetime.UTC)
    assert decode.time(moment.isoformat()) == decode.time(moment.isoformat().replace("+00:00", "Z")) == moment
