"""Opaque configuration: which entries of an allocation apply to a device, and which of them has precedence.

api/config.py decodes the users' objects and validates them; the values here are already valid. Source of the rules:
kubernetes/api resource/v1, DeviceAllocationConfiguration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class EntrySource(IntEnum):
    """Where an entry comes from; any entry of the claim has precedence over any entry of its DeviceClass."""

    CLASS = 0
    CLAIM = 1


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """A NeuronConfig: the number of physical cores in a logical NeuronCore."""

    logical_neuron_core: Literal[1, 2]


@dataclass(frozen=True, slots=True)
class UltraServerSettings:
    """An UltraServerConfig.

    - `nodes`: the number of nodes in a group, not the runtime's mode number.
    - `workload_id`, `workload_uid`: name and UID of the NeuronUltraServerWorkload in the claim's namespace; set by the
      controller's ResourceClaimTemplates, None in templates without a workload.
    """

    nodes: Literal[1, 2, 4]
    workload_id: str | None = None
    workload_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry of `status.allocation.devices.config` that is addressed to this driver.

    `requests` are names such as "req" or "req/sub"; an entry without names applies to every request.
    """

    source: EntrySource
    requests: tuple[str, ...]
    settings: NeuronSettings | UltraServerSettings

    def applies_to(self, request: str) -> bool:
        """Return True if the entry covers `request`, by its full name or by its base name."""
        return not self.requests or request in self.requests or request.split("/", 1)[0] in self.requests


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration in force for one device; None for a kind that no entry sets."""

    neuron: NeuronSettings | None = None
    ultraserver: UltraServerSettings | None = None


def effective(entries: Iterable[Entry], request: str) -> Settings:
    """Return the configuration of `request`, which is a full name such as "req" or "req/sub".

    Of each kind the last entry applies. Entries of the claim come after those of DeviceClasses, whatever their order in
    the allocation, so a user can override a class.
    """
    neuron, ultraserver = None, None
    applicable = [claim_config for claim_config in entries if claim_config.applies_to(request)]
    for claim_config in sorted(applicable, key=lambda claim_config: claim_config.source):
        if isinstance(claim_config.settings, NeuronSettings):
            neuron = claim_config.settings
        else:
            ultraserver = claim_config.settings
    return Settings(neuron, ultraserver)
