"""Free slots by place in the network, kept sorted by fit: a choice looks at what it takes, not at the fleet. No I/O."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from neuron_dra.planner.fleet.placement import KINDS, Slot

EVERYWHERE = -1
"""The depth of the place that has all slots."""

Place = tuple[str, int, str]
"""A resourceType, the depth of a network layer, and the layer's name."""

_FIT = attrgetter("fit")


def everywhere(kind: str) -> Place:
    """Return the place that has all slots of a resourceType."""
    return kind, EVERYWHERE, ""


def places_of(slot: Slot) -> Iterator[Place]:
    """Yield the places that a slot is in."""
    yield everywhere(slot.kind)
    for depth, layer in enumerate(slot.layers):
        if layer is not None:
            yield slot.kind, depth, layer


class Places:
    """The free slots of one instance type and size."""

    def __init__(self) -> None:
        self._slots: dict[Place, list[Slot]] = {}  # the best fit first
        self._numbers: dict[tuple[str, int], list[tuple[int, str]]] = {}  # sorted, with the names of the places

    def add(self, slot: Slot) -> None:
        """Add a slot."""
        for place in places_of(slot):
            slots = self._slots.setdefault(place, [])
            bisect.insort(slots, slot, key=_FIT)
            self._count(place, len(slots) - 1, len(slots))

    def remove(self, slot: Slot) -> None:
        """Remove a slot that was added."""
        for place in places_of(slot):
            slots = self._slots[place]
            del slots[bisect.bisect_left(slots, slot.fit, key=_FIT)]
            self._count(place, len(slots) + 1, len(slots))
            if not slots:
                del self._slots[place]

    def best(self, place: Place) -> Sequence[Slot]:
        """Return the slots in a place, the best fit first."""
        return self._slots.get(place, ())

    def worst(self, place: Place) -> Iterator[Slot]:
        """Yield the slots in a place, the best fit last."""
        return reversed(self._slots.get(place, []))

    def number(self, place: Place) -> int:
        """Return the number of slots in a place."""
        return len(self._slots.get(place, ()))

    def by_number(self, kind: str, depth: int, at_least: int) -> Iterator[tuple[int, str]]:
        """Yield number and name of the places of a layer that have enough slots, the smallest first."""
        numbers = self._numbers.get((kind, depth), [])
        for position in range(bisect.bisect_left(numbers, (at_least, "")), len(numbers)):
            yield numbers[position]

    def _count(self, place: Place, before: int, after: int) -> None:
        """Follow a change of the number of slots in a place."""
        kind, depth, layer = place
        numbers = self._numbers.setdefault((kind, depth), [])
        if before:
            del numbers[bisect.bisect_left(numbers, (before, layer))]
        if after:
            bisect.insort(numbers, (after, layer))
        if not numbers:
            del self._numbers[kind, depth]


class Overlay:
    """Free slots during a plan: the slots of some UltraServers are replaced, and what is below stays as it is."""

    def __init__(self, below: Places | Overlay) -> None:
        self._below = below
        self._own = Places()
        self._hidden: Counter[Place] = Counter()  # how many slots of a place below are replaced
        self._touched: dict[tuple[str, int], set[str]] = {}  # names of the places whose number differs
        self._of: dict[str, Sequence[Slot]] = {}  # by UltraServer, the slots that replace those below

    def put(self, ultraserver: str, below: Iterable[Slot], slots: Sequence[Slot]) -> None:
        """Replace the slots of an UltraServer; `below` are those that it has there."""
        if ultraserver not in self._of:
            for slot in below:
                self._hidden.update(self._touch(slot))
        for slot in self._of.get(ultraserver, ()):
            self._own.remove(slot)
        for slot in slots:
            self._touch(slot)
            self._own.add(slot)
        self._of[ultraserver] = slots

    def number(self, place: Place) -> int:
        """Return the number of slots in a place."""
        return self._below.number(place) - self._hidden[place] + self._own.number(place)

    def of_a_kind(self) -> Counter[str]:
        """Return the number of slots by resourceType."""
        return Counter({kind: self.number(everywhere(kind)) for kind in KINDS})

    def best(self, place: Place) -> Iterator[Slot]:
        """Yield the slots in a place, the best fit first."""
        below = (slot for slot in self._below.best(place) if slot.ultraserver not in self._of)
        return heapq.merge(below, self._own.best(place), key=_FIT)

    def worst(self, place: Place) -> Iterator[Slot]:
        """Yield the slots in a place, the best fit last."""
        below = (slot for slot in self._below.worst(place) if slot.ultraserver not in self._of)
        return heapq.merge(below, self._own.worst(place), key=_FIT, reverse=True)

    def by_number(self, kind: str, depth: int, at_least: int) -> Iterator[tuple[int, str]]:
        """Yield number and name of the places of a layer that have enough slots, the smallest first."""
        touched = self._touched.get((kind, depth), set())
        counted = ((self.number((kind, depth, layer)), layer) for layer in touched)
        changed = sorted((number, layer) for number, layer in counted if number >= at_least)
        below = self._below.by_number(kind, depth, at_least)
        unchanged = ((number, layer) for number, layer in below if layer not in touched)
        return heapq.merge(changed, unchanged)

    def smallest(self, kind: str, depth: int, at_least: int) -> Place | None:
        """Return the place of a layer with the fewest slots that are enough; None if no place has enough."""
        smallest = next(self.by_number(kind, depth, at_least), None)
        return None if smallest is None else (kind, depth, smallest[1])

    def _touch(self, slot: Slot) -> list[Place]:
        """Note that the numbers of a slot's places differ; return these."""
        places = list(places_of(slot))
        for kind, depth, layer in places:
            self._touched.setdefault((kind, depth), set()).add(layer)
        return places


def choose(free: Overlay, count: int, *, kind: str | None = None, near: Sequence[Slot] = ()) -> tuple[Slot, ...] | None:
    """Return `count` slots, or None if there are fewer of one resourceType.

    They share the deepest network layer that has enough free slots, and of several such places the smallest; within it
    the best fits are chosen. Without a common layer the best fits are spread. `kind` and `near` are resourceType and
    slots that the workload has.
    """
    for slot_kind in (kind,) if kind else KINDS:
        if free.number(everywhere(slot_kind)) >= count:
            place = _closest(free, slot_kind, count, near)
            return tuple(itertools.islice(free.best(place), count))
    return None


def _closest(free: Overlay, kind: str, count: int, near: Sequence[Slot]) -> Place:
    """Return the place of `count` slots that are as close in the network as possible to each other and to `near`."""
    if count + len(near) == 1:
        return everywhere(kind)
    for depth in (2, 1, 0):
        layers = {slot.layers[depth] for slot in near}
        if not layers:
            place = free.smallest(kind, depth, count)
            if place is not None:
                return place
        elif len(layers) == 1:
            layer = layers.pop()
            if layer is not None and free.number((kind, depth, layer)) >= count:
                return kind, depth, layer
    return everywhere(kind)
