"""An outage: so many nodes are away at once that it is not their fault. Nothing is evicted then. Pure.

As Kubernetes' node lifecycle controller does in a zone of which most nodes are unready: kubelets that all stop, a
network that is cut or a driver that is rolled back look like a failure of every node, and their pods run on.

The end of an outage is written into each workload that it has hit, as the time of its condition Outage: from then on
every grace period counts anew, whichever replica of the controller leads.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.observe import decode
from controller.observe.model import (
    ClusterNode,
    PublishedNode,
    Reservation,
    Wire,
    Workload,
    condition,
    shortened,
)
from controller.plan import objects
from neuron_dra.core.ultraserver import Phase


@dataclass(frozen=True, slots=True)
class Outage:
    """The nodes of UltraServers that are away: not Ready, or without the tag of the group that is bound there."""

    away: tuple[str, ...]
    total: int

    @property
    def message(self) -> str:
        """What is going on, and what it means."""
        return (
            f"outage: {len(self.away)} of {self.total} nodes of UltraServers ({100 * len(self.away) // self.total} %) "
            f"are not Ready or have lost their tags: {shortened(self.away)}; nothing is evicted because of failures "
            "until this is over, and every grace period starts again then; a node that will not come back counts no "
            "more when its Node is deleted, or has the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )


@dataclass(frozen=True, slots=True)
class Count:
    """Of one UltraServer: how many nodes are counted, and which of them are away."""

    total: int = 0
    away: tuple[str, ...] = ()


def count(
    members: Iterable[str],
    held: Iterable[Reservation],
    nodes: Mapping[str, ClusterNode],
    published: Mapping[str, PublishedNode],
) -> Count:
    """Count the nodes of an UltraServer with these reservations. One that a person has given up is not counted."""
    known = [name for name in members if name in nodes and not nodes[name].out_of_service]
    bound = {
        name: one.allocation.allocation_id
        for one in held
        if one.allocation.phase is Phase.BOUND
        for name in one.allocation.nodes
    }
    return Count(
        len(known),
        tuple(
            name
            for name in known
            if not nodes[name].ready or (name in bound and _shown(published.get(name)) != bound[name])
        ),
    )


def _shown(published: PublishedNode | None) -> str | None:
    """The allocationId that a node shows."""
    return published.tag.allocation_id if published is not None and published.complete and published.tag else None


def judge(total: int, away: Collection[str], *, at_least: int, percent: int) -> Outage | None:
    """Return the outage, if at least so many and more than so many percent of the nodes are away."""
    if len(away) < max(1, at_least) or 100 * len(away) <= percent * total:
        return None
    return Outage(tuple(sorted(away)), total)


def was_hit(workload: Workload) -> Wire:
    """The workload's condition Outage as it is stored; empty if no outage has hit it."""
    return condition(workload.status, objects.OUTAGE)


def over_since(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Return the time before which no grace period of the workload began: the end of the last outage that hit it."""
    stored = was_hit(workload)
    if not stored:
        return decode.EPOCH
    return now if stored.get("status") == "True" else decode.time(stored.get("lastTransitionTime"))
