"""The background loops of the plugin, and what an error does that a loop does not handle itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any

from neuron_dra.core import backoff

log = logging.getLogger(__name__)


class OnError(Enum):
    """What the plugin does after such an error."""

    BEGINS_AGAIN = "is logged, and the loop begins again after a wait"
    ENDS = "ends the plugin, and the kubelet starts it again"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: `run` begins it, and may be called again after an error."""

    name: str
    run: Callable[[], Coroutine[Any, Any, Any]]
    on_error: OnError = OnError.BEGINS_AGAIN


async def kept_running(loop: Loop, retry_s: tuple[float, float]) -> None:
    """Run a loop until it returns. Raises its error if that ends the plugin."""
    waits = backoff.delays(*retry_s, random.random)
    while True:
        try:
            await loop.run()
        except Exception:  # of any kind: a fault in one loop must not end the calls of the kubelet
            if loop.on_error is OnError.ENDS:
                raise
            log.exception("a background loop failed; it begins again", extra={"loop": loop.name})
            await asyncio.sleep(next(waits))
        else:
            return
