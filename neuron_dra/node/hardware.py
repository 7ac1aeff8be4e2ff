"""The node's hardware as last read, and what was made of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from neuron_dra.core import cdi, devices, health, names, topology
from neuron_dra.core.facts import NodeFacts, NodeLabels
from neuron_dra.core.topology import Node
from neuron_dra.node import sysfs

log = logging.getLogger(__name__)


class Hardware:
    """Reads sysfs in a thread, on a timer: sysfs tells nobody when it changes.

    `on_change` is called after a reading that differs. A device that was sick counts as sick until it has read well
    for `hold_s` seconds.
    """

    def __init__(self, host_root: str, hold_s: float = 0.0) -> None:
        self._root = Path(host_root or "/")
        self._hold_s = hold_s
        self._labels = NodeLabels.from_labels({})
        self.on_change: Callable[[], None] = lambda: None
        self.facts: NodeFacts = self.read()
        self.node: Node = topology.build(self.facts, self._labels)
        self._judged: dict[str, health.DeviceHealth] = {}  # of this node and this watch
        self._watch: health.Watch = self._watched({}, self.facts, self.node, 0.0)
        self._device_files: tuple[Node, cdi.DeviceFiles] | None = None

    def read(self) -> NodeFacts:
        """Read everything now. Blocks."""
        return sysfs.read_node(self._root)

    def label(self, labels: Mapping[str, str]) -> None:
        """Take the Node object's labels: network layers, capacity block, and the type where DMI is silent.

        A capacity block that was known stays known: a Node that registers anew gets its label some time later, and
        for so long the node would seem to be in another UltraServer.
        """
        fresh = NodeLabels.from_labels(labels)
        if fresh.capacity_block_id is None:
            fresh = dataclasses.replace(fresh, capacity_block_id=self._labels.capacity_block_id)
        if fresh != self._labels:
            self._labels = fresh
            self._take(self.facts)

    async def poll(self, period_s: float) -> None:
        """Read again every `period_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            self._take(await asyncio.to_thread(self.read))

    def _take(self, facts: NodeFacts) -> None:
        node = topology.build(facts, self._labels)
        watch = self._watched(self._watch, facts, node, asyncio.get_running_loop().time())
        changed = node != self.node or facts != self.facts or watch != self._watch
        new = set(node.findings) - set(self.node.findings)
        self.facts, self.node, self._watch, self._judged = facts, node, watch, {}
        for finding in new:
            log.warning(
                "hardware differs from its instance type", extra={"kind": finding.kind, "text": finding.message}
            )
        if changed:
            self.on_change()

    def _watched(self, before: health.Watch, facts: NodeFacts, node: Node, now: float) -> health.Watch:
        expected = range(node.spec.device_count) if node.spec else ()
        return health.observe(before, facts.devices, expected, now, self._hold_s)

    def recall(self, device_name: str, reasons: Iterable[str]) -> None:
        """Hold against a device what the process before this one published of it."""
        watch = health.recall(self._watch, self.device_ids(device_name), reasons)
        self._watch, self._judged = self._watched(watch, self.facts, self.node, asyncio.get_running_loop().time()), {}

    def health_of(self, device_name: str) -> health.DeviceHealth:
        """Return the health of a published device. Also for threads: what they find out they keep with its reading."""
        judged = self._judged
        found = judged.get(device_name)
        if found is None:
            found = judged[device_name] = health.judged(device_name, self.device_ids(device_name), self._watch)
        return found

    def device_names(self, ultraserver_devices: str) -> list[str]:
        """Return what this node would publish were everything well, gone devices included."""
        if self.node.spec is not None and self.node.spec.whole_node and ultraserver_devices == "node":
            return [names.NODE_DEVICE]
        return [f"{names.DEVICE_PREFIX}{i}" for i in sorted(self._watch)]

    def device_ids(self, device_name: str) -> tuple[int, ...]:
        """Return the Neuron devices behind a published name, whether they are there now or not."""
        if device_name == names.NODE_DEVICE:
            count = self.node.spec.device_count if self.node.spec else 0
            return tuple(sorted({device.device_id for device in self.node.devices} | set(range(count))))
        for prefix in (names.DEVICE_PREFIX, names.OLD_DEVICE_PREFIX):
            suffix = device_name.removeprefix(prefix)
            if suffix.isdecimal():
                return (int(suffix),)
        return ()

    @property
    def ultraserver_id(self) -> str | None:
        """The id of the UltraServer that this node is in, as published; None while it is not known."""
        return devices.ultraserver_id(self.node)

    @property
    def maybe_ultraserver(self) -> bool:
        """The node may be in an UltraServer: only a known type says that it is not."""
        return self.node.spec is None or self.node.spec.whole_node

    @property
    def device_files(self) -> cdi.DeviceFiles:
        """Where a container runtime finds the device files."""
        node = self.node
        if self._device_files is None or self._device_files[0] is not node:
            self._device_files = (node, self._look_for_device_files(node))
        return self._device_files[1]

    def _look_for_device_files(self, node: Node) -> cdi.DeviceFiles:
        folder = self._root / "dev"
        if folder == Path("/dev"):
            return cdi.DeviceFiles()
        plain = any((folder / f"neuron{device.device_id}").is_file() for device in node.devices if device.node_present)
        return cdi.DeviceFiles(str(folder), mounted=plain)
