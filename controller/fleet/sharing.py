"""What objects have in common, and their decisions depend on. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sharing(Generic[K]):
    """Keys by what they share. To find those that share something costs the same, however many others there are."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, set[K]] = {}
        self._shared: dict[K, frozenset[Hashable]] = {}

    def put(self, key: K, shared: Iterable[Hashable]) -> None:
        """Replace what a key shares; nothing removes it."""
        before, now = self._shared.pop(key, frozenset()), frozenset(shared)
        for each in before - now:
            self._keys[each].discard(key)
            if not self._keys[each]:
                del self._keys[each]
        for each in now - before:
            self._keys.setdefault(each, set()).add(key)
        if now:
            self._shared[key] = now

    def of(self, shared: Hashable) -> Set[K]:
        """Return the keys that share this."""
        return self._keys.get(shared, frozenset())
