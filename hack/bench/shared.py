"""What the benchmarks share: CPU of processes, waits, and work a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any


def cpu_s(*pids: int) -> float:
    """Return the CPU time of all threads of these processes so far, in seconds."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


async def millicores(used_s: Callable[[], float], seconds: float) -> float:
    """Return the CPU of an idle process, in millicores."""
    before, began = used_s(), time.monotonic()
    await asyncio.sleep(seconds)
    return (used_s() - before) / (time.monotonic() - began) * 1000


async def until(
    check: Callable[[], Awaitable[bool]], timeout_s: float = 30.0, pause_s: float = 0.005, what: str = ""
) -> None:
    """Poll a condition. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not await check():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(pause_s)


async def few_at_a_time(slots: asyncio.Semaphore, work: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await everything, as many at a time as there are slots; return the results in order."""

    async def one(each: Awaitable[Any]) -> Any:
        async with slots:
            return await each

    return await asyncio.gather(*(one(each) for each in work))


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], tasks: Iterable[asyncio.Task[None]] = ()) -> AsyncIterator[None]:
    """Run something until the end of the block, then also wait for `tasks`."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, *tasks, return_exceptions=True)
