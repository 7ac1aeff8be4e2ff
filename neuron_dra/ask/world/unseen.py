"""What could not be read, and what is unknown for that reason: an object that was not seen may still exist. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuron_dra.ask.read import snapshot as snapshots
from neuron_dra.ask.read.kubectl_words import PRINTED
from neuron_dra.ask.read.snapshot import DamagedObject, Snapshot
from neuron_dra.ask.render.findings import Finding

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
SHOWN: Final = 3
"""The number of objects that the note names: a user can create any number of them."""


def kinds(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the kinds that the cluster has and that were not read, or not in every namespace, and why."""
    reason_by_kind = {}
    for kind, why in snapshot.left_out.items():
        if why != snapshots.NOT_SERVED:
            reason_by_kind[kind] = why
    return reason_by_kind


def note(snapshot: Snapshot) -> str:
    """Return the line that names them, and single objects that cannot be decoded; empty if all were read."""
    texts = [f"{kind} ({why})" for kind, why in kinds(snapshot).items()]
    texts += [f"{damaged.kind} {damaged.key} ({_part(damaged)})" for damaged in snapshot.damaged[:SHOWN]]
    more = len(snapshot.damaged) - SHOWN
    texts += [f"{more} more objects that cannot be decoded"] if more > 0 else []
    if not texts:
        return ""
    command = _printing(snapshot)
    return f"not seen: {', '.join(texts)}{f'; to write a file with it: {command}' if command else ''}"


def _printing(snapshot: Snapshot) -> str:
    """Return the command that prints the kinds of a file and those that it lacks; empty if it lacks none."""
    lacking = [kind for kind, why in snapshot.left_out.items() if why == snapshots.NOT_IN_FILE]
    if not lacking:
        return ""
    words = [word for kind, word in PRINTED.items() if kind in lacking or snapshot.all(kind)]
    return f"kubectl get {','.join(words)} -A -o json"


def data(snapshot: Snapshot) -> list[dict[str, str]]:
    """Return the same for `-o json` and `-o yaml`: kinds, and single objects by their name."""
    rows = [{"kind": kind, "reason": why} for kind, why in kinds(snapshot).items()]
    rows += [{"kind": damaged.kind, "name": damaged.key, "reason": _part(damaged)} for damaged in snapshot.damaged]
    return rows


def _part(damaged: DamagedObject) -> str:
    """Return what could not be read of an object."""
    if damaged.paths:
        return f"values that cannot be decoded: {', '.join(damaged.paths)}"
    return f"it cannot be decoded: {damaged.why}"


def doubted(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding, or Unknown if it follows from the absence of objects that may only not have been seen."""
    kind = _ABSENT.get(finding.code, "")
    if kind not in kinds(snapshot) or (finding.code == "ClaimNotCreated" and finding.facts):
        return finding
    return Finding("Unknown", f"unknown: {finding.text}, but not all of kind {kind} could be read", finding.facts)
