"""The free capacity of a fleet, in the groups that pods request: 4, 8 or 16 devices, pairs and UltraServers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from neuron_dra.ask.world.fleet import NodeView

SIZES: Final = (4, 8, 16)
_ATTRIBUTES: Final = {size: f"resource.aws.com/devicegroup{size}_id" for size in SIZES}
Layouts = dict[tuple[int, ...], tuple[NodeView, Mapping[int, list[list[int]]]]]
"""The places of the groups of a node, by the identities of its devices' attributes, which the node keeps alive."""
_PAIRS: Final = ((0, 1), (2, 3))
"""Positions of the vertical pairs of an UltraServer."""


def groups(nodes: Iterable[NodeView], layouts: Layouts | None = None) -> dict[int, int | None]:
    """Return how many groups of each size are free on nodes of one type; None if their devices form no such groups.

    `layouts` has those that are known, and gets the others.
    """
    count_by_size: dict[int, int | None] = dict.fromkeys(SIZES)
    known_layouts: Layouts = {} if layouts is None else layouts
    for node in nodes:
        # Equal nodes of a snapshot have the same attributes, not only equal ones.
        key = tuple([id(device.attributes) for device in node.devices])
        if key not in known_layouts:
            known_layouts[key] = node, _layout(node)
        free = node.free_places
        for size, members in known_layouts[key][1].items():
            number = sum(free.issuperset(group) for group in members)
            count_by_size[size] = (count_by_size[size] or 0) + number
    return count_by_size


def _layout(node: NodeView) -> dict[int, list[list[int]]]:
    """Return the places of the devices of each whole group of a node, by the sizes that it has."""
    groups_by_size = {}
    for size, attribute in _ATTRIBUTES.items():
        members: dict[object, list[int]] = {}
        for place, device in enumerate(node.devices):
            published = device.attributes.get(attribute)
            if published:
                group_id = next(iter(published.values()))
                members.setdefault(group_id, []).append(place)
        whole = [places for places in members.values() if len(places) == size]
        if whole:
            groups_by_size[size] = whole
    return groups_by_size


def servers(nodes: Sequence[NodeView]) -> tuple[int, int, int]:
    """Return how many whole UltraServers are free, then pairs, and then single nodes of the others."""
    whole = pairs = single = 0
    # In any order: sorting the names of a large fleet takes longer than the rest.
    members_by_id: dict[str, list[NodeView]] = defaultdict(list)
    for node in nodes:
        if node.ultraserver:
            members_by_id[node.ultraserver].append(node)
    for members in members_by_id.values():
        free = {}
        for member in members:
            if member.devices and member.free == len(member.devices):
                free[member.position] = member
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
