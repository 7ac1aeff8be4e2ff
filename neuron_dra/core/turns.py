"""Turns of namespaces: whoever asks ten thousand times does not hold others back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Return the items so that namespaces take turns, each with its items in their order."""
    taken: Counter[str] = Counter()
    turns: list[tuple[int, T]] = []
    for item in items:
        turns.append((taken[namespace(item)], item))
        taken[namespace(item)] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]
