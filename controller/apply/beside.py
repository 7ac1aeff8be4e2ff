"""Work that goes on beside the passes: what it waits for holds up no plan, and so no other tenant."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import Callable
from typing import Protocol

from controller.apply.fence import EndedTerm, Fence
from controller.timing import PassTiming
from neuron_dra.core import backoff
from neuron_dra.errors import ApiError
from neuron_dra.planner.fleet.fleet_index import FleetIndex

log = logging.getLogger(__name__)


class Look(Protocol):
    """What is done again after each change."""

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Do it; return when to do it again at the latest, even if nothing changes. Raises ApiError."""

    def end_waits(self) -> None:
        """Do at once what waits for a time."""


class Resumable(Protocol):
    """Watches of objects that only this work needs."""

    async def relist(self) -> None:
        """List everything again. Raises ApiError."""

    async def resume(self) -> None:
        """Open the watches again, and list only what cannot be resumed. Raises ApiError."""


class WatchedTerm:
    """Brings watches up to date when a term of leadership begins."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._term = self._tenure = 0  # for which the watches are up to date

    async def begin(self, watches: Resumable) -> int:
        """Return the term of the pass. If it is new, first resume the watches, or relist them if another replica led.

        Raises ApiError.
        """
        term = self._fence.term
        if self._term != term:
            tenure = self._fence.tenure
            await (watches.resume() if self._tenure == tenure else watches.relist())
            self._term, self._tenure = term, tenure
        return term


async def next_change(
    changed: asyncio.Event, wait_s: float | None, gather_s: float, at_once: asyncio.Event | None = None
) -> None:
    """Wait for a change, or for `wait_s` seconds; then `gather_s` more, to gather related changes.

    `at_once` ends the gathering.
    """
    at_once = at_once or asyncio.Event()
    try:
        async with asyncio.timeout(wait_s):
            await changed.wait()
    except TimeoutError:
        pass
    await asyncio.sleep(0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(gather_s):
            await at_once.wait()
    changed.clear()
    at_once.clear()


class Beside:
    """Looks after each change while this process leads.

    `may` returns True while it leads and has listed all objects since its term began: then `index` is current.
    """

    def __init__(
        self,
        look: Look,
        index: Callable[[], FleetIndex],
        may: Callable[[], bool],
        timing: PassTiming,
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._look = look
        self._index = index
        self._may = may
        self._timing = timing
        self._clock = clock
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        waits = backoff.delays(*self._timing.retry_s, random.random)
        wait_s: float | None = None
        while True:
            await next_change(self.changed, wait_s, self._timing.gather_s)
            wait_s = self._timing.idle_s
            if not self._may():
                continue
            try:
                again_at = await self._look.look(self._index(), self._clock())
            except EndedTerm:
                continue  # `may` says when the next term may work
            except ApiError as err:
                log.warning("what goes on beside the plans has failed", extra={"error": str(err)})
                wait_s = next(waits)
                continue
            except Exception:  # it must not end the plans, which go on without it
                log.exception("what goes on beside the plans has failed")
                wait_s = next(waits)
                continue
            waits = backoff.delays(*self._timing.retry_s, random.random)
            if again_at is None:
                wait_s = None
            else:
                wait_s = max(0.0, (again_at - self._clock()).total_seconds())
