"""An event loop with simulated time: when no task can run, the time advances to the next timer.

Hours of waiting take no real time, and the same seed gives the same run. No task may wait for a socket or a thread:
work for threads runs immediately.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import datetime
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH: Final = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
"""The wall clock time at the loop's time 0."""


class Stuck(RuntimeError):
    """Deadlock: no task can run, and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `time()` begins at 0 and counts seconds. Programs have no sockets, so it selects nothing."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap; tuples compare fast
        self._number = itertools.count()
        super().__init__()

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer; timers for the same time fire in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), timer))
        return timer

    def _run_once(self) -> None:
        """Advance the time to the next timer if no task can run, then run the ready tasks."""
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("every task waits for another")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` now, in this thread."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as err:
            done.set_exception(err)
        return done

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """A simulated kill leaves tasks without a reader of their results, which is no error."""
        if "exception was never retrieved" not in str(context.get("message")):
            super().call_exception_handler(dict(context))


class ScaledLoop(asyncio.SelectorEventLoop):
    """A loop with real sockets whose clock is `factor` times as fast as the wall clock."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        super().__init__(_FastSelector(factor))

    def time(self) -> float:
        """Return the seconds that have passed on the fast clock."""
        return super().time() * self._factor


class _FastSelector(selectors.DefaultSelector):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._factor)


class Clock:
    """The wall clock of a loop, for times in objects."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: datetime.datetime = EPOCH) -> None:
        self._loop = loop
        self._zero = loop.time()
        self._start = start

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._loop.time() - self._zero

    def now(self) -> datetime.datetime:
        """Return the time."""
        return self._start + datetime.timedelta(seconds=self.elapsed)


def run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on its own loop to the end. Remaining tasks are cancelled."""
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@dataclass(slots=True)
class Trace:
    """The trace of a run: events in order, with their time in seconds."""

    clock: Clock
    lines: list[str] = field(default_factory=list)
    listener: Callable[[str], None] | None = None

    def __call__(self, text: str) -> None:
        line = f"{self.clock.elapsed:9.3f}  {text}"
        self.lines.append(line)
        if self.listener is not None:
            self.listener(line)
