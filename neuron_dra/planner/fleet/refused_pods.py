"""Finds pods that their node rejects permanently. Pure.

A scheduler with old slices may place a pod of a workload on a node that was just released, or another pod on a reserved
node. The node's plugin rejects the claim and the kubelet retries without end, while the claim keeps the node in use.
Such a pod is evicted, so that its owner creates another one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import names, tenants
from neuron_dra.core.ownership import controller_of
from neuron_dra.core.ultraserver import Allocation, Tag
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import WORKLOAD_KIND, ClaimUse, PublishedNode, Reservation, Suspect, condition

PATIENCE: Final = datetime.timedelta(minutes=2)
"""The time from its startTime after which a rejected pod is evicted."""
LOOK_AGAIN: Final = datetime.timedelta(minutes=2)
STARTED: Final = "PodReadyToStartContainers"

_OF_NO_WORKLOAD: Final = (
    f"claim {{}} requests DeviceClass {names.WORKLOAD_CLASS}, and belongs to no NeuronUltraServerWorkload"
)


@dataclass(frozen=True, slots=True)
class RefusedUse:
    """A claim that is allocated on a node which must reject it, and why."""

    use: ClaimUse
    node: str
    why: str


def refused(
    nodes: Iterable[str],
    reservations: Iterable[Reservation],
    uses: Mapping[str, tuple[ClaimUse, ...]],
    published: Mapping[str, PublishedNode],
) -> tuple[RefusedUse, ...]:
    """Return the claims that the nodes of an UltraServer with these reservations must reject.

    - `nodes`: names of its nodes.
    - `reservations`: those of the UltraServer.
    - `uses`: by node, the claims that are allocated there.
    - `published`: by node, what it publishes.

    That of a pod that started before the reservation is among them; `refused_until` excludes it.
    """
    reservation_by_node = {
        node_name: reservation for reservation in reservations for node_name in reservation.allocation.nodes
    }
    refused_uses = []
    for node in sorted(nodes):
        for use in uses.get(node, ()):
            why = _why(use, node, reservation_by_node.get(node), published.get(node))
            if why:
                refused_uses.append(RefusedUse(use, node, why))
    return tuple(refused_uses)


def _why(use: ClaimUse, node: str, reservation: Reservation | None, published: PublishedNode | None) -> str:
    """Return why the node must reject a claim; empty if it need not, or if that is not certain."""
    if reservation is None:
        if published is None or not published.complete:
            return ""
        if published.tag is not None:  # its reservation is gone, but the tag stays while a claim is allocated here
            return "" if use.is_of(published.tag) else f"node {node} is still reserved for {_shown(published.tag, use)}"
        if (use.workload_id, use.workload_uid) == (None, None):
            return _OF_NO_WORKLOAD.format(f"{use.namespace}/{use.name}") if use.reserved_class else ""
        return f"node {node} is no longer reserved for the workload of its claim {use.namespace}/{use.name}"
    allocation = reservation.allocation
    if use.is_of(allocation):
        return ""  # it waits until the slot is Bound, or is evicted when the slot is released
    return f"node {node} is reserved for {_shown(allocation, use)}"


def _shown(holder: Allocation | Tag, use: ClaimUse) -> str:
    """Return the workload that has a node, for an Event on the pod of a claim."""
    namespace, name = holder.workload_namespace, holder.workload_name
    return tenants.shown(WORKLOAD_KIND, namespace, name, reader=use.namespace)


def refused_until(pod: Wire, suspect: Suspect) -> datetime.datetime | None:
    """Return when the pod may be evicted; None if its node has not rejected it.

    A pod that pulls a large image is not rejected: it has a sandbox, so its claims are prepared. The condition
    PodReadyToStartContainers shows that.
    """
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if meta.get("uid") != suspect.uid or meta.get("deletionTimestamp") or spec.get("nodeName") != suspect.node:
        return None
    if status.get("phase") != "Pending" or not status.get("startTime"):
        return None
    if condition(status, STARTED).get("status") == "True":
        return None
    return decode.time(status["startTime"]) + PATIENCE


def event_message(pod: Wire, suspect: Suspect) -> str:
    """Return the message of the Event about the eviction: why, and what follows."""
    owner = controller_of(pod)
    if owner is not None:
        then = f"its {owner.kind} {owner.name} creates another pod, which is scheduled again"
    else:
        then = "no controller owns this pod: create it again"
    return f"evicted because it could not start for two minutes: {suspect.why}; {then}"
