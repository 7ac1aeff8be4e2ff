"""When something is due, by key. Pure."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Iterator


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
