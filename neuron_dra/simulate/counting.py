"""Shared counters during a search: what allocated devices leave of them.

As in the scheduler, only published devices consume, and a counter below zero blocks every device of its pool that
consumes counters (dynamic-resource-allocation/structured, "incubating").
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from fractions import Fraction

from neuron_dra.simulate.model import DeviceId, PoolDevice
from neuron_dra.simulate.pools import ResourcePool


class Counting:
    """What is left of the counters of all pools; a search takes and releases devices."""

    def __init__(self, pools: Sequence[ResourcePool], in_use: Set[DeviceId]) -> None:
        self._left: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        for pool in pools:
            if pool.counters:
                self._left[pool.driver, pool.name] = dict(pool.counters)
                for device in pool.devices:
                    if device.id in in_use:
                        self.take(device)

    def allows(self, device: PoolDevice) -> bool:
        """Return True if all counters of the device's pool suffice with it."""
        if not device.consumes:
            return True
        remaining = self._left[device.id.driver, device.id.pool]
        return min(remaining.values()) >= 0 and all(remaining[key] >= amount for key, amount in device.consumes.items())

    def take(self, device: PoolDevice) -> None:
        """Consume what a device needs."""
        self._add(device, -1)

    def release(self, device: PoolDevice) -> None:
        """Return what a device consumed."""
        self._add(device, 1)

    def _add(self, device: PoolDevice, sign: int) -> None:
        if device.consumes:
            remaining = self._left[device.id.driver, device.id.pool]
            for key, amount in device.consumes.items():
                remaining[key] += sign * amount
