"""How long to wait before trying again."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def delays(first_s: float, cap_s: float, jitter: Callable[[], float]) -> Iterator[float]:
    """Yield waits in seconds: doubling from `first_s` up to `cap_s`, each spread by `jitter`.

    `jitter` returns a number in [0, 1); a wait lies between half of its step and the whole.
    """
    step = first_s
    while True:
        yield step * (0.5 + jitter() / 2)
        step = min(step * 2, cap_s)


def not_before(wait_s: float, jitter: Callable[[], float]) -> float:
    """Return a wait of `wait_s` seconds and up to half as much again, spread by `jitter`, a number in [0, 1).

    For a server that says how long to wait: it says so to a whole fleet, which must not be back at one moment.
    """
    return wait_s * (1 + jitter() / 2)
