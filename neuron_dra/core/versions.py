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
FIRST_NEW_ALLOCATOR: Final = (1, 36)
"""The first scheduler that tries combinations of devices; older ones try every order of them."""
FIRST_WITH_CLAIM_STATUS: Final = (1, 36)
"""The first API server on which the driver writes the status of prepared claims."""
FIRST_THAT_ALWAYS_LISTS_CLAIMS: Final = (1, 36)
"""The first kubelet whose pod-resources API lists claims whatever its feature gates say."""
BROKEN_KUBELETS: Final = ("v1.34.0", "v1.34.1")
"""Their connection to a plugin hangs after 30 idle minutes (kubernetes/kubernetes issue 133920)."""


@dataclass(frozen=True, slots=True)
class VersionProblem:
    """A problem with a version; if it is `fatal`, the driver cannot work."""

    reason: str
    text: str
    fatal: bool = False


def parse(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as v1.34.4-eks-1234, or None."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match:
        return (int(match[1]), int(match[2]))
    return None


def kubelet_problems(version: str) -> list[VersionProblem]:
    """Return the problems of a kubelet; none if its version is unknown."""
    result = []
    if version.split("-")[0].split("+")[0] in BROKEN_KUBELETS:
        result.append(
            VersionProblem(
                "KubeletBroken",
                f"kubelet {version} may hang when it prepares devices after half an hour without pods "
                "(kubernetes issue 133920); use 1.33, or 1.34.2 and later",
            )
        )
    parsed = parse(version)
    if parsed is not None and parsed < OLDEST_KUBELET:
        result.append(
            VersionProblem(
                "KubeletTooOld", f"kubelet {version} is too old; use {text(OLDEST_KUBELET)} or later", fatal=True
            )
        )
    return result


def text(version: tuple[int, int]) -> str:
    """Return a version as a person writes it."""
    return f"{version[0]}.{version[1]}"
