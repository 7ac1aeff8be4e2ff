"""Turns of namespaces: whoever asks ten thousand times does not hold others back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Turns(Generic[K]):
    """Items that wait for their turn, each once. To take one costs the same, however many wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[K, None]] = {}  # by namespace, the next one first
        self._namespace: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._namespace)

    def add(self, item: K, namespace: str) -> None:
        """Put an item behind the others of its namespace, unless it waits already."""
        if item not in self._namespace:
            self._namespace[item] = namespace
            self._waiting.setdefault(namespace, {})[item] = None

    def discard(self, item: K) -> None:
        """Remove an item if it waits."""
        namespace = self._namespace.pop(item, None)
        if namespace is not None:
            del self._waiting[namespace][item]
            if not self._waiting[namespace]:
                del self._waiting[namespace]

    def take(self) -> K:
        """Remove and return the next item: the first of the next namespace. Raises StopIteration if none waits."""
        namespace = next(iter(self._waiting))
        item = next(iter(self._waiting[namespace]))
        self.discard(item)
        if namespace in self._waiting:
            self._waiting[namespace] = self._waiting.pop(namespace)  # behind the other namespaces
        return item


def in_turn(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """Return the items so that namespaces take turns, each with its items in their order."""
    taken: Counter[str] = Counter()
    turns: list[tuple[int, T]] = []
    for item in items:
        turns.append((taken[namespace(item)], item))
        taken[namespace(item)] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]
