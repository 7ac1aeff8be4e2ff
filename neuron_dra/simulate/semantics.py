"""How the scheduler of a Kubernetes version allocates devices, with the default feature gates: a table of differences.

Sources: dynamic-resource-allocation/structured 0.34.4, 0.35.4, 0.36.2 and 0.37.2 (the allocator "incubating" in each;
its files are named below), and kube_features.go. `simulate --kubernetes` follows the table, and
docs/how-commands-look.md shows it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import versions

Minor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Semantics:
    """What differs between versions; DIFFERENCES has what each field means."""

    permutations: bool
    taints: bool
    partitions: bool
    loose_pools: bool
    shared_all: bool
    class_limits: bool
    sorted_slices: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """One row: what the schedulers before a version do, and what those from it on do.

    `field` is that of Semantics, and `is_set` its value from that version on.
    """

    field: str
    since: Minor
    is_set: bool
    before: str
    after: str


DIFFERENCES: Final = (
    # allocator_incubating.go, allocateDevice; pools_incubating.go, GatherPools.
    Difference(
        "loose_pools",
        versions.FIRST_THAT_SKIPS_INCOMPLETE_POOLS,
        False,
        "the scheduler allocates devices of incomplete pools, and an invalid pool fails the pod once the scheduler "
        "reaches it",
        "the scheduler allocates no devices of incomplete and invalid pools",
    ),
    # allocator_incubating.go, allocateOne: until 0.35 the search begins with the first device again for each one.
    Difference(
        "permutations",
        versions.FIRST_NEW_ALLOCATOR,
        False,
        "the scheduler tries every order of the devices of a request, and skips a node on which that takes longer than "
        "10 s",
        "the scheduler tries every combination of devices, and a search that may take longer than 10 s fails the pod",
    ),
    Difference(
        "taints",
        versions.FIRST_WITH_TAINTS,
        True,
        "without taints of devices, unless the feature gate DRADeviceTaints is on",
        "with taints of devices",
    ),
    Difference(
        "partitions",
        versions.FIRST_WITH_COUNTERS,
        True,
        "connected sets and core partitions do not exist, because slices cannot have shared counters",
        "connected sets and core partitions exist",
    ),
    # allocator_incubating.go, Allocate: `requestKey` gets its subRequestIndex after validateDeviceRequest.
    Difference(
        "shared_all",
        versions.FIRST_NEW_ALLOCATOR,
        False,
        "of a `firstAvailable` whose first two alternatives have `allocationMode: All`, the second has the devices of "
        "the first",
        "each alternative has its own devices",
    ),
    Difference(
        "class_limits",
        versions.FIRST_WITH_CLASS_RESOURCES,
        True,
        "the scheduler creates no claim for limits that a DeviceClass serves",
        "the scheduler creates a claim for them",
    ),
    # pools_incubating.go: GatherPools ranges over a map, and from 0.36 on there are sortPoolsByID and sortSlicesByName.
    Difference(
        "sorted_slices",
        versions.FIRST_NEW_ALLOCATOR,
        True,
        "the scheduler tries the slices of a pool, and the pools of a driver on a node, in an order that changes. If "
        "there are several, you cannot predict the devices, or whether a selector that fails on one slice fails the "
        "pod",
        "the scheduler tries slices and pools in the order of their names",
    ),
)


@functools.cache
def _of(version: Minor) -> Semantics:
    flags = {}
    for difference in DIFFERENCES:
        flags[difference.field] = difference.is_set is (version >= difference.since)
    return Semantics(**flags)


def of(version: Minor | None) -> Semantics:
    """Return the semantics of a version of the scheduler; the newest ones if it is unknown."""
    if version is None or version >= _NEWEST:
        return NEW
    reached = [difference.since for difference in DIFFERENCES if difference.since <= version]
    return _of(max([*reached, _OLDEST]))


def between(before: Minor, after: Minor) -> tuple[Difference, ...]:
    """Return the differences between two versions, of which the second is the later one."""
    return tuple(difference for difference in DIFFERENCES if before < difference.since <= after)


_OLDEST: Final = versions.OLDEST
_NEWEST: Final = max(difference.since for difference in DIFFERENCES)
OLD: Final = _of(_OLDEST)
NEW: Final = _of(_NEWEST)
