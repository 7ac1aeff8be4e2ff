"""How close pods are: the class of the best link between the devices of two pods. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import PAIRS
from neuron_dra.ask.world.world import World
from neuron_dra.core import names

MEANINGS: Final = {
    "D": "parts of one device",
    "NL1": "NeuronLink, devices of one node that are neighbors",
    "NL2": "NeuronLink of one node, over one device between them",
    "NL3": "NeuronLink of one node, over two devices between them",
    "NL4": "NeuronLink of one node, over three devices between them",
    "NS": "NeuronLink through the switch of one node or UltraServer",
    "V": "NeuronLink between nodes, vertical",
    "H": "NeuronLink between nodes, horizontal",
    "VH": "NeuronLink between nodes, over a node between them",
    "L3": "network, same nearest layer (network-node-layer-3)",
    "L2": "network, same middle layer (network-node-layer-2)",
    "L1": "network, same farthest layer (network-node-layer-1)",
    "N": "one node, without a NeuronLink",
    "-": "network, layers unknown or different",
}


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A pod or claim, and the devices that it holds by node."""

    name: str
    devices: tuple[tuple[str, int | None], ...]


def users(nodes: Sequence[NodeView]) -> list[DeviceUser]:
    """Return who holds devices of these nodes."""
    devices_by_holder: dict[str, list[tuple[str, int | None]]] = {}
    for node in nodes:
        for device in node.devices:
            for holder in device.holders:
                devices_by_holder.setdefault(str(holder), []).append((node.name, device.number))
    return [DeviceUser(name, tuple(devices)) for name, devices in devices_by_holder.items()]


def matrix(world: World, nodes: Sequence[NodeView]) -> list[list[str]]:
    """Return the table pod by pod, with a header; the first column has the names. Empty for fewer than two pods."""
    device_users = users(nodes)
    if len(device_users) < 2:
        return []
    by_name = {node.name: node for node in nodes}
    rows = [["", *(_short(number) for number in range(len(device_users)))]]
    for number, user in enumerate(device_users):
        cells = []
        for other_user in device_users:
            cells.append("X" if user is other_user else _class(world, by_name, user, other_user))
        rows.append([f"{_short(number)} {user.name}", *cells])
    return rows


def _short(number: int) -> str:
    return f"P{number}"


def _class(world: World, nodes: dict[str, NodeView], user: DeviceUser, other_user: DeviceUser) -> str:
    order = list(MEANINGS)
    classes = set()
    for node_name, device in user.devices:
        for other_node_name, other_device in other_user.devices:
            classes.add(_between(world, nodes[node_name], device, nodes[other_node_name], other_device))
    return min(classes, key=order.index)


def _between(world: World, node: NodeView, device: int | None, other_node: NodeView, other_device: int | None) -> str:
    if node.name == other_node.name:
        if node.spec is None or device is None or other_device is None:
            return "N"
        if device == other_device:
            return "D"
        if node.spec.shape == "switch":
            return "NS"
        hops = distances(node.spec.links, device).get(other_device)
        if hops is not None:
            return f"NL{min(hops, 4)}"
        return "N"
    if node.ultraserver and node.ultraserver == other_node.ultraserver:
        return _in_ultraserver(node, other_node)
    labels = [world.nodes[view.name]["metadata"].get("labels") or {} for view in (node, other_node)]
    for layer in (3, 2, 1):
        values = {node_labels.get(names.NETWORK_LAYER_LABELS[layer - 1]) for node_labels in labels}
        if len(values) == 1 and None not in values:
            return f"L{layer}"
    return "-"


def _in_ultraserver(node: NodeView, other_node: NodeView) -> str:
    if node.spec is not None and node.spec.shape == "switch":
        return "NS"
    pair = {node.position, other_node.position}
    for way, letter in (("vertical", "V"), ("horizontal", "H")):
        if any(pair == set(linked_positions) for linked_positions in PAIRS[way]):
            if getattr(node, way) and getattr(other_node, way):
                return letter
            return "-"
    return "VH"


@cache
def distances(links: tuple[tuple[int, ...], ...], start: int) -> dict[int, int]:
    """Return the number of links between a device and each other one."""
    hops_by_device, queue = {start: 0}, deque([start])
    while queue:
        device = queue.popleft()
        for neighbor in links[device] if device < len(links) else ():
            if neighbor not in hops_by_device:
                hops_by_device[neighbor] = hops_by_device[device] + 1
                queue.append(neighbor)
    return hops_by_device
