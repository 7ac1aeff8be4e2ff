"""The waits of a prepare: for a device that another claim still holds, and before a retry of the API server.

A rejected claim delays its pod by 90 s; the kubelet waits 45 s for a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from neuron_dra.node.prepare.prepared_claims import PreparedClaims


class DeviceWait:
    """The waits of one prepare. They end early if the claim `is_withdrawn` or the plugin `is_stopping`."""

    def __init__(
        self,
        prepared: PreparedClaims,
        is_withdrawn: Callable[[], bool],
        is_stopping: Callable[[], bool],
        device_wait_s: float,
        look_again_s: float,
    ) -> None:
        self._look_again_s = look_again_s
        self._prepared = prepared
        self._is_withdrawn = is_withdrawn
        self._is_stopping = is_stopping
        self._deadline = asyncio.get_running_loop().time() + device_wait_s

    async def released(self, holder: str, changes_seen: int) -> bool:
        """Return True once `holder` is unprepared or the claim is withdrawn; False on timeout or when stopping.

        `changes_seen` is the count of changes at which `holder` held the device.
        """
        while not self._is_stopping() and (left_s := self._deadline - asyncio.get_running_loop().time()) > 0:
            await self._prepared.changed.after(changes_seen, min(left_s, self._look_again_s))
            if self._is_withdrawn() or holder not in self._prepared.claims:
                return True
            changes_seen = self._prepared.changed.count
        return False

    async def pause(self, pause_s: float, deadline: float) -> bool:
        """Wait `pause_s` and return True; return False if that ends after `deadline`, if withdrawn or stopping."""
        loop = asyncio.get_running_loop()
        pause_end = loop.time() + pause_s
        while not self._is_stopping() and not self._is_withdrawn() and pause_end <= deadline:
            if (left_s := pause_end - loop.time()) <= 0:
                return True
            await self._prepared.changed.after(self._prepared.changed.count, left_s)
        return False
