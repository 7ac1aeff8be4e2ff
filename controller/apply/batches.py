"""Makes the writes of a plan: those of one kind concurrently, one kind after the other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from controller.decisions.actions import Action, WriteUltraServerStatus

IN_FLIGHT: Final = 16  # a workload of 256 nodes writes 64 objects twice; more at once would queue at the server


async def perform(
    actions: Iterable[Action],
    write: Callable[[Action], Awaitable[bool]],
    may_write: Callable[[], bool],
    waits: Callable[[Action], bool] = lambda action: False,
) -> bool:
    """Make the writes and return whether all were made.

    Consecutive writes of one kind are to different objects, so they may overlap. Kinds do not overlap: a template is
    written after its reservations, a status after its template. After a failed write, or one that is not due yet
    (`waits`), later writes for the same workloads are left to the next plan. Each write needs `may_write`.
    """
    failed: set[str] = set()
    clean = True
    for _, neighbours in itertools.groupby(actions, key=type):
        due = []
        for action in neighbours:
            if waits(action):
                failed.update(action.owners)
            else:
                due.append(action)
        clean &= await _concurrently(due, write, may_write, failed)
    return clean


async def _concurrently(
    actions: Sequence[Action],
    write: Callable[[Action], Awaitable[bool]],
    may_write: Callable[[], bool],
    failed: set[str],
) -> bool:
    clean = True
    waiting = iter(actions)

    async def work() -> None:
        nonlocal clean
        for action in waiting:
            # One status has the reservations of several workloads. None of them waits for another: each is in it only
            # if its finalizer is stored, and leaves it only if its template is being deleted.
            if action.owners & failed and not isinstance(action, WriteUltraServerStatus):
                continue
            if not may_write():
                clean = False
            elif not await write(action):
                clean = False
                failed.update(action.owners)

    async with asyncio.TaskGroup() as group:
        for number in range(min(len(actions), IN_FLIGHT)):
            group.create_task(work(), name=f"writes {number}")
    return clean
