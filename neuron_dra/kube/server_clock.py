"""The API server's time, from the `Date` of its responses.

The machine's clock may be wrong for a moment, or the next leader's clock may be ahead. A time limit that ends something
for good must not depend on them. Between two responses the monotonic clock counts, because nobody sets it.
"""

from __future__ import annotations

import datetime
import email.utils
import time
from collections.abc import Callable
from typing import Final

TOLERANCE_S: Final = 2.0
"""A `Date` has whole seconds, and a response is on its way for a while."""


class ServerClock:
    """Follows the server's clock. It is set once two responses, `sure_s` seconds apart, agree that it has jumped."""

    def __init__(self, sure_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sure_s = sure_s
        self._monotonic = monotonic
        self._offset_s: float | None = None  # of the server's time to the monotonic clock
        self._doubt: tuple[float, float] | None = None  # another offset, and since when responses have it

    def hear(self, date: str) -> None:
        """Follow the `Date` of a response that has just arrived; ignore one that cannot be read."""
        try:
            sent_at_s = email.utils.parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError):
            return
        now_s = self._monotonic()
        offset_s = sent_at_s - now_s
        if self._offset_s is None:
            self._offset_s = offset_s
        elif abs(offset_s - self._offset_s) <= TOLERANCE_S:
            # The largest is nearest to the truth: fractions of seconds are cut off, and a response takes time.
            self._offset_s, self._doubt = max(self._offset_s, offset_s), None
        elif self._doubt is None or abs(offset_s - self._doubt[0]) > TOLERANCE_S:
            self._doubt = offset_s, now_s
        elif now_s >= self._doubt[1] + self._sure_s:
            self._offset_s, self._doubt = offset_s, None

    def now(self) -> datetime.datetime | None:
        """Return the server's time; None before its first response."""
        if self._offset_s is None:
            return None
        return datetime.datetime.fromtimestamp(self._monotonic() + self._offset_s, datetime.UTC)
