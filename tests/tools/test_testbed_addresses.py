"""The addresses of the test bed's nodes and pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.bed import layout, node_config
from hack.bed.controlplane import ControlPlane
from hack.bed.node import Node
from hack.bed.processes import Processes
from hack.bed.state import NodeSpec, State

HERE = layout.Layout("some-bed", True, Path("/nowhere"), Path("/nowhere"))


def node(spec: NodeSpec) -> Node:
    state = State(HERE.state_file)
    processes = Processes(HERE, state)
    return Node(HERE, state, processes, ControlPlane(HERE, state, processes), spec)


def ipam(folder: Path, spec: NodeSpec) -> dict[str, Any]:
    """Return how the pods of a node get their addresses."""
    node_config.write_cni(folder, *node(spec).pod_subnets)
    [plugin] = json.loads((folder / "10-testbed.conflist").read_text())["plugins"]
    found: dict[str, Any] = plugin["ipam"]
    return found


def test_node_and_its_pods_have_ipv4_addresses(tmp_path: Path) -> None:
    spec = NodeSpec("a", "trn2.48xlarge", 17)
    assert node(spec).addresses == ["10.89.0.17"]
    assert ipam(tmp_path, spec) == {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.17.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",
    }


def test_node_with_ipv6_and_its_pods_have_that_address_first(tmp_path: Path) -> None:
    spec = NodeSpec("a", "trn2.48xlarge", 17, ipv6=True)
    assert (node(spec).address, node(spec).addresses) == ("fd00:89::11", ["fd00:89::11", "10.89.0.17"])
    assert ipam(tmp_path, spec) == {
        "type": "host-local",
        "ranges": [[{"subnet": "fd00:88:0:11::/64"}], [{"subnet": "10.88.17.0/24"}]],
        "routes": [{"dst": "::/0"}, {"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni",
    }
