"""What objects have in common, and their decisions depend on. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Hashable)


class Sharing(Generic[K, S]):
    """Keys by what they share. To find those that share something costs the same, however many others there are."""

    def __init__(self) -> None:
        self._keys: dict[S, set[K]] = {}
        self._shared: dict[K, frozenset[S]] = {}

    def put(self, key: K, shared: Iterable[S]) -> None:
        """Replace what a key shares; a key that shares nothing is removed."""
        before, now = self.by(key), frozenset(shared)
        self._shared.pop(key, None)
        for each in before - now:
            self._keys[each].discard(key)
            if not self._keys[each]:
                del self._keys[each]
        for each in now - before:
            self._keys.setdefault(each, set()).add(key)
        if now:
            self._shared[key] = now

    def of(self, shared: S) -> Set[K]:
        """Return the keys that share this."""
        return self._keys.get(shared, frozenset())

    def by(self, key: K) -> frozenset[S]:
        """Return what a key shares."""
        return self._shared.get(key, frozenset())
