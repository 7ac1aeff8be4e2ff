"""Group commit: calls that wait for the same lock share one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from neuron_dra.node.prepare.daemon_worker import Worker

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Call(Generic[Item, Result]):
    item: Item
    result: Result | Exception | None = None
    is_done: bool = False


class GroupCommit(Generic[Item, Result]):
    """Batches calls: the first to get the lock does the work of all that wait for it, in one thread."""

    def __init__(
        self, order: asyncio.Lock, worker: Worker, work: Callable[[list[Item]], Sequence[Result | Exception | None]]
    ) -> None:
        self._order = order
        self._worker = worker
        self._work = work
        self._waiting: list[_Call[Item, Result]] = []

    async def __call__(self, item: Item) -> Result | None:
        """Return the work's result for `item`; raise it if it is an exception."""
        call: _Call[Item, Result] = _Call(item)
        self._waiting.append(call)
        async with self._order:
            if not call.is_done:
                await self._lead()
        return value_of(call.result)

    async def _lead(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            results = await self._worker.do(self._work, [call.item for call in batch])
        except Exception as err:
            results = [err] * len(batch)
        except BaseException:  # cancelled: the thread continues, and the next caller repeats the batch
            self._waiting = batch + self._waiting
            raise
        for call, result in zip(batch, results, strict=True):
            call.result, call.is_done = result, True


def value_of(result: Result | Exception) -> Result:
    """Return a result, or raise it if it is an exception."""
    if isinstance(result, Exception):
        raise result
    return result
