"""The latest health of this node's devices, for any number of the kubelet's streams."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from neuron_dra.core.health import DeviceHealth
from neuron_dra.node.signal import Signal


class HealthSource:
    """The latest health list. `read_at` returns when the hardware was last read, in seconds since the epoch."""

    def __init__(self, read_at: Callable[[], float] = time.time) -> None:
        self.read_at = read_at
        self.devices: tuple[DeviceHealth, ...] = ()
        self._known = False
        self._changed = Signal()
        self._closed = False

    def set(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Replace the list; wake followers if it differs."""
        if devices != self.devices or not self._known:
            self.devices, self._known = devices, True
            self._changed.notify()

    def close(self) -> None:
        """End every stream, so that a server can stop."""
        self._closed = True
        self._changed.notify()

    async def follow(self, period_s: float) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """Yield the list at once, then on change, and at least every `period_s` seconds.

        Before the first list it yields nothing: to the kubelet an empty list means that all health is unknown.
        """
        while not self._closed:
            changes_seen, devices_shown = self._changed.count, self.devices
            if self._known:
                yield devices_shown
            if self.devices is not devices_shown or self._closed:
                continue  # it changed while the reader was slow
            await self._changed.after(changes_seen, period_s)
