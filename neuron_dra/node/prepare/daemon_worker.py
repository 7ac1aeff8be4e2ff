"""A thread for blocking disk I/O: a disk that hangs delays claims, and nothing else."""

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
    """Runs calls in one thread, in order. The thread ends with the Worker, or with the process.

    The standard library's thread pool adds a second future and locks to each call, which costs a prepare 0.1 ms
    (docs/reports/speed.md).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Return the future of `work(*args)`, called in the thread with the caller's context.

        Cancelling the future does not stop the work.
        """
        return asyncio.get_running_loop().run_in_executor(self, contextvars.copy_context().run, work, *args)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Queue a call for the thread. The future is the event loop's, so `run_in_executor` returns it unchanged."""
        if kwargs:
            raise TypeError("Worker.submit takes positional arguments only")
        if self._thread is None:
            # A daemon thread: a disk that hangs must not keep the process from exiting. Killing it is always safe.
            self._thread = Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((loop, future, fn, args))
        return future


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        loop, future, call, args = job
        try:
            result = call(*args)
        except BaseException as err:
            finish: Callable[..., None] = _failed
            outcome: Any = err
        else:
            finish, outcome = _succeeded, result
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(finish, future, outcome)
        del job, loop, future, call, args, finish, outcome  # or they stay in memory until the next job


def _succeeded(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _failed(future: asyncio.Future[T], err: BaseException) -> None:
    if not future.done():
        future.set_exception(err)
