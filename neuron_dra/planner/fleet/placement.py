"""Chooses the nodes of a workload: slots of 1, 2 or 4 nodes, so that whole UltraServers stay free. Pure.

A slot's nodes have consecutive numbers from a multiple of its size, so a pair is {0, 1} or {2, 3}. The kernel driver
numbers the nodes so that these share a rack. Nodes of two racks form a pair only if both publish it.
"""

from __future__ import annotations

import datetime
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.discovery import Group
from neuron_dra.planner.observed.model import NODE_NAMES_SHOWN, PublishedNode, Workload, shortened

KINDS = ("neuron_node", "neuron_device")
"""The resourceTypes that nodes publish. A workload gets nodes of one of them, because its template requests one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Free nodes of one UltraServer with the links between them.

    - `kind`: the resourceType that the nodes publish.
    - `nodes`: names in the order of their ranks.
    - `layers`: networkNodeLayer1 to 3, the widest first; None where nodes differ.
    - `free_nodes`: free nodes of its UltraServer, including this slot's.
    - `free_neighbours`: free nodes of the pairs that it is in, including this slot's.
    - `first_id`: the number of its first node in the UltraServer.
    - `until`: when the first capacity block of its nodes ends; None if that is not known of any.
    - `passed_at`, `unqualified`: what tests found of its nodes.
    - `fit`: the sort key; the best fit, which leaves the fewest free nodes around it, is the smallest.
    """

    ultraserver: str
    kind: str
    nodes: tuple[str, ...]
    layers: tuple[str | None, ...]  # networkNodeLayer1 to 3, the widest first; None where nodes differ
    free_nodes: int  # free nodes of its UltraServer, including this slot's
    free_neighbours: int  # free nodes of the pairs that it is in, including this slot's
    first_id: int
    until: datetime.datetime | None = None  # when the first capacity block of its nodes ends
    passed_at: datetime.datetime | None = None  # when a test of all its nodes last passed
    unqualified: bool = False  # tests failed twice on nodes of it

    fit: tuple[int, int, str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = self.free_nodes, self.free_neighbours, self.ultraserver, self.first_id
        object.__setattr__(self, "fit", key)  # kept, because thousands of slots are sorted by it


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a workload waits: a reason in CamelCase for the condition Ready, and a message with numbers."""

    reason: str
    message: str


def slots(groups: Iterable[Group], taken: Container[str], instance_type: str, size: int) -> tuple[Slot, ...]:
    """Return every free slot of this size in `groups`; slots do not overlap.

    `taken` has the names of nodes that are not free. A slot needs one resourceType, one hardware id, and the links
    between its nodes.
    """
    free_slots = []
    for group in groups:
        if group.instance_type != instance_type:
            continue
        free = {number: node for number, node in group.usable.items() if node.name not in taken}
        for first in sorted({number // size * size for number in free}):
            nodes = [free[number] for number in range(first, first + size) if number in free]
            if len(nodes) == size and _work_together(nodes, size):
                pairs = range(first // 2, (first + size + 1) // 2)
                free_slots.append(
                    Slot(
                        ultraserver=group.name,
                        kind=nodes[0].kind,
                        nodes=tuple(node.name for node in nodes),
                        layers=_layers(nodes),
                        free_nodes=len(free),
                        free_neighbours=sum(number // 2 in pairs for number in free),
                        first_id=first,
                        until=_first_end(group, nodes),
                        **_tested(group, nodes),
                    )
                )
    return tuple(free_slots)


def _first_end(group: Group, nodes: Sequence[PublishedNode]) -> datetime.datetime | None:
    """Return when the first capacity block of these nodes ends; None if that is not known of any."""
    if not group.ends:
        return None
    return min((group.ends[node.name] for node in nodes if node.name in group.ends), default=None)


def _tested(group: Group, nodes: Sequence[PublishedNode]) -> dict[str, Any]:
    if not group.results:
        return {}
    node_names = {node.name for node in nodes}
    return {
        "passed_at": results.passed_at(group.results, node_names),
        "unqualified": not node_names.isdisjoint(results.unqualified(group.results)),
    }


def _work_together(nodes: Sequence[PublishedNode], size: int) -> bool:
    """Return True if nodes with consecutive numbers form a slot: one resourceType, one UltraServer, links up."""
    if size == 1:
        return size in nodes[0].sizes
    if any(size not in node.sizes for node in nodes) or len({node.kind for node in nodes}) != 1:
        return False
    if len({node.hardware_id for node in nodes if node.hardware_id}) > 1:
        return False
    if size > 2:
        return all(links_up(node, size, nodes) for node in nodes)
    pair_ids = {node.server_id_2 for node in nodes if node.server_id_2}
    return len(pair_ids) <= 1 and all(links_up(node, size, nodes) for node in nodes)


def links_up(node: PublishedNode, size: int, slot: Sequence[PublishedNode]) -> bool | None:
    """Return True if a node has the links that a slot of `size` nodes needs; None while its driver reports busy.

    `slot` are the nodes of the slot that publish. A pair needs the link inside its rack, or the one between the racks
    if both nodes offer that and publish the same pair. A node in a group of four offers no pair between the racks.
    """
    if size == 1:
        return True
    if node.has_link_fault:
        return False
    if not node.sizes:
        return None
    if size not in node.sizes:
        return False
    if size > 2 or node.vertical:
        return True
    offers_pair = node.horizontal and 4 not in node.sizes
    if offers_pair and {published.server_id_2 for published in slot} == {node.server_id_2} - {None}:
        return True
    return None if node.vertical is None else False


def _layers(nodes: Sequence[PublishedNode]) -> tuple[str | None, ...]:
    """Return the network layers that these nodes share, the widest first; None for one that differs."""
    if len(nodes) == 1:
        return nodes[0].layers
    shared: list[str | None] = []
    for level in range(3):
        values = {node.layers[level] for node in nodes}
        shared.append(next(iter(values)) if len(values) == 1 else None)
    return tuple(shared)


def most_of_a_kind(numbers: Mapping[str, int]) -> int:
    """Return how many slots one workload could have: its nodes have one resourceType. `numbers` are by resourceType."""
    return max(numbers.get(kind, 0) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Tally:
    """The nodes of all UltraServers of one instance type: what a shortage's message says about the fleet.

    - `instance_types`: those of all UltraServers, only if there are none of this type.
    - `ultraservers`, `nodes`, `free`: their number, that of their nodes, and of those that are free.
    - `parts`: UltraServer and number of its free nodes, by name, without those that have none.
    - `cordoned`: the names of cordoned nodes.
    - `spares`: the number of nodes that are spares, which are not counted as free.
    """

    instance_types: Sequence[str]
    ultraservers: int
    nodes: int
    free: int
    parts: Sequence[tuple[str, int]]
    cordoned: Sequence[str]
    spares: int = 0


def shortage(counted: Tally, workload: Workload, free_count: int, count: int) -> Shortage:
    """Return why `count` more slots are not available, with numbers; `free_count` of one resourceType are free.

    - NoUltraServers: no UltraServer has the instance type.
    - CapacitySplit: enough nodes are free, but not in slots of this size.
    - InsufficientCapacity: too few nodes are free.

    The message names cordoned nodes and counts spares, which are not free.
    """
    instance_type = workload.instance_type
    request = f"{count} x {workload.size} {instance_type} node{'s' if count * workload.size > 1 else ''}"
    if not counted.ultraservers:
        available = (
            f"; UltraServers here are of type {', '.join(counted.instance_types)}" if counted.instance_types else ""
        )
        return Shortage(
            Reason.NO_ULTRASERVERS, f"needs {request}, and no UltraServer of this type was discovered{available}"
        )
    short = (count - free_count) * workload.size
    text = f"needs {request}; {free_count} of {count} groups of {workload.size} are free: short of {short} nodes"
    also = f"; cordoned: {shortened(counted.cordoned)}" if counted.cordoned else ""
    if counted.spares:
        also += f"; {counted.spares} nodes are spares, which only groups that must move may take (--spares)"
    if counted.free >= count * workload.size and workload.size > 1:
        number = len(counted.parts)
        parts = [f"{ultraserver_name} has {free}" for ultraserver_name, free in counted.parts[:NODE_NAMES_SHOWN]]
        return Shortage(
            Reason.CAPACITY_SPLIT,
            f"{text}; {counted.free} nodes are free, but split over {number} UltraServer{'s' if number > 1 else ''} or "
            f"without the links: {shortened(parts, number)}{also}",
        )
    return Shortage(Reason.INSUFFICIENT_CAPACITY, f"{text}; {counted.free} of {counted.nodes} nodes are free{also}")
