"""The slots of all UltraServers, free and in total, updated as single UltraServers change. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.census import Census
from neuron_dra.planner.fleet.places import Places, everywhere
from neuron_dra.planner.observed.discovery import Group


class SlotIndex:
    """The results of `placement.slots` for each UltraServer; `put` updates one.

    Free slots are kept by place and sorted by fit, so that choosing among thousands of UltraServers needs no sorting.
    `instance_type` is EC2's name, `size` the number of nodes of a slot.
    """

    def __init__(self) -> None:
        self.census = Census()
        self._free: dict[tuple[str, int], Places] = {}  # by type and size
        self._free_of: dict[str, tuple[tuple[tuple[str, int], placement.Slot], ...]] = {}
        self._whole_of: dict[str, Counter[tuple[str, int, str]]] = {}  # UltraServer -> slots, free or not
        self._whole: Counter[tuple[str, int, str]] = Counter()  # the sum, by type, size and kind
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

    def put(self, ultraserver_name: str, group: Group | None, taken: Container[str], *, stored: bool) -> None:
        """Follow a change of an UltraServer; None: it is gone.

        `taken` are names of nodes that are not free. Without an object (`stored` False) its slots are not free, because
        a reservation is stored in the object.
        """
        before = self._derived(ultraserver_name)
        self.census.put(ultraserver_name, group, taken)
        self._put_free(ultraserver_name, group if stored else None, taken)
        self._put_whole(ultraserver_name, group)
        after = self._derived(ultraserver_name)
        if after != before:
            self._changes.update({derived[0] for derived in (before, after) if derived is not None})

    def _derived(self, ultraserver_name: str) -> tuple[str, object, object, object] | None:
        """Return what others read of an UltraServer, its instance type first; None for an unknown one."""
        counted = self.census.counted(ultraserver_name)
        if counted is None:
            return None
        return counted.instance_type, counted, self._free_of.get(ultraserver_name), self._whole_of.get(ultraserver_name)

    def _put_free(self, ultraserver_name: str, group: Group | None, taken: Container[str]) -> None:
        """Replace the free slots of an UltraServer."""
        for key, slot in self._free_of.pop(ultraserver_name, ()):
            self._free[key].remove(slot)
        if group is None:
            return
        new = tuple(
            ((group.instance_type, size), slot)
            for size in group.sizes
            for slot in placement.slots((group,), taken, group.instance_type, size)
        )
        for key, slot in new:
            self._free.setdefault(key, Places()).add(slot)
        if new:
            self._free_of[ultraserver_name] = new

    def _put_whole(self, ultraserver_name: str, group: Group | None) -> None:
        """Replace the number of slots of an UltraServer, free or not."""
        self._whole.subtract(self._whole_of.pop(ultraserver_name, Counter()))
        if group is None:
            return
        self._whole_of[ultraserver_name] = Counter(
            (group.instance_type, size, slot.kind)
            for size in group.sizes
            for slot in placement.slots((group,), frozenset(), group.instance_type, size)
        )
        self._whole.update(self._whole_of[ultraserver_name])
