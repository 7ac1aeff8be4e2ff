"""Connected sets and core partitions: whether this node publishes them, and what it would publish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from neuron_dra.core import connected, devices, divided, linked, names, partitions, server_gate, slices, versions
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.divided import Division, Leaving
from neuron_dra.core.server_gate import Gate
from neuron_dra.core.topology import Node
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventsAbout
from neuron_dra.kube.requests import DEVICE_CLASSES
from neuron_dra.node import version
from neuron_dra.node.files import Files, sweep, write_atomically
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.publish.slice_publisher import SlicePublisher
from neuron_dra.node.timing import PublishTiming
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)

EVENT: Final = "NeuronConnectedSetsOff"
MARKER: Final = "connected-sets"
"""A file in the plugin's folder while claims may have connected sets: slices may be wiped, and the setting changed."""


class ConnectedSets:
    """Decides once in a while whether the node publishes connected sets, and records that it did."""

    def __init__(
        self,
        settings: PluginSettings,
        timing: PublishTiming,
        node: OwnNode,
        client: KubeClient,
        publisher: SlicePublisher,
        events: EventsAbout,
        files: Files,
    ) -> None:
        self._settings = settings
        self._node = node
        self._client = client
        self._publisher = publisher
        self._events = events
        self._files = files
        self._disk = Worker("connected sets")
        self._marker: bool | None = None  # None until it is read
        self._last_division: tuple[Node, tuple[bool, bool, frozenset[linked.Pair]], Division | None] | None = None
        self._links = linked.Links()
        self._followed: Node | None = None
        self._divides = False  # the last answer of `settle`: only then links are followed
        self.why_not = "it is not known yet"  # why they are not published although the setting is on; empty if they are
        self._look_at: float | None = None  # when to check again
        self._gate: Gate | None = None  # None until the first question
        self._gate_timing = timing.server
        self._first_s, self._longest_s = timing.sets_check_s
        self._wait_s = self._first_s
        self._kubelet = ""  # its version at the last check
        self.leaving: Leaving | None = None

    @property
    def shape(self) -> str:
        """What an UltraServer's node publishes: the setting, except that only counters allow both."""
        shape = self._settings.ultraserver_devices
        if shape == "both" and not self.on:
            return "node"
        return shape

    @property
    def look_at(self) -> float | None:
        """When to check again, or a link that was down may count as up."""
        if self._look_at is None:
            return None
        ask_at = self._gate.ask_at if self._gate is not None else None
        linked_at = self._links.look_at if self._divides else None
        return min(at for at in (self._look_at, ask_at, linked_at) if at is not None)

    @property
    def _path(self) -> Path:
        return self._settings.data_folder / MARKER

    @property
    def on(self) -> bool:
        """Whether the node may publish connected sets now."""
        return self._settings.connected_sets and not self.why_not

    async def settle(self, pool: slices.Pool, published: Collection[Wire], prepared: Collection[PreparedClaim]) -> bool:
        """Return whether the node publishes devices with counters, or did and has not ended it. Raises ApiError."""
        self._divides = await self._settle(pool, published, prepared)
        return self._divides

    async def _settle(
        self, pool: slices.Pool, published: Collection[Wire], prepared: Collection[PreparedClaim]
    ) -> bool:
        if self._marker is None:
            await self._disk.do(sweep, self._files, self._path)
            self._marker = await self._disk.do(self._files.read, self._path) is not None
        is_enabled = self._settings.connected_sets
        is_in_play = self._marker or divided.is_in_play(published, prepared)
        if not is_enabled and not is_in_play:
            self._look_at, self._links, self._followed = None, linked.Links(), None
            return False
        if is_enabled:
            await self._ask(published)
        await self._check(pool, is_enabled=is_enabled)
        if self.on and not self._marker:
            try:
                await self._disk.do(write_atomically, self._files, self._path, b"", 0o600)
                self._marker = True
            except OSError as err:
                self.why_not = f"{self._path} cannot be written: {err}"
                self._events.post("Warning", EVENT, f"connected sets of devices are not published: {self.why_not}")
                self._look_at = asyncio.get_running_loop().time() + self._first_s
        return self._publisher.keeps_counters is True and (self.on or is_in_play)

    async def _ask(self, published: Collection[Wire]) -> None:
        """Ask the API server for its version as often as that is due."""
        oldest = self._settings.oldest_release
        if oldest is None or self._kubelet_refuses:
            self._gate = None
            return
        is_settled = divided.is_settled(published)
        gate = self._gate or Gate(is_open=is_settled)
        while asyncio.get_running_loop().time() >= gate.ask_at:
            server_version = await version.asked_apart(self._client)
            now = asyncio.get_running_loop().time()
            is_plain = bool(published) and not is_settled
            gate = server_gate.answered(gate, now, server_version, oldest, is_plain=is_plain, timing=self._gate_timing)
        if self._gate is not None and gate.reason != self._gate.reason:
            self._look_at = None
        self._gate = gate

    @property
    def _kubelet_refuses(self) -> str:
        return connected.why_not_kubelet(versions.parse(self._node.kubelet_version))

    async def _check(self, pool: slices.Pool, *, is_enabled: bool) -> None:
        """Look again, if it is time, whether the node may publish connected sets. Raises ApiError."""
        now = asyncio.get_running_loop().time()
        kubelet, self._kubelet = self._kubelet, self._node.kubelet_version
        is_early = self._look_at is not None and now < self._look_at and kubelet == self._kubelet
        # While the sets are published, an API server that dropped counters is a reason to check early.
        if is_early and (self._publisher.keeps_counters or not self.on):
            return
        why = await self._find_out(pool) if is_enabled else ""
        if not is_enabled and not self._publisher.keeps_counters:
            await self._publisher.learn_counters(pool)
        if why:
            self._events.post("Warning", EVENT, f"connected sets of devices are not published: {why}")
            if why != self.why_not:
                log.warning("connected sets of devices are not published", extra={"reason": why})
        if why and why == self.why_not:
            self._wait_s = min(2 * self._wait_s, self._longest_s)
        else:
            self._wait_s = self._first_s
        self.why_not = why
        self._look_at = now + (self._wait_s if why else self._longest_s)

    async def _find_out(self, pool: slices.Pool) -> str:
        """Return why connected sets must not be published; what costs no request is checked first. Raises ApiError."""
        why = self._kubelet_refuses or (self._gate.reason if self._gate is not None else "")
        why = why or connected.why_not_class(await self._device_class())
        if not why and not self._publisher.keeps_counters:
            await self._publisher.learn_counters(pool)
            why = "" if self._publisher.keeps_counters else connected.NO_COUNTERS
        return why

    async def _device_class(self) -> dict[str, Any] | None:
        """Return the DeviceClass of plain devices; None if it is missing or may not be read. Raises ApiError."""
        try:
            return await self._client.read(DEVICE_CLASSES, "", names.DRIVER)
        except ApiError as err:
            if isinstance(err, NotFound) or err.status == 403:
                return None
            raise

    def division(self, node: Node, offered: tuple[devices.Device, ...]) -> Division | None:
        """Return what the node can publish with counters, computed once per reading; None if its type is unknown."""
        self._follow_links(node)
        key = (self.on, self._parts, self._links.up)
        if self._last_division is None or self._last_division[0] is not node or self._last_division[1] != key:
            self._last_division = (node, key, self._divide(node, offered))
        return self._last_division[2]

    @property
    def _parts(self) -> bool:
        """Whether an UltraServer's node is divided though it is published as one device."""
        parts_setting = self._settings.ultraserver_parts
        return parts_setting == "on" or (parts_setting == "auto" and not self._has_controller)

    @property
    def _has_controller(self) -> bool:
        """Whether the UltraServer controller is installed: the setting expects it, or it has labelled the Node."""
        is_labelled = any(label.startswith(names.ULTRASERVER_LABELS) for label in self._node.labels)
        return self._settings.enable_ultraserver_operator or is_labelled

    def _follow_links(self, node: Node) -> None:
        """Follow the links of a new reading, and those that have been healthy for long enough."""
        now = asyncio.get_running_loop().time()
        is_due = self._links.look_at is not None and now >= self._links.look_at
        if node is not self._followed or is_due:
            hold_s = self._settings.unhealthy_device_hold_seconds
            self._links, self._followed = linked.followed(self._links, node, now, hold_s), node

    def _divide(self, node: Node, offered: tuple[devices.Device, ...]) -> Division | None:
        sizes_wanted = self._settings.connected_sizes_wanted
        partitioned = partitions.partitioned(node, offered, sizes=sizes_wanted, links=self._links.up, parts=self._parts)
        if partitioned is None:
            return None
        if self.on and partitioned.left_out:
            sizes, limit = ", ".join(partitioned.left_out), partitions.devices_at_most(node.spec)
            log.info("sizes are left out: a node publishes few devices", extra={"sizes": sizes, "limit": limit})
        offered_names = {device.name for device in offered}
        return Division(
            on=self.on,
            offered=tuple(p.device for p in partitioned.partitions if self.on or p.device.name in offered_names),
            counters=tuple(counter_set.to_wire() for counter_set in partitioned.counters),
            position=partitioned.position,
            named=lambda name: partitions.named(node, name),
        )

    async def ended(self) -> None:
        """Record that no connected set is published or allocated any more. Raises OSError."""
        self.leaving = None
        if self._marker and not self.on:
            await self._disk.do(self._files.remove, self._path)
            await self._disk.do(self._files.sync_folder, self._path.parent)
            self._marker = False
            log.info("connected sets of devices have ended on this node")
