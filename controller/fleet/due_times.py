"""When something is due, by key. Pure."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterator

from neuron_dra.core.turns import Turns


class DueTimes:
    """One time for each key. To find what is due costs the same, however many keys wait."""

    def __init__(self) -> None:
        self._at: dict[str, datetime.datetime] = {}
        self._heap: list[tuple[datetime.datetime, str]] = []  # some are not in `_at` any more

    def set(self, key: str, at: datetime.datetime | None) -> None:
        """Replace the time of a key; None removes it."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heapq.heappush(self._heap, (at, key))

    def take(self, now: datetime.datetime) -> Iterator[str]:
        """Remove and yield the keys that are due."""
        while (at := self.next()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            yield key

    def next(self) -> datetime.datetime | None:
        """Return the earliest time, None if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class DueTurns:
    """Keys that wait for their time, and then for the turn of their namespace.

    To take one costs the same, however many wait.
    """

    def __init__(self) -> None:
        self._times = DueTimes()
        self._namespaces: dict[str, str] = {}  # of the keys that wait for their time
        self._turns: Turns[str] = Turns()

    def put(self, key: str, namespace: str, at: datetime.datetime, now: datetime.datetime) -> None:
        """Let a key wait for this time, or behind the others of its namespace if it is due."""
        self.discard(key)
        if at <= now:
            self._turns.add(key, namespace)
        else:
            self._namespaces[key] = namespace
            self._times.set(key, at)

    def discard(self, key: str) -> None:
        """Remove a key if it waits."""
        self._turns.discard(key)
        self._times.set(key, None)
        self._namespaces.pop(key, None)

    def take(self, now: datetime.datetime) -> str | None:
        """Remove and return the next key that is due; None if none is."""
        for key in self._times.take(now):
            self._turns.add(key, self._namespaces.pop(key))
        return self._turns.take() if self._turns else None

    def next(self, now: datetime.datetime) -> datetime.datetime | None:
        """Return when a key is due: `now` if one is; None if none waits."""
        return now if self._turns else self._times.next()
