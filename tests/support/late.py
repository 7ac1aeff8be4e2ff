"""A pytest plugin: results of threads and replies of the embedded API server arrive late, and waits look all the time.

`pytest -p tests.support.late --late SEED tests/contract tests/story`. Between a change that a test can see, such as a
file or an object, and what follows it in the program, there is a moment. A test that reads in it fails, which
is rare and happens on busy machines. Here each of these moments takes up to LATE_S.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

import pytest
from aiohttp import web

from neuron_dra.emulation.embedded_api.http import Handler
from tests.support import waiting

LATE_S: Final = 0.08
POLL_S: Final = 0.001


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--late", type=int, default=1, metavar="SEED", help="for what is late, and by how much")


def pytest_configure(config: pytest.Config) -> None:
    dice = random.Random(config.getoption("--late"))
    _delay_threads(dice)
    _delay_replies(dice)
    waiting.POLL_S = POLL_S  # type: ignore[misc]


def _late_s(dice: random.Random) -> float:
    """Return how many seconds late the next one is: half of them are in time."""
    return dice.uniform(0, LATE_S) if dice.random() < 0.5 else 0.0


def _delay_threads(dice: random.Random) -> None:
    """Delay what threads hand to an event loop, and keep its order."""
    at_once = BaseEventLoop.call_soon_threadsafe
    last: WeakKeyDictionary[BaseEventLoop, float] = WeakKeyDictionary()

    def call_soon_threadsafe(
        loop: BaseEventLoop, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        def later() -> None:
            due = max(loop.time() + _late_s(dice), last.get(loop, 0.0) + 1e-6)
            last[loop] = due
            loop.call_at(due, callback, *args, context=context)

        return at_once(loop, later)

    BaseEventLoop.call_soon_threadsafe = call_soon_threadsafe  # type: ignore[assignment, method-assign]


def _delay_replies(dice: random.Random) -> None:
    """Delay replies of the embedded API server; what they say has happened."""
    handle = Handler._handle

    async def handle_late(server: Handler, request: web.Request) -> web.StreamResponse:
        response = await handle(server, request)
        await asyncio.sleep(_late_s(dice))
        return response

    Handler._handle = handle_late  # type: ignore[assignment, method-assign]
