"""Shared counters, which devices consume so that the scheduler allocates no two that overlap (KEP-4815)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CounterSet:
    """A named set of counters, or the part of one that a device consumes."""

    name: str
    counters: Mapping[str, int]

    def to_wire(self, name_field: str = "name") -> dict[str, Any]:
        """Return it in the form of resource.k8s.io/v1; `name_field` is counterSet for consumed counters."""
        return {
            name_field: self.name,
            "counters": {name: {"value": str(number)} for name, number in self.counters.items()},
        }
