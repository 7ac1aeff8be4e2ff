"""Events about objects: each text once, until it changes, and namespaces take turns. No I/O."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from neuron_dra.core.turns import Turns

K = TypeVar("K", bound=Hashable)


class EventTurns(Generic[K]):
    """The last text about each object, and those with another one that waits for its turn."""

    def __init__(self) -> None:
        self._told: dict[K, str] = {}
        self._untold: dict[K, str] = {}
        self._turns: Turns[K] = Turns()

    def __len__(self) -> int:
        return len(self._untold)

    def put(self, key: K, namespace: str, text: str | None) -> None:
        """Set the text of the next Event about an object; with None, there is no next Event."""
        self._turns.discard(key)
        self._untold.pop(key, None)
        if text is not None and self._told.get(key) != text:
            self._untold[key] = text
            self._turns.add(key, namespace)

    def forget(self, key: K) -> None:
        """Forget the last text about an object, so that its next text is posted even if it is the same."""
        self._turns.discard(key)
        self._untold.pop(key, None)
        self._told.pop(key, None)

    def take(self, most: int) -> list[K]:
        """Return at most so many of the next objects, and record their texts as posted."""
        taken = [self._turns.take() for _ in range(min(most, len(self)))]
        for key in taken:
            self._told[key] = self._untold.pop(key)
        return taken
