"""What the kernel driver's readings say of a device's health. Nothing said is unknown, never healthy (neuron.md 8)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from neuron_dra.core import names
from neuron_dra.core.facts import DeviceFacts, Unread


class Health(enum.Enum):
    """A device's state, in the words of the kubelet's service."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One published device; `message` says why when it is not healthy."""

    name: str
    status: Health
    message: str = ""


RESET_INVALID = 2
INTERSERVER = "link_interserver"
"""What `unhealthy_components` calls the links to devices of other nodes."""


def device_health(facts: DeviceFacts) -> DeviceHealth:
    """Judge one device by what the kernel driver says."""
    name = f"{names.DEVICE_PREFIX}{facts.device_id}"
    problems = _problems(facts, _components(facts))
    if problems:
        return DeviceHealth(name, Health.UNHEALTHY, "; ".join(problems))
    if not _tells(facts):
        return DeviceHealth(name, Health.UNKNOWN, "the kernel driver tells nothing about the device's health")
    return DeviceHealth(name, Health.HEALTHY)


def _components(facts: DeviceFacts) -> tuple[str, ...]:
    return () if isinstance(facts.unhealthy_components, Unread) else facts.unhealthy_components


def _problems(facts: DeviceFacts, components: Iterable[str]) -> list[str]:
    problems = []
    if not facts.node_present:
        problems.append(f"/dev/neuron{facts.device_id} is missing")
    if facts.reset_state == RESET_INVALID:
        problems.append("the kernel driver calls the device invalid")
    for label, count in (("SRAM", facts.sram_ecc_uncorrected), ("HBM", facts.mem_ecc_uncorrected)):
        if not isinstance(count, Unread) and count > 0:
            problems.append(f"{count} uncorrectable {label} error{'s' if count > 1 else ''}")
    named = ", ".join(components)
    if named:
        problems.append(f"unhealthy components: {named}")
    return problems


def _tells(facts: DeviceFacts) -> bool:
    witnesses = (facts.reset_state, facts.sram_ecc_uncorrected, facts.mem_ecc_uncorrected, facts.unhealthy_components)
    return not all(isinstance(value, Unread) for value in witnesses)


def devices_healthy(devices: Iterable[DeviceFacts], expected: int) -> bool | None:
    """Tell whether a node's `expected` devices are there and healthy, links to other nodes aside; None is unknown."""
    found = list(devices)
    without_links = [[name for name in _components(each) if name != INTERSERVER] for each in found]
    if len(found) < expected or any(map(_problems, found, without_links)):
        return False
    return True if found and all(map(_tells, found)) else None


def interserver_links_healthy(devices: Iterable[DeviceFacts]) -> bool | None:
    """Tell whether no device reports its links to other nodes as unhealthy; None is unknown."""
    found = list(devices)
    if any(INTERSERVER in _components(each) for each in found):
        return False
    return True if found and not any(isinstance(each.unhealthy_components, Unread) for each in found) else None
