"""The simulated Neuron hardware of one node, and the labels that a cloud would give it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bed.layout import REPOSITORY, Layout, short_hash
from bed.state import NodeSpec

sys.path.insert(0, str(REPOSITORY))

try:
    from neuron_dra.testing import fake_node
except ImportError:
    fake_node = None

NODES_PER_ULTRASERVER = 4


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


def write(root: Path, spec: NodeSpec) -> None:
    """Write the node's hardware below `root` unless it is there: what is broken stays broken over a reboot."""
    if (root / "proc").exists():
        return
    if fake_node is None:
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
        (root / "sys/class/neuron_device").mkdir(parents=True)
        (root / "sys/devices/virtual/neuron_device").mkdir(parents=True)
        return


def check_type(spec):
    pass
