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
    found: dict[str, list[tuple[str, int | None]]] = {}
    for node in nodes:
        for device in node.devices:
            for holder in device.holders:
                found.setdefault(str(holder), []).append((node.name, device.number))
    return [DeviceUser(name, tuple(devices)) for name, devices in found.items()]


def matrix(world: World, nodes: Sequence[NodeView]) -> list[list[str]]:
    """Return the table pod by pod, with a header; the first column has the names. Empty for fewer than two pods."""
    found = users(nodes)
    if len(found) < 2:
        return []
    by_name = {node.name: node for node in nodes}
    rows = [["", *(_short(number) for number in range(len(found)))]]
    for number, one in enumerate(found):
        cells = []
        for other in found:
            cells.append("X" if one is other else _class(world, by_name, one, other))
        rows.append([f"{_short(number)} {one.name}", *cells])
    return rows


def _short(number: int) -> str:
    return f"P{number}"


def _class(world: World, nodes: dict[str, NodeView], one: DeviceUser, other: DeviceUser) -> str:
    order = list(MEANINGS)
    found = set()
    for a, first in one.devices:
        for b, second in other.devices:
            found.add(_between(world, nodes[a], first, nodes[b], second))
    return min(found, key=order.index)


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
        values = {each.get(names.NETWORK_LAYER_LABELS[layer - 1]) for each in labels}
        if len(values) == 1 and None not in values:
            return f"L{layer}"
    return "-"


def _in_ultraserver(a: NodeView, b: NodeView) -> str:
    if a.spec is not None and a.spec.shape == "switch":
        return "NS"
    pair = {a.position, b.position}
    for way, letter in (("vertical", "V"), ("horizontal", "H")):
        if any(pair == set(each) for each in PAIRS[way]):
            if getattr(a, way) and getattr(b, way):
                return letter
            return "-"
    return "VH"


@cache
def distances(links: tuple[tuple[int, ...], ...], start: int) -> dict[int, int]:
    """Return the number of links between a device and each other one."""
    found, left = {start: 0}, deque([start])
    while left:
        here = left.popleft()
        for there in links[here] if here < len(links) else ():
            if there not in found:
                found[there] = found[here] + 1
                left.append(there)
    return found
