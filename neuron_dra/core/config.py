"""Opaque configuration: which entries of an allocation apply to a device, and which of them wins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Source(IntEnum):
    """Where an entry came from; everything of the claim beats everything of the class."""

    CLASS = 0
    CLAIM = 1


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """A NeuronConfig: physical cores per logical NeuronCore."""

    logical_neuron_core: Literal[1, 2]


@dataclass(frozen=True, slots=True)
class UltraServerSettings:
    """An UltraServerConfig: how many nodes work together (not the runtime's mode number), and for which workload."""

    nodes: Literal[1, 2, 4]
    workload_id: str | None = None
    workload_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry of `status.allocation.devices.config` that is meant for this driver.

    `requests` empty means every request; a name may be "req" or "req/sub".
    """

    source: Source
    requests: tuple[str, ...]
    settings: NeuronSettings | UltraServerSettings

    def applies_to(self, request: str) -> bool:
        """Tell whether the entry covers `request`, by its full name or by its base name."""
        return not self.requests or request in self.requests or request.split("/", 1)[0] in self.requests


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force for one device; None where nobody said anything."""

    neuron: NeuronSettings | None = None
    ultraserver: UltraServerSettings | None = None


def effective(entries: Iterable[Entry], request: str) -> Settings:
    """Return what applies to `request`: of each kind the last entry, claims after classes."""
    neuron, ultraserver = None, None
    for entry in sorted((e for e in entries if e.applies_to(request)), key=lambda e: e.source):
        if isinstance(entry.settings, NeuronSettings):
            neuron = entry.settings
        else:
            ultraserver = entry.settings
    return Settings(neuron, ultraserver)
