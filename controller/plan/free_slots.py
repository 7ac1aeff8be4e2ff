"""The free slots at each point of a plan: those of the index, and over them what the plan has reserved and dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from controller.observe.model import Workload
from controller.plan import placement
from controller.plan.fleet_index import FleetIndex
from controller.plan.holdings import Holdings
from controller.plan.places import Overlay


class FreeSlots:
    """The free slots at this point of a plan.

    Each reservation changes those of its UltraServer only, whatever the size of the fleet. Shortages are kept until a
    reservation is made or dropped, because a thousand workloads may wait for the same slots.
    """

    def __init__(self, index: FleetIndex, holdings: Holdings, unwritable: Collection[str]) -> None:
        """`unwritable` are the UltraServers in which no reservation can be stored."""
        self._index = index
        self._unwritable = unwritable
        self._holdings = holdings
        self._free: dict[tuple[str, int], Overlay] = {}
        self._seen: dict[tuple[str, int], int] = {}  # the version of the reservations that it is of
        self._counted = 0  # the version of all below
        self._free_nodes: dict[str, int] = {}  # of UltraServers that the plan changed
        self._shortages: dict[tuple[str, int, int], placement.Shortage] = {}
        self._tallies: dict[str, placement.Tally] = {}  # by instance type
        self._numbers: dict[tuple[str, int], tuple[int, int]] = {}

    def free(self, instance_type: str, size: int) -> Overlay:
        """Return the free slots of `size` nodes of an instance type.

        Only UltraServers that have an object count, because the reservation is stored in it.
        """
        key, version = (instance_type, size), self._holdings.version
        if key not in self._free:
            self._free[key] = Overlay(self._index.places(*key))
            self._replace(key, {*self._holdings.journal, *self._unwritable})
        elif self._seen[key] != version:
            self._replace(key, {*self._holdings.journal[self._seen[key] :]})
        self._seen[key] = version
        return self._free[key]

    def has_type(self, instance_type: str) -> bool:
        """Return True if there is an UltraServer of this type."""
        return self._index.members(instance_type) > 0

    def members(self, instance_type: str) -> int:
        """Return the number of nodes of all UltraServers of this type, healthy or not."""
        return self._index.members(instance_type)

    def capacity(self, instance_type: str, size: int, kind: str | None) -> int:
        """Return the number of slots, free or not, of one resourceType; without `kind`, of the more frequent one."""
        return self._index.capacity(instance_type, size, kind)

    def shortage(self, workload: Workload, count: int) -> placement.Shortage:
        """Return why `count` more slots of the workload's type and size are not available, with numbers.

        While the objects of enough free nodes are being created, the reason is CreatingUltraServers.
        """
        self._count()
        key = (workload.instance_type, workload.size, count)
        if key not in self._shortages:
            have, soon = self._free_numbers(workload.instance_type, workload.size)
            if soon >= count > have:
                text = "the NeuronUltraServer objects of free nodes are being created"
                self._shortages[key] = placement.Shortage("CreatingUltraServers", text)
            else:
                self._shortages[key] = placement.shortage(self._tally(workload.instance_type), workload, have, count)
        return self._shortages[key]

    def of_nodes(self, names: set[str], instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the slots of `size` nodes that these nodes form, reserved or not."""
        groups = {group.name: group for name in sorted(names) for group in self._index.groups_of(name)}
        others = frozenset(name for group in groups.values() for name in group.node_names) - names
        return placement.slots(groups.values(), others, instance_type, size)

    def _tally(self, instance_type: str) -> placement.Tally:
        """Return the counts of the UltraServers of a type."""
        if instance_type not in self._tallies:
            self._tallies[instance_type] = self._index.tally(instance_type, self._free_nodes)
        return self._tallies[instance_type]

    def _free_numbers(self, instance_type: str, size: int) -> tuple[int, int]:
        """Return how many free slots one workload could have, and how many with the objects that are being created."""
        key = (instance_type, size)
        if key not in self._numbers:
            have = self.free(*key).of_a_kind()
            unstored = self._index.unstored
            coming = placement.slots(unstored, self._holdings, *key) if unstored else ()
            soon = have + Counter(slot.kind for slot in coming)
            self._numbers[key] = placement.most_of_a_kind(have), placement.most_of_a_kind(soon)
        return self._numbers[key]

    def _replace(self, key: tuple[str, int], names: Iterable[str]) -> None:
        """Replace the slots of UltraServers that the plan changed; those that cannot be written have none."""
        for name in names:
            group = self._index.group_by_name.get(name)
            writable = name in self._index.ultraserver_by_name and name not in self._unwritable
            now = placement.slots((group,), self._holdings, *key) if group is not None and writable else ()
            self._free[key].put(name, self._index.slot_index.free_of(name, *key), now)

    def _count(self) -> None:
        """Follow the reservations that were made and dropped since the last time."""
        version = self._holdings.version
        if self._counted == version:
            return
        for name in {*self._holdings.journal[self._counted :]}:
            group = self._index.group_by_name.get(name)
            if group is not None:
                self._free_nodes[name] = group.free_nodes(self._holdings)
        self._counted = version
        self._shortages, self._tallies, self._numbers = {}, {}, {}
