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
        before, after = self.by(key), frozenset(shared)
        self._shared.pop(key, None)
        for shared_input in before - after:
            self._keys[shared_input].discard(key)
            if not self._keys[shared_input]:
                del self._keys[shared_input]
        for shared_input in after - before:
            self._keys.setdefault(shared_input, set()).add(key)
        if after:
            self._shared[key] = after

    def of(self, shared: S) -> Set[K]:
        """Return the keys that share this."""
        return self._keys.get(shared, frozenset())

    def by(self, key: K) -> frozenset[S]:
        """Return what a key shares."""
        return self._shared.get(key, frozenset())
