"""A change that several tasks wait for, none of which may miss one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Signal:
    """Counts changes. A task notes `count`, works, and waits for a change after it; what happened meanwhile counts.

    `then` is called after each change: another signal's `notify`, for those who wait for more than this one.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.count = 0
        self._then = then
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait."""
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
