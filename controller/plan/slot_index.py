"""The slots of all UltraServers, free now and in all, kept up as single UltraServers change. No I/O."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container, Sequence

from controller.observe.discovery import Group
from controller.plan import placement


class SlotIndex:
    """What `placement.slots` finds in each UltraServer. `put` says how one is now."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], list[placement.Slot]] = {}  # by type and size, the best fit first
        self._free_of: dict[str, tuple[tuple[tuple[str, int], placement.Slot], ...]] = {}
        self._whole_of: dict[str, Counter[tuple[str, int, str]]] = {}  # UltraServer -> slots, were nothing taken
        self._whole: Counter[tuple[str, int, str]] = Counter()  # the same of all, by type, size and kind
        self._topology: dict[str, tuple[str, int]] = {}  # UltraServer -> its type, and how many nodes it has
        self._nodes: Counter[str] = Counter()  # the same of all, by type

    def free(self, instance_type: str, size: int) -> Sequence[placement.Slot]:
        """Return the free slots in stored UltraServers, the best fit first."""
        return self._free.get((instance_type, size), ())

    def capacity(self, instance_type: str, size: int, kind: str | None = None) -> int:
        """Count the slots that healthy UltraServers have in all: of one kind, or of that which has more."""
        kinds = placement.KINDS if kind is None else (kind,)
        return max(self._whole[instance_type, size, each] for each in kinds)

    def members(self, instance_type: str) -> int:
        """Count the nodes of all UltraServers of a type, whatever is wrong with them."""
        return self._nodes[instance_type]

    def put(self, name: str, group: Group | None, taken: Container[str], *, stored: bool) -> None:
        """An UltraServer changed, or is gone. Slots in one that is not `stored` cannot be reserved yet."""
        self._put_free(name, group if stored else None, taken)
        self._put_whole(name, group)

    def _put_free(self, name: str, group: Group | None, taken: Container[str]) -> None:
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
    return slot.fit
