"""The lines of a watch's response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp

from neuron_dra.errors import Unavailable

MAX_WATCH_LINE_BYTES: Final = 16 * 1024 * 1024  # etcd's 1.5 MiB of control characters have 9 MiB in JSON


async def of(response: aiohttp.ClientResponse, gather_s: float) -> AsyncIterator[bytes]:
    """Yield the lines of a watch. Raises Unavailable for a line of more than MAX_WATCH_LINE_BYTES."""
    buffer = bytearray()
    async for chunk in response.content.iter_any():
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line:
                yield line
        if len(buffer) > MAX_WATCH_LINE_BYTES:
            raise Unavailable(f"a watch event is larger than {MAX_WATCH_LINE_BYTES >> 20} MiB")
        if gather_s:
            await _unread(response, gather_s)


async def _unread(response: aiohttp.ClientResponse, seconds: float) -> None:
    """Stop reading for `seconds`, so that events in this time wake the process once."""
    transport = response.connection.transport if response.connection else None
    if transport is None or transport.is_closing():
        await asyncio.sleep(seconds)
        return
    transport.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        if not transport.is_closing():
            transport.resume_reading()
