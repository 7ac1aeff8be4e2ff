"""Pods that their node refuses and will refuse for ever: which they may be, and when it is certain. Pure.

A scheduler that had not seen the newest slices places a pod on a node that was just given back, or one of others on a
node that is reserved. The node's plugin refuses its claim, the kubelet tries again, and nothing ends that: the claim
stays allocated there, and keeps the node. Such a pod is evicted, so that its owner makes another, which is placed anew.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Final

from controller.observe import decode
from controller.observe.model import (
    ClaimUse,
    PublishedNode,
    Reservation,
    Suspect,
    Wire,
    condition,
)

PATIENCE: Final = datetime.timedelta(minutes=2)
"""A pod is refused for so long, by its startTime, before it is evicted."""
LOOK_AGAIN: Final = datetime.timedelta(minutes=2)
STARTED: Final = "PodReadyToStartContainers"


def suspects(
    nodes: Iterable[str],
    held: Iterable[Reservation],
    uses: Mapping[str, tuple[ClaimUse, ...]],
    published: Mapping[str, PublishedNode],
) -> tuple[Suspect, ...]:
    """Return the pods that the nodes of an UltraServer with these reservations must refuse."""
    holder = {name: one for one in held for name in one.allocation.nodes}
    found = []
    for node in sorted(nodes):
        for use in uses.get(node, ()):
            why = _why(use, node, holder.get(node), published.get(node))
            found += [Suspect(use.namespace, name, uid, node, why) for name, uid in use.pods if why]
    return tuple(found)


def _why(use: ClaimUse, node: str, one: Reservation | None, published: PublishedNode | None) -> str:
    """Why the node must refuse a claim; empty if it need not, or if that is not certain."""
    if one is None:
        open_to_all = published is not None and published.complete and published.tag is None
        if (use.workload_id, use.workload_uid) == (None, None) or not open_to_all:
            return ""
        return f"node {node} is not reserved any more for the workload of its claim {use.namespace}/{use.name}"
    allocation = one.allocation
    if use.is_of(allocation):
        return ""  # it waits until the group is bound, or is evicted with the others of a group that is given back
    return f"node {node} is reserved for NeuronUltraServerWorkload {allocation.workload}"


def refused_until(pod: Wire, suspect: Suspect) -> datetime.datetime | None:
    """Return when the pod has been refused for long enough; None if it is not one that is refused.

    One that pulls a large image is none: its sandbox is there, for which its claims had to be prepared.
    """
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if meta.get("uid") != suspect.uid or meta.get("deletionTimestamp") or spec.get("nodeName") != suspect.node:
        return None
    if status.get("phase") != "Pending" or not status.get("startTime"):
        return None
    if condition(status, STARTED).get("status") == "True":
        return None
    return decode.time(status["startTime"]) + PATIENCE


def words(pod: Wire, suspect: Suspect) -> str:
    """Say in an Event why the pod was evicted, and what becomes of it."""
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    owner = next((each for each in owners if each.get("controller")), None)
    if owner is not None:
        then = f"its {owner.get('kind')} {owner.get('name')} makes another pod, which is placed on another node"
    else:
        then = "no controller owns this pod, so that it is lost: create it again"
    return f"evicted after more than two minutes in which it could not start: {suspect.why}; {then}"
