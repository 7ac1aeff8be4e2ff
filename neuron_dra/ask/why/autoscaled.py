"""Why no autoscaler adds a node for a pod that waits, from the autoscaler's Event about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.views import EventView
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.world import events
from neuron_dra.ask.world.events import Autoscaler

_BY_ANOTHER_NODE: Final = (
    "NoDevicesPublished",
    "NodeExcluded",
    "ResourcesLacking",
    "NodeReserved",
    "DeviceTainted",
    "DevicesInUse",
    "Fragmented",
    "PoolIncomplete",
)
"""Causes that one more node would end."""
_OF_CLAIMS: Final = re.compile("dynamic resource|resource ?claim|allocate all claims", re.IGNORECASE)
"""Messages that show that the autoscaler does not know the devices of a node that does not exist."""
_INSTEAD: Final[Mapping[Autoscaler, str]] = {
    Autoscaler.KARPENTER: "keep Neuron nodes with spec.replicas of a NodePool: docs/autoscaling.md",
    Autoscaler.CLUSTER_AUTOSCALER: "keep one node in the group: docs/autoscaling.md",
}
"""Neither imagines the devices of AWS's Neuron instance types."""


def explained(findings: Sequence[Finding], autoscaler: Autoscaler, refusal: EventView) -> list[Finding]:
    """Return the causes, the first one with the autoscaler that adds no node for the pod, if a node would help."""
    first, *other_findings = findings
    if first.code not in _BY_ANOTHER_NODE:
        return list(findings)
    facts = [*first.facts, ("event", events.quoted(refusal.message))]
    if _OF_CLAIMS.search(refusal.message):
        facts.append(("to do", _INSTEAD[autoscaler]))
    text = f"{first.text}; {autoscaler.value} adds no node for it"
    return [replace(first, text=text, facts=tuple(facts)), *other_findings]
