"""Sends the Events that wait in a recorder, as its program does in the background."""

from __future__ import annotations

import asyncio
import contextlib

from neuron_dra.kube.events import EventRecorder


async def send_events(recorder: EventRecorder) -> None:
    """Send every Event that waits; return when none is left."""
    running = asyncio.create_task(recorder.run())
    try:
        while recorder.waiting:
            await asyncio.sleep(0)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
