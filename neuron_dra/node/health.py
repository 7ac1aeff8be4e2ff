"""Health of this node's devices: one source for the kubelet's stream, NodeInspector and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from neuron_dra.core import names
from neuron_dra.core.facts import NodeFacts
from neuron_dra.core.health import DeviceHealth, Health, device_health
from neuron_dra.core.topology import Node


def _missing(name: str) -> DeviceHealth:
    """Return the health of a device that was published and is gone from sysfs."""
    return DeviceHealth(name, Health.UNHEALTHY, "the device is gone from the node")


def published_health(
    facts: NodeFacts, node: Node, published: Sequence[str], held: frozenset[str]
) -> tuple[DeviceHealth, ...]:
    """Return the health of every published or held device, in the published order.

    The whole-node device is as healthy as its worst device.
    """
    judged = {health.name: health for health in map(device_health, facts.devices)}
    result = []
    for name in (*published, *sorted(held - set(published))):
        if name == names.NODE_DEVICE:
            result.append(_whole_node(list(judged.values()), node))
        elif name in judged:
            result.append(judged[name])
        else:
            result.append(_missing(name))
    return tuple(result)


def _whole_node(devices: list[DeviceHealth], node: Node) -> DeviceHealth:
    expected = node.spec.device_count if node.spec else len(devices)
    bad = [f"{device.name}: {device.message}" for device in devices if device.status is Health.UNHEALTHY]
    if len(devices) < expected:
        bad.append(f"{expected - len(devices)} of {expected} devices are gone")
    if bad:
        return DeviceHealth(names.NODE_DEVICE, Health.UNHEALTHY, "; ".join(bad))
    if any(device.status is Health.UNKNOWN for device in devices):
        return DeviceHealth(names.NODE_DEVICE, Health.UNKNOWN, "the health of some devices is not known")
    return DeviceHealth(names.NODE_DEVICE, Health.HEALTHY)


class HealthSource:
    """The latest health list, and those who follow it."""

    def __init__(self) -> None:
        self.devices: tuple[DeviceHealth, ...] = ()
        self._changed = asyncio.Event()
        self._closed = False

    def set(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Take a new list; followers are told if it differs."""
        if devices != self.devices:
            self.devices = devices
            self._wake()

    def close(self) -> None:
        """End every stream, so that a server can stop."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, period_s: float) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """Yield the list at once, then on change, and at least every `period_s` seconds."""
        while not self._closed:
            changed, shown = self._changed, self.devices
            yield shown
            if self.devices is not shown or self._closed:
                continue  # it changed while the reader was slow
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await changed.wait()
