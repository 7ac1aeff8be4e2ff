"""How the scheduler of a Kubernetes version allocates devices, with the default feature gates.

Sources: dynamic-resource-allocation/structured 0.34.4 and 0.37.0 ("incubating" in both); kube_features.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.core import versions


@dataclass(frozen=True, slots=True)
class Semantics:
    """What differs between versions.

    - `permutations`: the devices of a request are tried in every order, and not only in every combination. A node on
      which that takes longer than 10 s is skipped; with combinations the attempt fails.
    - `taints`: devices have taints. `partitions`: devices may consume shared counters, and a slice may select nodes for
      each device.
    - `shared_all`: the second alternative of a request has the devices of the first one, whatever its own class and
      selectors, if both have allocationMode All (`requestKey` in `Allocate`, 0.34.4 and 0.35.0).
    - `class_limits`: limits of containers may name a DeviceClass (feature gate DRAExtendedResource).
    - `loose_pools`: devices of incomplete pools are allocated, and an invalid pool fails the pod once it is reached.
    """

    permutations: bool
    taints: bool
    partitions: bool
    loose_pools: bool
    shared_all: bool
    class_limits: bool


NEW: Final = Semantics(
    permutations=False, taints=True, partitions=True, loose_pools=False, shared_all=False, class_limits=True
)  # 1.36 and 1.37
OLD: Final = Semantics(
    permutations=True, taints=False, partitions=False, loose_pools=True, shared_all=True, class_limits=False
)  # 1.34 and 1.35


def of(version: tuple[int, int] | None) -> Semantics:
    """Return the semantics of a version of the scheduler; the newest ones if it is unknown."""
    if version is not None and version < versions.FIRST_NEW_ALLOCATOR:
        return OLD
    return NEW
