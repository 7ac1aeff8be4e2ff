"""Durations in Go's notation (14.16)."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core.durations import parse


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60),
        ("0", 0),
        ("0s", 0),
        ("90s", 90),
        ("10m", 600),
        ("1m30s", 90),
        ("5m0s", 300),
        ("1h0m0s", 3600),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("500ms", 0.5),
        ("1h1ms", 3600.001),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("1000ns", 0.000001),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse(text) == datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "x", "1d", "-1s", "+1s", "1 s", "1s ", "s", ".s", "1m 30s", "1.2.3s", "٣s", "1e3s"]
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration such as 90s, 1m30s or 1h"):
        parse(text)


@pytest.mark.parametrize("text", ["999999999", "99999999999h"])
def test_too_long_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="write at most ten years"):
        parse(text)


@given(st.integers(0, 9999), st.integers(0, 59), st.integers(0, 59))
def test_go_durations_are_parsed(hours: int, minutes: int, seconds: int) -> None:
    assert parse(f"{hours}h{minutes}m{seconds}s") == datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
