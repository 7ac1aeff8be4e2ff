"""A signal of changes for several waiting tasks, none of which misses a change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Signal:
    """Counts changes. A task reads `count`, works, and then waits for a later change; one during its work counts.

    `then` is called after each change, for example another signal's `notify`.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.count = 0
        self._then = then
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Count a change and wake all waiting tasks."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()
        if self._then is not None:
            self._then()

    async def after(self, count: int, timeout_s: float | None = None) -> bool:
        """Return True once there are more than `count` changes, False after `timeout_s` seconds without."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.count == count:
                    await self._event.wait()
        return self.count != count
