"""The versions of Kubernetes: those that are supported, what starts with which, and what is wrong with others.

The one table of minor versions. Single releases with faults are in `releases`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

OLDEST: Final = (1, 34)
NEWEST: Final = (1, 37)
OLDEST_KUBELET: Final = (1, 33)
FIRST_WITH_CLASS_RESOURCES: Final = (1, 36)
"""The first kubelet that admits resources that DeviceClasses serve; older ones reject the pod."""
FIRST_WITH_COUNTERS: Final = (1, 36)
"""The first API server that keeps shared counters by default, and the first kubelet that fits connected sets."""
FIRST_THAT_SKIPS_INCOMPLETE_POOLS: Final = (1, 35)
"""The first scheduler that allocates nothing of a pool that is incomplete or invalid."""
FIRST_WITH_TAINTS: Final = (1, 36)
"""The first scheduler that reads taints of devices by default."""
FIRST_NEW_ALLOCATOR: Final = (1, 36)
"""The first scheduler that tries combinations of devices, in the order of their slices; older ones try every order."""
"""The first API server on which the driver writes the status of prepared claims."""
FIRST_THAT_ALWAYS_LISTS_CLAIMS: Final = (1, 36)
"""The first kubelet whose pod-resources API lists claims whatever its feature gates say."""


EMBEDDED: Final = "+embedded"
"""The end of the version of the API server inside `neuron-dra demo`."""


@dataclass(frozen=True, slots=True)
class VersionProblem:
    """A problem with a version.

    - `fatal`: the driver cannot work.
    - `depends`: it is one only for some uses, which `text` names.
    """

    reason: str
    text: str
    fatal: bool = False
    depends: bool = False


def parse(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as v1.34.4-eks-1234, or None."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match:
        return (int(match[1]), int(match[2]))
    return None


def text(version: tuple[int, int]) -> str:
    """Return a version as a person writes it."""
    return f"{version[0]}.{version[1]}"
