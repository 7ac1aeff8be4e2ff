"""The free capacity of a fleet, in the groups that pods request: 4, 8 or 16 devices, pairs and UltraServers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from neuron_dra.ask.world import fleet
from neuron_dra.ask.world.fleet import NodeView

SIZES: Final = (4, 8, 16)
_ATTRIBUTES: Final = {size: f"resource.aws.com/devicegroup{size}_id" for size in SIZES}
_PAIRS: Final = ((0, 1), (2, 3))
"""Positions of the vertical pairs of an UltraServer."""


def groups(nodes: Iterable[NodeView]) -> dict[int, int | None]:
    """Return how many groups of each size are free on nodes of one type; None if their devices form no such groups."""
    found: dict[int, int | None] = dict.fromkeys(SIZES)
    for node in nodes:
        usable = bool(node.free)
        free = [device.free and usable for device in node.devices]
        for size, attribute in _ATTRIBUTES.items():
            number = _free_groups(node, size, attribute, free)
            if number is not None:
                found[size] = (found[size] or 0) + number
    return found


def _free_groups(node: NodeView, size: int, attribute: str, free: Sequence[bool]) -> int | None:
    """Return how many groups of a node are free; None if it has none of this size."""
    members: dict[object, int] = {}
    left: dict[object, int] = {}
    for device, is_free in zip(node.devices, free, strict=True):
        published = device.attributes.get(attribute)
        if published:
            value = next(iter(published.values()))
            members[value] = members.get(value, 0) + 1
            left[value] = left.get(value, 0) + is_free
    whole = [value for value, number in members.items() if number == size]
    return sum(left[value] == size for value in whole) if whole else None


def servers(nodes: Sequence[NodeView]) -> tuple[int, int, int]:
    """Return how many whole UltraServers are free, then pairs, and then single nodes of the others."""
    whole = pairs = single = 0
    for members in fleet.ultraservers(nodes).values():
        free = {member.position: member for member in members if member.devices and member.free == len(member.devices)}
        up = all(member.vertical is not False and member.horizontal is not False for member in members)
        if up and len(free) == 4:
            whole += 1
            continue
        for pair in _PAIRS:
            ends = [free[place] for place in pair if place in free]
            linked = len(ends) == 2 and all(end.vertical is not False for end in ends)
            pairs += linked
            single += 0 if linked else len(ends)
    return whole, pairs, single
