"""The simulated Neuron hardware of one node, and the labels that a cloud would give it."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from bed import mounts
from bed.errors import BedError
from bed.layout import REPOSITORY, Layout, short_hash
from bed.state import NodeSpec

sys.path.insert(0, str(REPOSITORY))

try:
    from neuron_dra.testing import fake_node
except ImportError:
    from bed import fake_node_shim as fake_node

NODES_PER_ULTRASERVER = 4
# Character device majors for local use (Linux' devices.txt); the kernel never hands them to a driver by itself.
LOCAL_MAJORS = (*range(120, 128), *range(60, 64))


def _identity(*parts: str) -> str:
    """Return 16 hex digits made of the parts: the same names give the same hardware."""
    return (short_hash(*parts) + short_hash("more", *parts))[:16]


def server_id(spec: NodeSpec) -> str | None:
    return _identity("server", spec.ultraserver) if spec.ultraserver else None


def capacity_block_id(spec: NodeSpec) -> str | None:
    return "cb-0" + _identity("capacity block", spec.ultraserver) if spec.ultraserver else None


def labels(layout: Layout, spec: NodeSpec) -> dict[str, str]:
    """Return the Node's labels: type, network layers, and the capacity block of an UltraServer.

    All nodes of a test bed share the first two network layers; the third is shared by the nodes of an UltraServer, and
    otherwise by two neighbours.
    """
    near = spec.ultraserver or f"pair {(spec.index - 1) // 2}"
    result = {
        "node.kubernetes.io/instance-type": spec.instance_type,
        "topology.k8s.aws/network-node-layer-1": "nn-0" + _identity(layout.name, "1"),
        "topology.k8s.aws/network-node-layer-2": "nn-0" + _identity(layout.name, "2"),
        "topology.k8s.aws/network-node-layer-3": "nn-0" + _identity(layout.name, "3", near),
    }
    block = capacity_block_id(spec)
    return result if block is None else {**result, "topology.k8s.aws/capacity-block-id": block}


def free_major() -> int:
    """Return a device major that no driver of this machine uses: nobody can open the simulated devices."""
    characters = Path("/proc/devices").read_text().partition("Block devices:")[0]
    used = {int(line.split()[0]) for line in characters.splitlines() if line[:4].strip().isdigit()}
    for major in LOCAL_MAJORS:
        if major not in used:
            return major
    raise BedError(f"all device majors for local use are taken on this machine: {LOCAL_MAJORS}")


def check_type(instance_type: str, ultraserver: str) -> None:
    """Raise BedError for a type that cannot be simulated, or cannot be part of an UltraServer."""
    if instance_type not in fake_node.COUNTS:
        raise BedError(f"{instance_type}: no such Neuron instance type; known: {', '.join(fake_node.COUNTS)}")


def write(root: Path, spec: NodeSpec) -> None:
    """Write the node's hardware below `root` unless it is there: what is broken stays broken over a reboot."""
    complete = root / "complete"
    if not complete.exists():
        fake_node.write(
            root,
            spec.instance_type,
            node_id=spec.position if spec.ultraserver else None,
            server_id=server_id(spec),
            capacity_block_id=capacity_block_id(spec),
            boot_id=str(uuid.uuid4()),
            major=free_major(),
        )
        complete.touch()


def load(root: Path) -> fake_node.FakeNode:
    """Return the hardware below `root`, to break it."""
    return fake_node.FakeNode(root)


def show(root: Path, namespace_pid: int) -> None:
    """Make the node's /dev follow the hardware."""
    mounts.sync_neuron_devices(root, Path(f"/proc/{namespace_pid}/root/dev"))
