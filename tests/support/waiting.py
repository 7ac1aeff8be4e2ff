"""Waits for conditions, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 120.0
POLL_S: Final = 0.02


async def eventually(condition: Callable[..., Any], timeout_s: float = PATIENCE_S, what: str = "the condition") -> Any:
    """Return the first true value of `condition()`. Raises TimeoutError that contains `what`.

    A busy machine gets PATIENCE_S, whatever `timeout_s` is.
    """
    timeout_s = max(timeout_s, PATIENCE_S)
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {timeout_s:g} s")
        await asyncio.sleep(POLL_S)
    return value


async def always(condition: Callable[[], Any], for_s: float, what: str = "the condition") -> None:
    """Return if `condition` stays true for `for_s` seconds. Raises AssertionError when it is false."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        if not condition():
            raise AssertionError(f"{what} did not stay true")
        await asyncio.sleep(POLL_S)
