"""The waits of a prepare: for a device that another claim still holds, and before a retry of the API server.

A rejected claim delays its pod by 90 s; the kubelet waits 45 s for a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from neuron_dra.node.prepare.prepared_claims import PreparedClaims


class DeviceWait:
    """The waits of one prepare. They end early when the claim is `withdrawn` or the plugin is `stopping`."""

    def __init__(
        self,
        prepared: PreparedClaims,
        withdrawn: Callable[[], bool],
        stopping: Callable[[], bool],
        device_wait_s: float,
        look_again_s: float,
    ) -> None:
        self._look_again_s = look_again_s
        self._prepared = prepared
        self._withdrawn = withdrawn
        self._stopping = stopping
        self._until = asyncio.get_running_loop().time() + device_wait_s

    async def released(self, holder: str, seen: int) -> bool:
        """Return True once `holder` is unprepared or the claim is withdrawn; False on timeout or when stopping.

        `seen` is the count of changes at which `holder` held the device.
        """
        while not self._stopping() and (left_s := self._until - asyncio.get_running_loop().time()) > 0:
            await self._prepared.changed.after(seen, min(left_s, self._look_again_s))
            if self._withdrawn() or holder not in self._prepared.claims:
                return True
            seen = self._prepared.changed.count
        return False

    async def pause(self, seconds: float, until: float) -> bool:
        """Wait `seconds` and return True; return False if that ends after `until`, on withdrawal or when stopping."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._stopping() and not self._withdrawn() and end <= until:
            if (left_s := end - loop.time()) <= 0:
                return True
            await self._prepared.changed.after(self._prepared.changed.count, left_s)
        return False
