"""Deletes a node's ResourceSlices as a kubelet does: all at its start, a driver's if its plugin stays disconnected."""

from __future__ import annotations

import asyncio
import itertools

import aiohttp

_FIRST_PAUSE_S = 0.1  # pause between attempts; doubles. A kubelet starts with 1 s
_LONGEST_PAUSE_S = 300.0


class SliceWiper:
    """Deletes slices after a delay. Without an API server's URL and a node's name it does nothing."""

    def __init__(self, api_url: str, node_name: str, delay_s: float) -> None:
        """`delay_s`: time that a driver may be without a connected plugin."""
        self._api_url = api_url
        self._node_name = node_name
        self._delay_s = delay_s
        self._running: dict[str, asyncio.Task[None]] = {}

    def settle(self, driver: str, *, is_connected: bool) -> None:
        """Start the timer of a driver without a connected plugin; stop it when a plugin connects."""
        if is_connected:
            if task := self._running.pop(driver, None):
                task.cancel()
        elif driver not in self._running:
            self.start(driver, self._delay_s)

    def start(self, driver: str, delay_s: float) -> None:
        """Delete the slices of a driver ("" for all drivers) after `delay_s`."""
        if self._api_url and self._node_name:
            self._running[driver] = asyncio.create_task(self._wipe(driver, delay_s), name=f"kubelet: wipe {driver}")

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel all timers; return their tasks for the caller to await."""
        tasks = list(self._running.values())
        self._running.clear()
        return tasks

    async def _wipe(self, driver: str, delay_s: float) -> None:
        """Delete the slices; retry until that succeeds."""
        await asyncio.sleep(delay_s)
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        url = f"{self._api_url}/apis/resource.k8s.io/v1/resourceslices"
        async with aiohttp.ClientSession() as session:
            for attempt in itertools.count():
                try:
                    async with session.delete(url, params={"fieldSelector": selector}) as response:
                        if response.status in (200, 404):
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S))
