"""What nodes and claims show of reservations, and what a decision would have to look at later. Pure, no I/O.

A plan gives each decision a `Sight` of its own. Whatever depends on a time that has not come, or on pods that were not
read, is noted in it: the plan is then made again at that time, or with these pods.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field

from neuron_dra.core.ultraserver import Allocation, Phase
from neuron_dra.planner.decisions.actions import NodesToRead
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.outage import Outage
from neuron_dra.planner.observed.model import ClaimUse, ClusterNode, Known, PublishedNode, Reservation


@dataclass(frozen=True, slots=True)
class Sight:
    """The objects, what else is known, and the time. `outage` is None unless most nodes are unavailable.

    - `recheck`: the times at which the decision may be another one.
    - `shared`: the claims of which the pods must be read, see `claim_pods`.
    - `to_read`: the nodes that change hands, or do so once their claims were read; `awaits_claims`: some wait for that.
    """

    index: FleetIndex
    known: Known
    now: datetime.datetime
    limits: Limits
    outage: Outage | None = None
    recheck: list[datetime.datetime] = field(default_factory=list)
    shared: list[ClaimUse] = field(default_factory=list)
    to_read: list[NodesToRead] = field(default_factory=list)

    def anew(self) -> Sight:
        """Return the sight of another decision, with nothing noted."""
        return Sight(self.index, self.known, self.now, self.limits, self.outage)

    def look_again(self, moment: datetime.datetime) -> None:
        """Note a time at which the decision may be another one, if it is in the future."""
        if moment > self.now:
            self.recheck.append(moment)

    def node(self, node_name: str) -> ClusterNode | None:
        """Return a Node, None if it does not exist."""
        return self.index.node_by_name.get(node_name)

    def is_ready(self, node_name: str) -> bool:
        """Return True if the Node exists and is Ready."""
        node = self.index.node_by_name.get(node_name)
        return node is not None and node.ready

    def is_there(self, node_name: str, allocation: Allocation) -> bool:
        """Return True if the reserved Node exists, and not another one with its name."""
        node = self.index.node_by_name.get(node_name)
        return node is not None and allocation.is_for(node_name, node.uid)

    def published(self, node_name: str, allocation: Allocation) -> PublishedNode | None:
        """Return what the reserved node publishes; None without slices, or if another Node has its name."""
        published = self.index.published_by_name.get(node_name)
        if published is None or not self.is_there(node_name, allocation):
            return None
        return published if published.node_uid in ("", self.index.node_by_name[node_name].uid) else None

    def kind(self, node_name: str) -> str | None:
        """Return the resourceType that the node publishes, neuron_node or neuron_device, or None."""
        published = self.index.published_by_name.get(node_name)
        return published.kind or None if published else None

    # Tags

    def shows(self, node_name: str, allocation: Allocation, phase: Phase) -> bool:
        """Return True if the node's slices have the tag of exactly this reservation, in this phase.

        Incomplete slices show nothing, and neither does another Node with its name.
        """
        published = self.index.published_by_name.get(node_name)
        tag = published.tag if published else None
        return (
            published is not None
            and published.complete
            and tag is not None
            and (tag.allocation_id, tag.phase) == (allocation.allocation_id, phase)
            and self.is_there(node_name, allocation)
        )

    def has_tags(self, allocation: Allocation) -> bool:
        """Return True if all nodes are Ready and show this reservation, and no other claim came before it.

        It may then be bound.
        """
        return not self.without_tag(allocation) and not self.untagged_claims(allocation)

    def without_tag(self, allocation: Allocation) -> list[str]:
        """Return the nodes of a Pending reservation that do not show it, or are not Ready, in the order of ranks."""
        return [
            node_name
            for node_name in allocation.nodes
            if not (self.shows(node_name, allocation, Phase.PENDING) and self.is_ready(node_name))
        ]

    def foreign(self, allocation: Allocation) -> list[ClaimUse]:
        """Return the claims on the nodes of a reservation that are not its workload's."""
        return [use for use in self.uses(allocation.nodes) if not use.is_of(allocation)]

    def untagged_claims(self, allocation: Allocation) -> list[ClaimUse]:
        """Return the foreign claims that were allocated before the tag: their pods may run.

        A claim of the DeviceClass of reserved devices cannot have a running pod here: a node is not free while one of
        its last workload exists, and plugins reject all others. Such a claim neither removes nor delays a reservation.
        """
        return [use for use in self.foreign(allocation) if not use.reserved_class]

    def is_closed(self, node_name: str, allocation: Allocation, *, final: bool) -> bool:
        """Return True if no pod of the workload can be placed on the node.

        That is so if the node shows the reservation as Draining, publishes nothing, is gone, or was given up by a user.
        `final`: the tag of another reservation, or none, is enough, because the workload will not be bound again. A
        node that shows this reservation as Pending may be about to show it as Bound: its plugin is late.
        """
        published = self.index.published_by_name.get(node_name)
        if (
            published is None
            or not self.is_there(node_name, allocation)
            or self.index.node_by_name[node_name].out_of_service
        ):
            return True
        if self.shows(node_name, allocation, Phase.DRAINING):
            return True
        if not published.complete or not final:
            return False
        return published.tag is None or published.tag.allocation_id != allocation.allocation_id

    # Claims

    def uses(self, node_names: Iterable[str]) -> list[ClaimUse]:
        """Return the claims that are allocated on these nodes, each once."""
        return self.index.uses_of(node_names)

    def own_uses(self, allocation: Allocation) -> list[ClaimUse]:
        """Return the claims of the reservation's workload that are allocated on its nodes, each once."""
        return [use for use in self.uses(allocation.nodes) if use.is_of(allocation)]

    def has_read_claims(self, reservations: Iterable[Reservation], most_age: datetime.timedelta | None = None) -> bool:
        """Return True if the nodes of reservations may change hands: their claims are known, and not only watched.

        The watch of claims may lag behind that of slices, so the claims must be read after the last change of what the
        nodes show. `most_age`: how old that read may be. All nodes are asked for, so that one read is enough.
        """
        requests = []
        for reservation in reservations:
            allocation = reservation.allocation
            requests.append(NodesToRead(allocation.workload_namespace, allocation.nodes, most_age))
        self.to_read.extend(requests)
        return all(map(self._is_read, requests))

    @property
    def awaits_claims(self) -> bool:
        """True if the decision is another one once claims were read."""
        return not all(map(self._is_read, self.to_read))

    def _is_read(self, request: NodesToRead) -> bool:
        if self.known.read_claims is None:
            return True
        reads = ((node_name, self.known.read_claims.get(node_name)) for node_name in request.nodes)
        return all(
            read is not None and read.counts(self.index.published_by_name.get(node_name), self.now, request.most_age)
            for node_name, read in reads
        )

    def may_run(self, reservation: Reservation) -> bool:
        """Return True if pods may still run on the nodes of a Draining reservation.

        A dead node shows its last tag permanently. No pod can start there: when it comes back, its plugin reads the
        reservation first.
        """
        allocation = reservation.allocation
        if any(
            self.shows(node_name, allocation, Phase.BOUND) and self.is_ready(node_name)
            for node_name in allocation.nodes
        ):
            return True
        return bool(self.own_uses(allocation))
