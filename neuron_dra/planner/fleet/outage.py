"""An outage: many nodes are unavailable at once, so the cause is not a single node, and nothing is evicted. Pure.

Kubernetes' node lifecycle controller does the same in a zone where most nodes are unready. If all kubelets stop, the
network is cut or a driver is rolled back, every node seems to fail while its pods keep running.

The condition Outage of each affected workload has the time at which the outage ended. Every grace period starts again
at that time, whichever replica of the controller leads.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import ClusterNode, PublishedNode, Reservation, Workload, condition, shortened


@dataclass(frozen=True, slots=True)
class Outage:
    """Many nodes of UltraServers are unavailable: not Ready, reported by agents, or without the tag of their group.

    `away` are their names, sorted; `total` is the number of nodes of all UltraServers that count.
    """

    away: tuple[str, ...]
    total: int

    @property
    def message(self) -> str:
        """Return the message: how many nodes are unavailable, and the consequences."""
        share = 100 * len(self.away) // self.total
        return (
            f"outage: {len(self.away)} of {self.total} nodes of UltraServers ({share} %) are not Ready, are reported "
            f"as unhealthy, or have lost their tags: {shortened(self.away)}; nothing is evicted because of failures "
            "until this is over, and every grace period starts again then; to give up a node that will not come back, "
            "delete its Node or add the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )


@dataclass(frozen=True, slots=True)
class Count:
    """The nodes of one UltraServer: how many count, and which of them are unavailable."""

    total: int = 0
    away: tuple[str, ...] = ()


def count(
    members: Iterable[str],
    reservations: Iterable[Reservation],
    nodes: Mapping[str, ClusterNode],
    published: Mapping[str, PublishedNode],
) -> Count:
    """Count the nodes of an UltraServer with these reservations.

    Nodes that a user has given up (taint out-of-service, or a deleted Node) do not count. A node is unavailable if it
    is not Ready, if agents report a fault of it, or if it is Bound and does not show the tag of its reservation.
    """
    counted = [node_name for node_name in members if node_name in nodes and not nodes[node_name].out_of_service]
    bound = {
        node_name: reservation.allocation.allocation_id
        for reservation in reservations
        if reservation.allocation.phase is Phase.BOUND
        for node_name in reservation.allocation.nodes
    }
    return Count(
        len(counted),
        tuple(
            node_name
            for node_name in counted
            if not nodes[node_name].ready
            or nodes[node_name].unhealthy
            or (node_name in bound and _shown(published.get(node_name)) != bound[node_name])
        ),
    )


def _shown(published: PublishedNode | None) -> str | None:
    """Return the allocationId that a node shows, or None."""
    return published.tag.allocation_id if published is not None and published.complete and published.tag else None


def judge(total: int, away: Collection[str], *, at_least: int, percent: int) -> Outage | None:
    """Return the outage, or None.

    An outage needs `at_least` nodes, and more than `percent` % of `total`; at least one node even if the limit is 0.
    """
    if len(away) < max(1, at_least) or 100 * len(away) <= percent * total:
        return None
    return Outage(tuple(sorted(away)), total)


def was_hit(workload: Workload) -> Wire:
    """Return the workload's stored condition Outage; empty if no outage has affected it."""
    return condition(workload.status, objects.OUTAGE)


def over_since(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Return the end of the last outage that affected the workload: no grace period began before it.

    While an outage lasts that is `now`; without one, the epoch.
    """
    stored = was_hit(workload)
    if not stored:
        return decode.EPOCH
    return now if stored.get("status") == "True" else decode.time(stored.get("lastTransitionTime"))
