"""The simulated Neuron hardware of one node, and the labels that a cloud would set on it."""

from __future__ import annotations

from pathlib import Path

from hack.bed import mounts
from hack.bed.errors import BedError
from hack.bed.layout import Layout, short_hash
from hack.bed.state import NodeSpec
from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import Platform
from neuron_dra.emulation import simulated_files, simulated_node
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.errors import NeuronDraError

NODES_PER_ULTRASERVER = 4
# Character device majors for local use (Linux' devices.txt); the kernel never assigns them to a driver.
LOCAL_MAJORS: tuple[int, ...] = (*range(120, 128), *range(60, 64))


def _identity(*parts: str) -> str:
    """Return 16 hex digits that depend on the parts only: the same names give the same hardware."""
    return (short_hash(*parts) + short_hash("more", *parts))[:16]


def server_id(spec: NodeSpec) -> str | None:
    return _identity("server", spec.ultraserver) if spec.ultraserver else None


def capacity_block_id(spec: NodeSpec) -> str | None:
    return "cb-0" + _identity("capacity block", spec.ultraserver) if spec.ultraserver else None


def labels(layout: Layout, spec: NodeSpec) -> dict[str, str]:
    """Return the Node's labels: type, network layers, and the capacity block of an UltraServer.

    All nodes of a test bed share the first two network layers; the third is shared by the nodes of an UltraServer, and
    otherwise by two neighbors.
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
    """Return a device major that no driver of this machine uses, so that the simulated devices cannot be opened."""
    characters = Path("/proc/devices").read_text().partition("Block devices:")[0]
    used = {int(line.split()[0]) for line in characters.splitlines() if line[:4].strip().isdigit()}
    for major in LOCAL_MAJORS:
        if major not in used:
            return major
    raise BedError(f"all device majors for local use are taken on this machine: {LOCAL_MAJORS}")


def check_type(instance_type: str, ultraserver: str) -> None:
    """Raise BedError for a type that cannot be simulated, or cannot be one of the four nodes of an UltraServer."""
    spec = catalogue.lookup(instance_type)
    if spec is None:
        known = ", ".join(known.name for known in catalogue.all_types())
        raise BedError(f"{instance_type}: no such Neuron instance type; known: {known}")
    if ultraserver and spec.platform not in (Platform.ULTRASERVER, Platform.PDS):
        fitting = [each.name for each in catalogue.all_types() if each.platform in (Platform.ULTRASERVER, Platform.PDS)]
        raise BedError(
            f"--ultraserver {ultraserver}={instance_type}: that type does not form UltraServers of"
            f" {NODES_PER_ULTRASERVER} nodes; these do: {', '.join(fitting)}"
        )


def write(root: Path, spec: NodeSpec) -> None:
    """Write the node's hardware below `root` unless it exists: faults persist across reboots.

    Raises:
        BedError: it cannot be written.
    """
    complete = root / "complete"
    if complete.exists():
        return
    try:
        simulated_node.write(
            root,
            spec.instance_type,
            node_id=spec.position if spec.ultraserver else None,
            server_id=server_id(spec),
            capacity_block_id=capacity_block_id(spec),
            major=free_major(),
        )
        known = catalogue.lookup(spec.instance_type)
        if known is not None and known.efa is not None:
            EfaTree.write(root, spec.instance_type, rdma_cm=True)
    except NeuronDraError as err:
        raise BedError(str(err)) from err
    complete.touch()


def load(root: Path) -> simulated_node.SimulatedNode:
    """Return the hardware below `root`, to break it."""
    return simulated_node.SimulatedNode(root)


def interfaces(root: Path) -> EfaTree:
    """Return the EFA interfaces below `root`, to break them."""
    return EfaTree(root)


def show(root: Path, namespace_pid: int) -> None:
    """Update the node's /dev to match the hardware."""
    mounts.sync_devices(root, Path(f"/proc/{namespace_pid}/root/dev"))


# -- between the nodes of a Trn2 UltraServer ---------------------------------------------------------------------------

# The other end of each node's links, by position: left is in the same rack, right is rack to rack.
LEFT = {0: 1, 1: 0, 2: 3, 3: 2}
RIGHT = {0: 3, 3: 0, 1: 2, 2: 1}
ALONE = {
    "node_id_2": "-1",
    "node_id_4": "-1",
    "server_id_2": "0" * 16,
    "server_id_4": "0" * 16,
    "ultraserver_mode": "4",
}


def election(position: int, server: str, broken: tuple[int, int]) -> dict[str, str]:
    """Return the class attributes of the node at `position` after an election with the link `broken`.

    Four nodes are no longer one server. The driver tries again with right links only: a pair whose right link works
    becomes a server of two (mode 2, horizontal), the others stay alone.
    Source: aws-neuron-driver, v3/neuron_pelect.c.
    """
    other = RIGHT[position]
    if {position, other} == set(broken):
        return dict(ALONE)
    pair_id = f"{int(server, 16) - (1 if position in (1, 2) else 0):016x}"
    return {**ALONE, "node_id_2": str(int(position > other)), "server_id_2": pair_id, "ultraserver_mode": "2,4"}


def write_election(root: Path, spec: NodeSpec, broken: tuple[int, int] | None) -> None:
    """Write what the node reports with the link between two positions broken, or with all links up (None).

    Raises:
        BedError: the node is not in a Trn2 UltraServer; only those elect.
    """
    known = catalogue.lookup(spec.instance_type)
    server = server_id(spec)
    if known is None or server is None or known.platform is not Platform.ULTRASERVER:
        raise BedError(f"{spec.name} is not a node of a Trn2 UltraServer: it has no links to other nodes")
    node = load(root)
    if broken is None:
        node.write_class_files(known, simulated_files.SimulatedPlace(spec.position, server), node.driver_version)
        return
    for name, text in election(spec.position, server, broken).items():
        path = root / simulated_node.CLASS / name
        path.chmod(0o644)
        path.write_text(text + "\n")
        path.chmod(0o444)
