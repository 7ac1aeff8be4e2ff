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
    for a, first in user.devices:
        for b, second in other_user.devices:
            classes.add(_between(world, nodes[a], first, nodes[b], second))
    return min(classes, key=order.index)


def _between(world: World, a: NodeView, first: int | None, b: NodeView, second: int | None) -> str:
    if a.name == b.name:
        if a.spec is None or first is None or second is None:
            return "N"
        if a.spec.shape == "switch":
            return "NS"
        hops = distances(a.spec.links, first).get(second)
        if hops is not None:
            return f"NL{min(max(hops, 1), 4)}"
        return "N"
    if a.ultraserver and a.ultraserver == b.ultraserver:
        return _in_ultraserver(a, b)
    labels = [world.nodes[node.name]["metadata"].get("labels") or {} for node in (a, b)]
    for layer in (3, 2, 1):
        values = {node_labels.get(names.NETWORK_LAYER_LABELS[layer - 1]) for node_labels in labels}
        if len(values) == 1 and None not in values:
            return f"L{layer}"
    return "-"


def _in_ultraserver(a: NodeView, b: NodeView) -> str:
    if a.spec is not None and a.spec.shape == "switch":
        return "NS"
    pair = {a.position, b.position}
    for way, letter in (("vertical", "V"), ("horizontal", "H")):
        if any(pair == set(linked_positions) for linked_positions in PAIRS[way]):
            if getattr(a, way) and getattr(b, way):
                return letter
            return "-"
    return "VH"


@cache
def distances(links: tuple[tuple[int, ...], ...], start: int) -> dict[int, int]:
    """Return the number of links between a device and each other one."""
    hops_by_device, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in links[here] if here < len(links) else ():
            if there not in hops_by_device:
                hops_by_device[there] = hops_by_device[here] + 1
                queue.append(there)
    return hops_by_device
