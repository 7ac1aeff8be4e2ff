"""The free slots at each point of a plan: those of the index, and over them what the plan has reserved and dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.holdings import Draft, Holdings
from neuron_dra.planner.fleet.places import Overlay
from neuron_dra.planner.fleet.spares import SIZE, SparePool, free_or_tested, tested_nodes
from neuron_dra.planner.observed.model import Workload


@dataclass(frozen=True, slots=True)
class _Closed(Container[str]):
    """The names of taken nodes and those of spares, which new workloads may not take."""

    taken: Container[str]
    spares: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.spares or name in self.taken


class FreeSlots:
    """The free slots at this point of a plan. A decision that is being made asks with its draft.

    Each reservation changes those of its UltraServer only, whatever the size of the fleet. Shortages are kept until a
    reservation is made or dropped, because a thousand workloads may wait for the same slots.
    """

    def __init__(self, index: FleetIndex, holdings: Holdings, unwritable: Collection[str], pool: SparePool) -> None:
        """`unwritable` are the UltraServers in which no reservation can be stored."""
        self._pool = pool
        self._tested: dict[str, frozenset[str]] | None = None  # the nodes that tests have
        self._index = index
        self._unwritable = unwritable
        self._holdings = holdings
        self._free: dict[tuple[str, int], Overlay] = {}
        self._seen: dict[tuple[str, int], int] = {}  # the version of the reservations that it is of
        self._drafted: dict[tuple[str, int], frozenset[str]] = {}  # the UltraServers that it has as in a draft
        self._counted = 0  # the version of all below
        self._free_nodes: dict[str, int] = {}  # of UltraServers that the plan changed
        self._shortages: dict[tuple[str, int, int, bool], placement.Shortage] = {}
        self._tallies: dict[tuple[str, bool], placement.Tally] = {}  # by instance type, with spares or without
        self._numbers: dict[tuple[str, int, bool], tuple[int, int]] = {}

    def free(self, instance_type: str, size: int, draft: Draft | None = None) -> Overlay:
        """Return the free slots of `size` nodes of an instance type. They hold until the next call.

        Only UltraServers that have an object count, because the reservation is stored in it.
        """
        key, version = (instance_type, size), self._holdings.version
        changed = set(self._drafted.pop(key, ()))
        if key not in self._free:
            self._free[key] = Overlay(self._index.places(*key))
            changed.update(self._holdings.journal, self._unwritable)
        elif self._seen[key] != version:
            changed.update(self._holdings.journal[self._seen[key] :])
        self._seen[key] = version
        self._replace(key, changed, self._holdings)
        if draft is not None:
            self._replace(key, draft.ultraservers, draft)
            self._drafted[key] = draft.ultraservers
        return self._free[key]

    def spares(self, instance_type: str, draft: Draft | None = None) -> tuple[placement.Slot, ...]:
        """Return the spares of an instance type: groups of four nodes that are free, or that a test has."""
        if not self._pool.number(instance_type):
            return ()
        if self._tested is None:
            tested = tested_nodes(self._index)
            self._tested = {
                ultraserver_name: nodes
                for ultraserver_name, nodes in tested.items()
                if ultraserver_name not in self._unwritable
            }
        taken = self._holdings if draft is None else draft
        free = self.free(instance_type, SIZE, draft)
        return self._pool.of(free_or_tested(free, self._index, self._tested, taken, instance_type), instance_type)

    def beside_spares(self, instance_type: str, size: int, draft: Draft | None = None) -> Overlay:
        """Return the free slots of which no node is a spare. They hold until the next call."""
        kept = self.spares(instance_type, draft)
        free = self.free(instance_type, size, draft)
        if not kept:
            return free
        overlay = Overlay(free)
        taken = self._holdings if draft is None else draft
        for ultraserver_name in _places_of(kept):
            groups = (self._index.group_by_name[ultraserver_name],)
            below = placement.slots(groups, taken, instance_type, size)
            overlay.put(ultraserver_name, below, placement.slots(groups, _closed(taken, kept), instance_type, size))
        return overlay

    def keeps_spares(self, instance_type: str) -> bool:
        """Return True if free groups of this type are kept as spares."""
        return self._pool.number(instance_type) > 0

    def at(
        self, ultraserver: str, instance_type: str, size: int, draft: Draft | None = None
    ) -> tuple[placement.Slot, ...]:
        """Return the free slots of one UltraServer in which reservations can be stored; empty for any other."""
        group = self._index.group_by_name.get(ultraserver)
        writable = ultraserver in self._index.ultraserver_by_name and ultraserver not in self._unwritable
        taken = self._holdings if draft is None else draft
        return placement.slots((group,), taken, instance_type, size) if group is not None and writable else ()

    def has_type(self, instance_type: str) -> bool:
        """Return True if there is an UltraServer of this type."""
        return self._index.members(instance_type) > 0

    def members(self, instance_type: str, *, takes_spares: bool = True) -> int:
        """Return the number of nodes of all UltraServers of this type, healthy or not."""
        kept = 0 if takes_spares else self._pool.number(instance_type) * SIZE
        return max(0, self._index.members(instance_type) - kept)

    def capacity(self, instance_type: str, size: int, kind: str | None, *, takes_spares: bool = True) -> int:
        """Return the number of slots, free or not, of one resourceType; without `kind`, of the more frequent one."""
        capacity = self._index.capacity(instance_type, size, kind)
        spares = 0 if takes_spares else self._pool.number(instance_type)
        if spares:
            capacity -= min(spares, self._index.capacity(instance_type, SIZE, kind)) * (SIZE // size)
        return max(0, capacity)

    def shortage(
        self, workload: Workload, count: int, draft: Draft | None = None, *, takes_spares: bool = False
    ) -> placement.Shortage:
        """Return why `count` more slots of the workload's type and size are not available, with numbers.

        While the objects of enough free nodes are being created, the reason is CreatingUltraServers.
        """
        self._count()
        key = (workload.instance_type, workload.size, takes_spares)
        if draft is not None:
            tally = self._tallied(workload.instance_type, draft, takes_spares=takes_spares)
            return _shortage(tally, workload, count, *self._count_slots(key, draft))
        if (*key[:2], count, takes_spares) not in self._shortages:
            if key not in self._numbers:
                self._numbers[key] = self._count_slots(key)
            tally = self._tally(workload.instance_type, takes_spares=takes_spares)
            self._shortages[*key[:2], count, takes_spares] = _shortage(tally, workload, count, *self._numbers[key])
        return self._shortages[*key[:2], count, takes_spares]

    def of_nodes(self, node_names: set[str], instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the slots of `size` nodes that these nodes form, reserved or not."""
        groups = {group.name: group for node_name in sorted(node_names) for group in self._index.groups_of(node_name)}
        other_node_names = (
            frozenset(node_name for group in groups.values() for node_name in group.node_names) - node_names
        )
        return placement.slots(groups.values(), other_node_names, instance_type, size)

    def _tally(self, instance_type: str, *, takes_spares: bool) -> placement.Tally:
        """Return the counts of the UltraServers of a type."""
        key = instance_type, takes_spares
        if key not in self._tallies:
            self._tallies[key] = self._tallied(instance_type, None, takes_spares=takes_spares)
        return self._tallies[key]

    def _tallied(self, instance_type: str, draft: Draft | None, *, takes_spares: bool) -> placement.Tally:
        """Return the counts of the UltraServers of a type; spares are free only for those who may take them."""
        free_nodes = self._free_nodes
        if draft is not None:
            free_nodes = free_nodes | self._free_nodes_of(draft.ultraservers, draft)
        kept = () if takes_spares else self.spares(instance_type, draft)
        if not kept:
            return self._index.tally(instance_type, free_nodes)
        closed = _closed(self._holdings if draft is None else draft, kept)
        tally = self._index.tally(instance_type, free_nodes | self._free_nodes_of(_places_of(kept), closed))
        return replace(tally, spares=len(closed.spares))

    def _count_slots(self, key: tuple[str, int, bool], draft: Draft | None = None) -> tuple[int, int]:
        """Return how many free slots one workload could have, and how many with the objects that are being created."""
        instance_type, size, takes_spares = key
        free = self.free if takes_spares else self.beside_spares
        free_by_kind = free(instance_type, size, draft).of_a_kind()
        unstored = self._index.unstored
        coming = placement.slots(unstored, self._holdings, instance_type, size) if unstored else ()
        soon = free_by_kind + Counter(slot.kind for slot in coming)
        return placement.most_of_a_kind(free_by_kind), placement.most_of_a_kind(soon)

    def _replace(self, key: tuple[str, int], ultraserver_names: Iterable[str], taken: Container[str]) -> None:
        """Replace the slots of UltraServers that the plan changed; those that cannot be written have none."""
        for ultraserver_name in ultraserver_names:
            group = self._index.group_by_name.get(ultraserver_name)
            writable = ultraserver_name in self._index.ultraserver_by_name and ultraserver_name not in self._unwritable
            slots = placement.slots((group,), taken, *key) if group is not None and writable else ()
            self._free[key].put(ultraserver_name, self._index.slot_index.free_of(ultraserver_name, *key), slots)

    def _count(self) -> None:
        """Follow the reservations that were made and dropped since the last time."""
        version = self._holdings.version
        if self._counted == version:
            return
        self._free_nodes |= self._free_nodes_of({*self._holdings.journal[self._counted :]}, self._holdings)
        self._counted = version
        self._shortages, self._tallies, self._numbers = {}, {}, {}

    def _free_nodes_of(self, ultraserver_names: Iterable[str], taken: Container[str]) -> dict[str, int]:
        """Return the number of free nodes of UltraServers, given which nodes are taken."""
        groups = {
            ultraserver_name: self._index.group_by_name.get(ultraserver_name) for ultraserver_name in ultraserver_names
        }
        return {
            ultraserver_name: group.free_nodes(taken) for ultraserver_name, group in groups.items() if group is not None
        }


def _places_of(slots: Iterable[placement.Slot]) -> list[str]:
    """Return the UltraServers of slots, each once."""
    return list(dict.fromkeys(slot.ultraserver for slot in slots))


def _closed(taken: Container[str], kept: Sequence[placement.Slot]) -> _Closed:
    """Return which nodes new workloads may not take."""
    return _Closed(taken, frozenset(node_name for slot in kept for node_name in slot.nodes))


def _shortage(
    tally: placement.Tally, workload: Workload, count: int, free_count: int, soon_free: int
) -> placement.Shortage:
    """Return why `count` more slots are not available; `soon_free`: with the objects that are being created."""
    if soon_free >= count > free_count:
        text = "the NeuronUltraServer objects of free nodes are being created"
        return placement.Shortage(Reason.CREATING_ULTRASERVERS, text)
    return placement.shortage(tally, workload, free_count, count)
