"""The pool of spares: free groups of four nodes that only groups which must move may take. Pure.

Which groups are spares is written nowhere: it follows from the free groups at each point of a plan. So every leader
chooses the same, and the next free group takes the place of a spare that was taken, or that gets a fault, before any
workload that waits. A group on which a test runs counts as free, because tests yield.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from neuron_dra.core import catalogue
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.placement import KINDS, Slot
from neuron_dra.planner.fleet.places import Overlay, Places, everywhere

SIZE: Final = 4
"""The number of nodes of a spare: a group of any size finds its place there."""

COMPARED: Final = 64
"""The groups among which those that passed a test become spares first."""

Numbers = tuple[tuple[str, int], ...]
"""How many spares are kept, by instance type."""

_ENTRY: Final = re.compile(r"([a-z0-9][a-z0-9.-]{0,62})=(\d{1,6})", re.ASCII)


def parse(text: str) -> Numbers:
    """Return the numbers of a text as `TYPE=NUMBER,…`, without zeros; none of an empty one. Raises ValueError."""
    number_by_type: dict[str, int] = {}
    for word in (part.strip() for part in text.split(",") if part.strip()):
        match = _ENTRY.fullmatch(word)
        if match is None:
            raise ValueError("write TYPE=NUMBER,…, such as trn2u.48xlarge=1, with a number of groups of four nodes")
        instance_type, number = match[1], int(match[2])
        catalogue_entry = catalogue.lookup(instance_type)
        if catalogue_entry is None or not catalogue_entry.whole_node:
            problem = "is not known" if catalogue_entry is None else "has no UltraServers"
            raise ValueError(f"{instance_type} {problem}: write the type of UltraServer nodes, such as trn2u.48xlarge")
        if instance_type in number_by_type:
            raise ValueError(f"write {instance_type} once")
        number_by_type[instance_type] = number
    return tuple(sorted((instance_type, number) for instance_type, number in number_by_type.items() if number))


@dataclass(frozen=True, slots=True)
class SparePool:
    """How many spares are kept, and what may be one.

    - `needed_until`: a group whose capacity block ends earlier is not a spare, because no workload may take it.
    """

    numbers: Numbers
    needed_until: datetime.datetime

    def number(self, instance_type: str) -> int:
        """Return how many spares of a type are kept, if that many groups are free."""
        return next((number for kept_type, number in self.numbers if kept_type == instance_type), 0)

    def of(self, free: Overlay, instance_type: str) -> tuple[Slot, ...]:
        """Return the spares among the free groups of four nodes of a type."""
        number = self.number(instance_type)
        usable = (slot for slot in _in_order(free) if self._is_usable(slot))
        preferred = sorted(itertools.islice(usable, max(number, COMPARED)), key=lambda slot: slot.passed_at is None)
        return tuple(preferred[:number])

    def _is_usable(self, slot: Slot) -> bool:
        return (slot.until is None or slot.until >= self.needed_until) and not slot.unqualified


def _in_order(free: Overlay) -> Iterator[Slot]:
    """Yield free groups in the order in which they become spares.

    New workloads take the best fit, so the worst is a spare: their choices change the pool as seldom as possible.
    """
    by_kind = (free.worst(everywhere(kind)) for kind in KINDS)
    return heapq.merge(*by_kind, key=attrgetter("fit"), reverse=True)


@dataclass(frozen=True, slots=True)
class _Except(Container[str]):
    """The names of taken nodes without those of tests."""

    taken: Container[str]
    tested: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.tested and name in self.taken


def tested_nodes(index: FleetIndex) -> dict[str, frozenset[str]]:
    """Return the nodes that tests have, by UltraServer."""
    nodes_by_ultraserver: dict[str, set[str]] = {}
    for workload_uid in index.tests:
        for reservation in index.held(workload_uid):
            nodes_by_ultraserver.setdefault(reservation.ultraserver, set()).update(reservation.allocation.nodes)
    return {ultraserver_name: frozenset(nodes) for ultraserver_name, nodes in nodes_by_ultraserver.items()}


def free_or_tested(
    free: Places | Overlay,
    index: FleetIndex,
    tested: Mapping[str, frozenset[str]],
    taken: Container[str],
    instance_type: str,
) -> Overlay:
    """Return the groups of four nodes of a type that are free, and those that are once tests have ended.

    - `free`: those that are free.
    - `taken`: the names of nodes that are not, those of tests among them.
    """
    with_tested = Overlay(free)
    for ultraserver_name, nodes in tested.items():
        group = index.group_by_name.get(ultraserver_name)
        if group is None:
            continue
        below = placement.slots((group,), taken, instance_type, SIZE)
        with_tested.put(ultraserver_name, below, placement.slots((group,), _Except(taken, nodes), instance_type, SIZE))
    return with_tested
