"""Delays before a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def delays(first_s: float, cap_s: float, jitter: Callable[[], float]) -> Iterator[float]:
    """Yield delays in seconds without end: they double from `first_s` up to `cap_s`, each spread by `jitter`.

    `jitter` returns a number in [0, 1); each delay is between half of its step and the whole step.
    """
    step = first_s
    while True:
        yield step * (0.5 + jitter() / 2)
        step = min(step * 2, cap_s)


def not_before(wait_s: float, jitter: Callable[[], float]) -> float:
    """Return a delay in seconds between `wait_s` and one and a half times that, spread by `jitter`.

    `jitter` returns a number in [0, 1). For a Retry-After: the server sends the same value to the whole fleet, whose
    retries must not arrive together.
    """
    return wait_s * (1 + jitter() / 2)
