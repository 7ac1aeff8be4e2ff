"""The slots of all UltraServers, free and in total, updated as single UltraServers change. No I/O."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container, Sequence

from controller.observe.discovery import Group
from controller.plan import placement


class SlotIndex:
    """The results of `placement.slots` for each UltraServer; `put` updates one.

    Lists of free slots are sorted by fit, so that choosing among thousands of UltraServers needs no sorting.
    `instance_type` is EC2's name, `size` the number of nodes of a slot.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], list[placement.Slot]] = {}  # by type and size, the best fit first
        self._free_of: dict[str, tuple[tuple[tuple[str, int], placement.Slot], ...]] = {}
        self._whole_of: dict[str, Counter[tuple[str, int, str]]] = {}  # UltraServer -> slots, free or not
        self._whole: Counter[tuple[str, int, str]] = Counter()  # the sum, by type, size and kind
        self._topology: dict[str, tuple[str, int]] = {}  # UltraServer -> type and number of nodes
        self._nodes: Counter[str] = Counter()  # the sum, by type

    def free(self, instance_type: str, size: int) -> Sequence[placement.Slot]:
        """Return the free slots in UltraServers that have an object, the best fit first."""
        return self._free.get((instance_type, size), ())

    def free_of(self, name: str, instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the free slots of one UltraServer."""
        return tuple(slot for key, slot in self._free_of.get(name, ()) if key == (instance_type, size))

    def free_numbers(self) -> dict[tuple[str, int], int]:
        """Return the number of free slots by type and size; 0 where all slots are taken."""
        found = {(instance_type, size): 0 for (instance_type, size, _), number in self._whole.items() if number}
        return found | {key: len(slots) for key, slots in self._free.items() if slots}

    def capacity(self, instance_type: str, size: int, kind: str | None = None) -> int:
        """Return the number of slots, free or not, of one resourceType.

        Without `kind`, of the more frequent one: a workload gets nodes of one resourceType only.
        """
        kinds = placement.KINDS if kind is None else (kind,)
        return max(self._whole[instance_type, size, each] for each in kinds)

    def members(self, instance_type: str) -> int:
        """Return the number of nodes of all UltraServers of a type, healthy or not."""
        return self._nodes[instance_type]

    def put(self, name: str, group: Group | None, taken: Container[str], *, stored: bool) -> None:
        """Follow a change of an UltraServer; None: it is gone.

        `taken` are names of nodes that are not free. Without an object (`stored` False) its slots are not free, because
        a reservation is stored in the object.
        """
        self._put_free(name, group if stored else None, taken)
        self._put_whole(name, group)

    def _put_free(self, name: str, group: Group | None, taken: Container[str]) -> None:
        """Replace the free slots of an UltraServer."""
        for key, slot in self._free_of.pop(name, ()):
            found = self._free[key]
            del found[bisect.bisect_left(found, slot.fit, key=_fit)]
        if group is None:
            return
        new = tuple(
            ((group.instance_type, size), slot)
            for size in group.sizes
            for slot in placement.slots((group,), taken, group.instance_type, size)
        )
        for key, slot in new:
            bisect.insort(self._free.setdefault(key, []), slot, key=_fit)
        if new:
            self._free_of[name] = new

    def _put_whole(self, name: str, group: Group | None) -> None:
        """Replace the number of nodes and slots of an UltraServer, free or not."""
        self._whole.subtract(self._whole_of.pop(name, Counter()))
        instance_type, number = self._topology.pop(name, ("", 0))
        self._nodes[instance_type] -= number
        if group is None:
            return
        self._topology[name] = (group.instance_type, len(group.topology))
        self._nodes[group.instance_type] += len(group.topology)
        self._whole_of[name] = Counter(
            (group.instance_type, size, slot.kind)
            for size in group.sizes
            for slot in placement.slots((group,), frozenset(), group.instance_type, size)
        )
        self._whole.update(self._whole_of[name])


def _fit(slot: placement.Slot) -> tuple[int, int, str, int]:
    """Return the sort key of a slot."""
    return slot.fit
