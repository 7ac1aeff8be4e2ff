"""Container runtimes that inject no CDI devices, so that containers get none of their claim's devices."""

from __future__ import annotations

import re
from typing import Final

_FIRST_WITH_CDI: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
"""The first versions that read the CDI devices of the kubelet's requests; Docker, through cri-dockerd, reads none."""


def why_no_cdi(version: str) -> str:
    """Return why a runtime injects no CDI devices, such as docker://29.4.0; empty if it may, or if it is unknown."""
    name, _, number = version.partition("://")
    if name == "docker":
        return f"{version} injects no CDI devices: cri-dockerd passes none on; use containerd 1.7 or later"
    first = _FIRST_WITH_CDI.get(name)
    match = re.match(r"v?(\d+)\.(\d+)", number)
    if first is None or match is None or (int(match[1]), int(match[2])) >= first:
        return ""
    return f"{version} injects no CDI devices: use {name} {first[0]}.{first[1]} or later"
