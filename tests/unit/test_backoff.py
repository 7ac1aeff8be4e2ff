"""Waits between attempts: they double up to a limit, with jitter."""

from __future__ import annotations

from itertools import islice

import pytest

from neuron_dra.core.backoff import delays


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (0.0, [0.5, 1.0, 2.0, 2.5, 2.5]),
        (0.5, [0.75, 1.5, 3.0, 3.75, 3.75]),
    ],
)
def test_backoff_doubles_with_jitter_up_to_limit(drawn: float, expected: list[float]) -> None:
    assert list(islice(delays(1.0, 5.0, lambda: drawn), 5)) == expected


def test_each_wait_is_drawn_for_itself() -> None:
    draws = iter([0.0, 0.5])
    assert list(islice(delays(1.0, 5.0, lambda: next(draws)), 2)) == [0.5, 1.5]
