"""What could not be read, and what is unknown for that reason: an object that was not seen may still exist. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuron_dra.inspect import snapshot as snapshots
from neuron_dra.inspect.findings import Finding
from neuron_dra.inspect.snapshot import Snapshot

JUDGED: Final = ("ResourceSlice", "ResourceClaim", "DeviceClass", "Node", "Pod", "DeviceTaintRule", "ResourceQuota")
"""Kinds that changes are judged by: unless all of them were read, no change is proposed."""
_ABSENT: Final = {
    "ClassMissing": "DeviceClass",
    "TemplateMissing": "ResourceClaimTemplate",
    "ClaimMissing": "ResourceClaim",
    "ClaimNotCreated": "ResourceQuota",
    "NoDevicesPublished": "ResourceSlice",
    "NodeGone": "Node",
    "NoPod": "Pod",
}
"""Causes that are true only if all objects of a kind could be read."""


def kinds(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the kinds that the cluster has and that were not read, or not in every namespace, and why."""
    return {kind: why for kind, why in snapshot.left_out.items() if why != snapshots.NOT_SERVED}


def note(snapshot: Snapshot) -> str:
    """Return the line that names them; empty if all were read."""
    found = kinds(snapshot)
    return f"not seen: {', '.join(f'{kind} ({why})' for kind, why in found.items())}" if found else ""


def doubted(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding, or Unknown if it follows from the absence of objects that may only not have been seen."""
    kind = _ABSENT.get(finding.code, "")
    if kind not in kinds(snapshot) or (finding.code == "ClaimNotCreated" and finding.facts):
        return finding
    return Finding("Unknown", f"unknown: {finding.text}, but not all of kind {kind} could be read", finding.facts)
