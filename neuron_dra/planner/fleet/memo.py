"""Decisions about objects, kept until one of their inputs changes. Pure."""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.fleet.sharing import Sharing

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")
N = TypeVar("N")
E = TypeVar("E", bound=Hashable)

EVERYTHING: Final = "everything"
"""The input of all decisions."""


@dataclass(slots=True)
class Decision(Generic[W, N]):
    """What to write, by key, and which Events to post; when to decide again; and errors, by object."""

    writes: dict[str, W] = field(default_factory=dict)
    notes: list[N] = field(default_factory=list)
    moments: list[datetime.datetime] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)


class Memo(Generic[K, W, N]):
    """The decisions by key. To decide again costs what changed, however many there are.

    - `writes`: what the decisions write, by the keys of the writes. A decision that has to be made again writes nothing
      until then.
    """

    def __init__(self, order: Callable[[K], tuple[str, ...]]) -> None:
        """`order` begins with the namespace: namespaces take turns."""
        self.writes: dict[str, W] = {}
        self._nothing: Decision[W, N] = Decision()
        self._order = order
        self._decisions: dict[K, Decision[W, N]] = {}  # those that say anything
        self._errors: dict[K, dict[str, Exception]] = {}
        self._moved: set[str] = set()  # see `take_moved`
        self._inputs: Sharing[K, Hashable] = Sharing()
        self._entries: dict[str, frozenset[Any]] = {}  # see `differences`
        self._marked: set[K] = set()  # to be decided again
        self._heaps: dict[str, list[tuple[tuple[str, ...], K]]] = {}  # of these, the next namespace first

    @property
    def undecided(self) -> int:
        """How many decisions have to be made again."""
        return len(self._marked)

    @property
    def errors(self) -> dict[str, Exception]:
        """The errors of all decisions, by object."""
        return {name: err for errors in self._errors.values() for name, err in errors.items()}

    def of(self, key: K) -> Decision[W, N]:
        """Return the last decision."""
        return self._decisions.get(key, self._nothing)

    def mark(self, key: K) -> None:
        """Let a decision be made again."""
        if key in self._marked:
            return
        self._marked.add(key)
        rank = self._order(key)
        heapq.heappush(self._heaps.setdefault(rank[0], []), (rank, key))
        for write_key in self.of(key).writes:
            self.writes.pop(write_key, None)

    def mark_with(self, shared: Hashable) -> None:
        """Let all decisions be made again that have this input."""
        for key in self._inputs.of(shared):
            self.mark(key)

    def mark_after(self, key: K, shared: Hashable) -> None:
        """Let those of the decisions with this input be made again that come after one in the order."""
        rank = self._order(key)
        for other_key in self._inputs.of(shared):
            if self._order(other_key) > rank:
                self.mark(other_key)

    def differences(self, input_name: str, entries: Iterable[E]) -> Set[E]:
        """Return which entries of an input of this name are new or gone since the last call."""
        before: frozenset[E] = self._entries.get(input_name, frozenset())
        after = self._entries[input_name] = frozenset(entries)
        return before ^ after

    def take(self, at_most: int | None = None) -> Iterator[K]:
        """Yield the next keys to decide, also those that are marked meanwhile. Each needs a `keep`."""
        taken: set[K] = set()
        while self._heaps and (at_most is None or len(taken) < at_most):
            namespace = next(iter(self._heaps))
            heap = self._heaps.pop(namespace)
            _, key = heapq.heappop(heap)
            if heap:
                self._heaps[namespace] = heap  # behind the other namespaces
            self._marked.discard(key)
            taken.add(key)
            yield key

    def keep(self, key: K, decision: Decision[W, N], inputs: Iterable[Hashable] | None) -> None:
        """Keep a decision with its inputs. Without inputs (None), the key is forgotten."""
        self._moved.update(self.of(key).writes, decision.writes)
        self.writes |= decision.writes
        put(self._decisions, key, decision if decision != self._nothing else None)
        put(self._errors, key, decision.errors or None)
        self._inputs.put(key, () if inputs is None else (EVERYTHING, *inputs))

    def take_moved(self) -> set[str]:
        """Return the keys of the writes that were decided since the last call, and of those that are gone."""
        moved, self._moved = self._moved, set()
        return moved
