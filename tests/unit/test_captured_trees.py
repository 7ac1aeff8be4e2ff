"""The simulator and the plugin's reading, over the trees that the real kernel driver wrote (4.03)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from neuron_dra.core import devices, names, topology
from neuron_dra.core.facts import NodeFacts, NodeLabels
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_node import SimulatedNode
from neuron_dra.node.hardware import helper, sysfs
from tests.support import captures
from tests.support.captures import Entry

COMPARED: Final = (captures.MODULE, helper.CLASS, helper.VIRTUAL)
KERNEL: Final = (f"{captures.MODULE}/notes", f"{captures.MODULE}/sections")
"""Folders that depend on how the kernel was built."""

SITUATIONS: Final[dict[str, dict[str, Any]]] = {
    "trn2u.48xlarge-node1of4-2.26.5.0": {"node_id": 1},
    "trn3s.48xlarge-2.26.5.0": {"node_id": 1, "nodes": 2, "server_id": "1"},
    "trn3s.48xlarge-4nodes-defaultid-2.26.5.0": {"node_id": 1, "server_id": "1"},
}
"""How a captured node differs from what `fake-node` writes by default."""

VARYING: Final = (
    (r"/info/serial_number$", r"^[0-9a-f]{16}$", "SERIAL"),
    (r"/stats/power/utilization$", r"(VALID|NO_DATA),\d+(?=,0\.00)", "STATUS,TIME"),
    (r"/memory_usage/", r"^\d+$", "BYTES"),
    (r"/(dev|uevent)$", r"^(MAJOR=)?245(?=[:\n])", r"\g<1>MAJOR"),
    (r"/(coresize|srcversion)$", r"^[0-9A-F]+$", "OF THE BUILD"),
    (r"/parameters/", r"^\d+$", "NUMBER"),
)
"""Contents that differ between machines: of which files, the part that differs, and what stands for it."""


def simulated(name: str, root: Path) -> SimulatedNode:
    """Write the simulated node that corresponds to a captured tree."""
    instance_type, *_, version = name.split("-")
    missing = set(range(16)) - set(captures.device_ids(captures.tree(name))) if "15of16" in name else set()
    return simulated_node.write(
        root, instance_type, driver_version=version, major=245, missing=missing, statistics=has_statistics(name),
        **SITUATIONS.get(name, {}),
    )  # fmt: skip


def has_statistics(name: str) -> bool:
    """Return whether the statistics are compared: on nodes with few devices, because a Trn2 has 13,000 files."""
    return len(captures.device_ids(captures.tree(name))) <= 4


def written(root: Path) -> dict[str, Entry]:
    """Return what is below the compared folders of a simulated node."""
    entries = {}
    for folder in COMPARED:
        for path in [root / folder, *(root / folder).rglob("*")]:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                entry = Entry("l", 0o777, os.readlink(path))
            elif stat.S_ISDIR(mode):
                entry = Entry("d", stat.S_IMODE(mode))
            else:
                is_readable = stat.S_IMODE(mode) != 0o200
                entry = Entry("f", stat.S_IMODE(mode), path.read_text() if is_readable else None)
            entries[str(path.relative_to(root))] = entry
    return entries


def compared(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries that both sides have, without what differs between machines."""
    found = {}
    for path, entry in entries.items():
        if not path.startswith(COMPARED) or path in KERNEL:
            continue
        text = entry.text
        if getattr(entries.get(f"{helper.VIRTUAL}/neuron0/info/architecture/instance_type"), "text", "") == "Inf1\n":
            text = _without_links(path, text)
        for of_files, part, stands_for in VARYING:
            if entry.kind == "f" and text is not None and re.search(of_files, path):
                text = re.sub(part, stands_for, text)
        found[path] = Entry(entry.kind, entry.mode, text)
    return found


def _without_links(path: str, text: str | None) -> str | None:
    """Return a content without the links of an Inferentia1, which are those of the emulated PCI functions."""
    return "LINKS" if path.endswith("/connected_devices") else text


def is_compared(path: str, name: str, captured: Mapping[str, Entry]) -> bool:
    """Return False for statistics that are left out here, or of the captures, which have those of a device's core 0."""
    statistic = re.match(rf"({helper.VIRTUAL}/neuron\d+/(?:neuron_core\d+/)?stats)(?:/(?!hardware|power)|$)", path)
    if statistic is None or path in captured:
        return has_statistics(name) or statistic is None or path == statistic[1]
    return has_statistics(name) and f"{statistic[1]}/status" in captured


def differences(name: str, root: Path) -> list[str]:
    captured, fake = compared(captures.tree(name)), compared(written(simulated(name, root).root))
    found = []
    for path in sorted(captured.keys() | fake.keys()):
        if is_compared(path, name, captured) and captured.get(path) != fake.get(path):
            found.append(f"{path}: the driver {captured.get(path)}, fake-node {fake.get(path)}")
    return found


@pytest.mark.parametrize("name", captures.names())
def test_fake_node_writes_what_the_driver_writes(name: str, tmp_path: Path) -> None:
    assert differences(name, tmp_path) == []


def facts(name: str) -> NodeFacts:
    return sysfs.facts(captures.read(captures.tree(name)))


def slices(read: NodeFacts) -> list[dict[str, Any]]:
    """Return the devices that are published, without the NUMA nodes, which are the emulation's."""
    node = topology.build(read, NodeLabels())
    published = devices.published(node, driver_version="1", ultraserver_devices="devices")
    without_numa = [
        replace(device, attributes={k: v for k, v in device.attributes.items() if k != names.NUMA_NODE})
        for device in published
    ]
    return [device.to_wire() for device in without_numa]


FINDINGS: Final = {
    "trn1.32xlarge-15of16-2.26.5.0": ["links-not-reported", "missing-device"],
    "trn2u.48xlarge-15of16-2.26.5.0": ["links-not-reported", "missing-device", "ultraserver-busy"],
    "trn3.48xlarge-2.26.5.0": ["ultraserver-mode-empty"],
    "trn3e.24xlarge-2.26.5.0": ["missing-device", "ultraserver-mode-empty", "unexpected-device"],
}
"""What the plugin reports of a captured node; of all others nothing."""


@pytest.mark.parametrize("name", captures.names())
def test_captured_node_has_only_its_own_findings(name: str) -> None:
    node = topology.build(facts(name), NodeLabels())
    assert [finding.kind for finding in node.findings] == FINDINGS.get(name, [])


ALIKE: Final = [name for name in captures.names() if not name.startswith("trn3")]


@pytest.mark.parametrize("name", ALIKE)
def test_captured_node_publishes_what_the_simulated_one_does(name: str, tmp_path: Path) -> None:
    simulated(name, tmp_path)
    fake = sysfs.read_node(tmp_path)
    assert slices(facts(name)) == slices(fake)
    assert len(slices(fake)) == len(captures.device_ids(captures.tree(name)))
