"""A thread for the event loop's blocking work on the disk: a disk that hangs holds up claims, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Worker(Executor):
    """One thread, which does what it is given in that order. It ends with the Worker, or with the process.

    A pool of the standard library has a second future for each call, and locks for threads that we do not have: a
    tenth of a millisecond of each prepare (docs/reports/speed.md).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Return the future of `work(*args)`, which is called in the thread, in the context of the caller.

        Who awaits it may be cancelled; the work is done nevertheless.
        """
        return asyncio.get_running_loop().run_in_executor(self, contextvars.copy_context().run, work, *args)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Queue a call for the thread. The future is the event loop's own, and `run_in_executor` takes it as it is."""
        if kwargs:
            raise TypeError("a Worker calls with positional arguments alone, as event loops do")
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process from ending, and to be killed is safe at any time.
            self._thread = Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((loop, done, fn, args))
        return done


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        loop, done, call, args = job
        try:
            result = call(*args)
        except BaseException as err:
            tell: Callable[..., None] = _failed
            told: Any = err
        else:
            tell, told = _succeeded, result
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(tell, done, told)
        del job, loop, done, call, args, tell, told  # or they would stay until the next one comes


def _succeeded(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _failed(done: asyncio.Future[T], err: BaseException) -> None:
    if not done.done():
        done.set_exception(err)
