"""How many writes of a kind may be made in a minute: some at once, then one now and then. Pure."""

from __future__ import annotations

import datetime


class Pace:
    """Allows `at_once` writes after a pause, and one more each `every_s` seconds."""

    def __init__(self, at_once: int, every_s: float) -> None:
        self._at_once = at_once
        self._every = datetime.timedelta(seconds=every_s)
        self._paid: datetime.datetime | None = None  # until when the writes so far use the time up

    def room(self, now: datetime.datetime) -> int:
        """Return how many writes may be made now."""
        ahead = self._ahead(now)
        if not self._every or not ahead:
            return self._at_once
        return max(0, self._at_once - -(-ahead // self._every))

    def spend(self, now: datetime.datetime) -> None:
        """Note a write."""
        self._paid = now + self._ahead(now) + self._every

    def _ahead(self, now: datetime.datetime) -> datetime.timedelta:
        """Return how much time the writes so far use up."""
        if self._paid is None or self._paid <= now:
            return datetime.timedelta()
        # More than this only after the clock was set back.
        self._paid = min(self._paid, now + self._at_once * self._every)
        return self._paid - now
