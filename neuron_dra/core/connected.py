"""Checks that a node may publish connected sets and core partitions: all parts of Kubernetes must support them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from neuron_dra.core import names, versions

EXCLUSION: Final = (
    f"!(has(device.attributes['{names.DRIVER}'].resourceType) && "
    f"device.attributes['{names.DRIVER}'].resourceType in ['neuron_set', 'neuron_cores'])"
)
"""The condition by which a DeviceClass selects neither connected sets nor core partitions."""


NO_COUNTERS: Final = (
    "the API server keeps no shared counters; it does from Kubernetes 1.36 on, unless the feature gate "
    "DRAPartitionableDevices is off"
)


def why_not_kubelet(version: tuple[int, int] | None) -> str:
    """Return why a kubelet of this version rules out connected sets; empty if it does not."""
    if version is not None and version >= versions.FIRST_WITH_COUNTERS:
        return ""
    version_text = "unknown" if version is None else f"{version[0]}.{version[1]}"
    return (
        f"the version of this node's kubelet is {version_text}, and kubelets before 1.36 do not know the resource "
        "names by which pods request them"
    )


def why_not_class(device_class: Mapping[str, Any] | None) -> str:
    """Return why the DeviceClass neuron.aws.com, None if it cannot be read, rules them out; empty if it does not."""
    if device_class is None:
        return (
            f"the DeviceClass {names.DRIVER} is missing, or the driver may not read it: install it, and the driver's "
            "ClusterRole, from the same release as the driver"
        )
    if excludes_partitions(_expressions(device_class)):
        return ""
    return (
        f"the DeviceClass {names.DRIVER} also selects connected sets, so claims for all devices would never be "
        f"allocated: install it from the same release as the driver, or add to its expression && {EXCLUSION}"
    )


def excludes_partitions(expressions: Iterable[str]) -> bool:
    """Return True if one of a DeviceClass's CEL expressions has EXCLUSION as a condition that must hold."""
    exclusion = _compact(EXCLUSION)
    return any(exclusion in _conditions(_compact(expression)) for expression in expressions)


def _expressions(device_class: Mapping[str, Any]) -> list[str]:
    selectors = (device_class.get("spec") or {}).get("selectors") or []
    expressions = []
    for selector in selectors:
        expressions.append(str((selector.get("cel") or {}).get("expression") or ""))
    return expressions


def _compact(expression: str) -> str:
    return re.sub(r"\s+", "", expression).replace('"', "'")


def _conditions(expression: str) -> list[str]:
    """Return the parts of an expression that && connects outside of all parentheses."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(expression):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and expression.startswith("&&", position):
            parts.append(expression[start:position])
            start = position + 2
    return [*parts, expression[start:]]
