"""How long a prepare waits: for a device that another claim still holds, and to ask the API server again.

A refusal costs the pod 90 s, and the kubelet waits 45 s for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from neuron_dra.node.prepare.prepared_claims import PreparedClaims

LOOK_AGAIN_S: Final = 1.0  # another process of this node may have unprepared


class DeviceWait:
    """The waiting of one prepare. It ends early when the claim is `withdrawn`, or when the plugin is `stopping`."""

    def __init__(
        self,
        prepared: PreparedClaims,
        withdrawn: Callable[[], bool],
        stopping: Callable[[], bool],
        device_wait_s: float,
    ) -> None:
        self._prepared = prepared
        self._withdrawn = withdrawn
        self._stopping = stopping
        self._until = asyncio.get_running_loop().time() + device_wait_s

    async def released(self, holder: str, seen: int) -> bool:
        """Return True as soon as `holder` may be unprepared or the claim is withdrawn; False if the time is over.

        `seen` is the count of changes at which `holder` held the device.
        """
        while not self._stopping() and (left := self._until - asyncio.get_running_loop().time()) > 0:
            await self._prepared.changed.after(seen, min(left, LOOK_AGAIN_S))
            if self._withdrawn() or holder not in self._prepared.claims:
                return True
            seen = self._prepared.changed.count
        return False

    async def pause(self, seconds: float, until: float) -> bool:
        """Wait `seconds`; return False at once if that is later than `until`, or if no answer is wanted any more."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._stopping() and not self._withdrawn() and end <= until:
            if (left := end - loop.time()) <= 0:
                return True
            await self._prepared.changed.after(self._prepared.changed.count, left)
        return False
