"""The members of a connected set or a core partition: devices, or a range of logical cores.

A claim names such a device long after it was published, so its members follow from the name and the instance type
alone, whatever is published now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from neuron_dra.core import names
from neuron_dra.core.catalogue import InstanceType

_NAME = re.compile(rf"({names.SET_PREFIX}|{names.CORES_PREFIX})([1-9]\d{{0,3}})-(0|[1-9]\d{{0,3}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cores:
    """Logical cores of a node at its type's default size: `number` of them from `first` on."""

    first: int
    number: int

    @property
    def all(self) -> range:
        """The cores."""
        return range(self.first, self.first + self.number)

    def overlaps(self, other: Cores) -> bool:
        """Return True if the two have a core in common."""
        return self.first < other.all.stop and other.first < self.all.stop


@dataclass(frozen=True, slots=True)
class Members:
    """The Neuron devices behind a published one, and the cores of a core partition; None means whole devices."""

    ids: tuple[int, ...]
    cores: Cores | None = None


def is_partition(name: str) -> bool:
    """Return True if `name` is that of a connected set or of a core partition."""
    return _NAME.fullmatch(name) is not None


def cores_each(spec: InstanceType) -> int:
    """Return the logical cores of a device of this type, at its default size."""
    return spec.cores_per_device // spec.lnc_default


def of(name: str, spec: InstanceType | None) -> Members | None:
    """Return what a connected set or a core partition consists of; None for other names and impossible ones.

    Cores of several devices begin at the first core of one.
    """
    match = _NAME.fullmatch(name)
    if match is None or spec is None:
        return None
    number, first, per_device = int(match[2]), int(match[3]), cores_each(spec)
    if match[1] == names.SET_PREFIX:
        if number > spec.device_count or first >= spec.device_count:
            return None
        return Members(tuple((first + step) % spec.device_count for step in range(number)))
    inside_one = first % per_device + number <= per_device
    if first + number > spec.device_count * per_device or (first % per_device and not inside_one):
        return None
    return Members(tuple(range(first // per_device, (first + number - 1) // per_device + 1)), Cores(first, number))
