"""The slots of all UltraServers, free and in total, updated as single UltraServers change. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.census import Census
from neuron_dra.planner.fleet.places import Places, everywhere
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.observed.discovery import Group

_SlotsByKey = tuple[tuple[tuple[str, int], placement.Slot], ...]
"""Slots, each behind its instance type and size."""


class SlotIndex:
    """The results of `placement.slots` for each UltraServer; `put` updates one.

    Free slots are kept by place and sorted by fit, so that choosing among thousands of UltraServers needs no sorting.
    `instance_type` is EC2's name, `size` the number of nodes of a slot.
    """

    def __init__(self) -> None:
        self.census = Census()
        self._free: dict[tuple[str, int], Places] = {}  # by type and size
        self._free_of: dict[str, _SlotsByKey] = {}
        self._whole_of: dict[str, dict[tuple[str, int, str], int]] = {}  # UltraServer -> slots, free or not
        self._whole: Counter[tuple[str, int, str]] = Counter()  # the sum, by type, size and kind
        self._inputs_of: dict[str, tuple[Group | None, frozenset[str], bool]] = {}  # what was put last
        self._changes: Counter[str] = Counter()  # by type

    def changes(self, instance_type: str) -> tuple[bool, int]:
        """Return a value that changes whenever slots or nodes of a type may have; of an unknown type, those of any."""
        is_known = self.census.members(instance_type) > 0
        return is_known, self._changes[instance_type] if is_known else self._changes.total()

    def free(self, instance_type: str, size: int) -> Places:
        """Return the free slots in UltraServers that have an object."""
        places = self._free.get((instance_type, size))
        return Places() if places is None else places

    def free_of(self, ultraserver_name: str, instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the free slots of one UltraServer."""
        return tuple(slot for key, slot in self._free_of.get(ultraserver_name, ()) if key == (instance_type, size))

    def free_numbers(self) -> dict[tuple[str, int], int]:
        """Return the number of free slots by type and size; 0 where all slots are taken."""
        numbers = {(instance_type, size): 0 for (instance_type, size, _), number in self._whole.items() if number}
        free = {
            key: sum(places.number(everywhere(kind)) for kind in placement.KINDS) for key, places in self._free.items()
        }
        return numbers | {key: number for key, number in free.items() if number}

    def capacity(self, instance_type: str, size: int, kind: str | None = None) -> int:
        """Return the number of slots, free or not, of one resourceType.

        Without `kind`, of the more frequent one: a workload gets nodes of one resourceType only.
        """
        kinds = placement.KINDS if kind is None else (kind,)
        return max(self._whole[instance_type, size, slot_kind] for slot_kind in kinds)

    def put(self, ultraserver_name: str, group: Group | None, taken: frozenset[str], *, stored: bool) -> None:
        """Follow a change of an UltraServer; None: it is gone.

        `taken` are names of its nodes that are not free. Without an object (`stored` False) its slots are not free,
        because a reservation is stored in the object.
        """
        inputs = group, taken, stored
        if self._inputs_of.get(ultraserver_name) == inputs:
            return  # most changes of an object or a node's slice change no slot
        put(self._inputs_of, ultraserver_name, inputs if group is not None else None)
        before = self._derived(ultraserver_name)
        self.census.put(ultraserver_name, group, taken)
        slots = _slots(group, frozenset()) if group is not None else ()
        free_slots = _slots(group, taken) if group is not None and taken else slots
        self._put_free(ultraserver_name, free_slots if stored else ())
        self._put_whole(ultraserver_name, slots)
        after = self._derived(ultraserver_name)
        if after != before:
            self._changes.update({derived[0] for derived in (before, after) if derived is not None})

    def _derived(self, ultraserver_name: str) -> tuple[str, object, object, object] | None:
        """Return what others read of an UltraServer, its instance type first; None for an unknown one."""
        counted = self.census.counted(ultraserver_name)
        if counted is None:
            return None
        return counted.instance_type, counted, self._free_of.get(ultraserver_name), self._whole_of.get(ultraserver_name)

    def _put_free(self, ultraserver_name: str, free_slots: _SlotsByKey) -> None:
        """Replace the free slots of an UltraServer."""
        for key, slot in self._free_of.pop(ultraserver_name, ()):
            self._free[key].remove(slot)
        for key, slot in free_slots:
            self._free.setdefault(key, Places()).add(slot)
        if free_slots:
            self._free_of[ultraserver_name] = free_slots

    def _put_whole(self, ultraserver_name: str, slots: _SlotsByKey) -> None:
        """Replace the number of slots of an UltraServer, free or not."""
        for key, number in self._whole_of.pop(ultraserver_name, {}).items():
            self._whole[key] -= number
        numbers: dict[tuple[str, int, str], int] = {}
        for (instance_type, size), slot in slots:
            key = instance_type, size, slot.kind
            numbers[key] = numbers.get(key, 0) + 1
            self._whole[key] += 1
        put(self._whole_of, ultraserver_name, numbers or None)


def _slots(group: Group, taken: Container[str]) -> _SlotsByKey:
    """Return the slots of an UltraServer without the `taken` nodes, with their type and size."""
    return tuple(
        ((group.instance_type, size), slot)
        for size in group.sizes
        for slot in placement.slots((group,), taken, group.instance_type, size)
    )
