"""At most so many of the tenants' objects, with as many of each namespace as of the others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairShare(Generic[K]):
    """Chooses while objects are offered in their order: of each namespace the first ones.

    One namespace with thousands of objects leaves room for the first of every other, as far as there is room at all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_namespace: dict[str, list[K]] = {}
        self._number: Counter[str] = Counter()
        self._total = 0

    def admits(self, key: K, namespace: str) -> tuple[bool, list[K]]:
        """Offer an object; return whether it is among the chosen ones, and those that it replaces."""
        replaced: list[K] = []
        if self._total == self._most:
            largest, number = self._number.most_common(1)[0]
            if number <= self._number[namespace] + 1:
                return False, []
            replaced.append(self._by_namespace[largest].pop())
            self._number[largest] -= 1
            self._total -= 1
        self._by_namespace.setdefault(namespace, []).append(key)
        self._number[namespace] += 1
        self._total += 1
        return True, replaced
