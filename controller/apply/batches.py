"""Makes a plan's writes: those of one kind together, one kind after the other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from controller.plan.actions import Action

IN_FLIGHT: Final = 16  # a workload of 256 nodes writes 64 objects twice; more at once only queue at the server


async def perform(
    actions: Iterable[Action],
    write: Callable[[Action], Awaitable[bool]],
    may_write: Callable[[], bool],
    waits: Callable[[Action], bool] = lambda action: False,
) -> bool:
    """Make the writes and return whether all were made.

    Neighbours of one kind write to different objects, so they may overlap. Kinds do not: no template before its
    reservations are stored, no status before its template. After a write that failed the rest for the same workloads
    waits for a plan on newer knowledge, and so it does after a write that is not due yet (`waits`). `may_write` is
    asked before each.
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
        clean &= await _together(due, write, may_write, failed)
    return clean


async def _together(
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
            if action.owners & failed:
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
