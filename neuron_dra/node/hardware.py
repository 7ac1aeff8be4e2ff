"""The node's hardware as last read, and what was made of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from neuron_dra.core import cdi, devices, names, topology
from neuron_dra.core.facts import NodeFacts, NodeLabels
from neuron_dra.core.topology import Node
from neuron_dra.node import sysfs

log = logging.getLogger(__name__)


class Hardware:
    """Reads sysfs in a thread, on a timer: sysfs tells nobody when it changes."""

    def __init__(self, host_root: str, on_change: Callable[[], None]) -> None:
        self._root = Path(host_root or "/")
        self._on_change = on_change
        self._labels = NodeLabels.from_labels({})
        self.facts: NodeFacts = sysfs.read_node(self._root)
        self.node: Node = topology.build(self.facts, self._labels)
        self._device_files: tuple[Node, cdi.DeviceFiles] | None = None

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
            facts = await asyncio.to_thread(sysfs.read_node, self._root)
            if facts != self.facts:
                self._take(facts)

    def _take(self, facts: NodeFacts) -> None:
        node = topology.build(facts, self._labels)
        changed = node != self.node or facts != self.facts
        new = set(node.findings) - set(self.node.findings)
        self.facts, self.node = facts, node
        for finding in new:
            log.warning(
                "hardware differs from its instance type", extra={"kind": finding.kind, "text": finding.message}
            )
        if changed:
            self._on_change()

    def device_ids(self, device_name: str) -> tuple[int, ...]:
        """Return the Neuron devices behind a published name, whether they are there now or not."""
        if device_name == names.NODE_DEVICE:
            count = self.node.spec.device_count if self.node.spec else 0
            return tuple(sorted({device.device_id for device in self.node.devices} | set(range(count))))
        suffix = device_name.removeprefix(names.DEVICE_PREFIX)
        return (int(suffix),) if suffix.isdigit() else ()

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
