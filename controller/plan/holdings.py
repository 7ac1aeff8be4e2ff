"""The reservations of all nodes during a plan: as stored at first, then as the plan changes them. Pure, no I/O.

A node is in one reservation at most. It is *taken* while it is in one, readable or not, or while a claim is allocated
on it; taken nodes are not free for other workloads.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any

from controller.observe.model import (
    ClaimUse,
    PublishedNode,
    Reservation,
    Workload,
)
from controller.plan import objects
from controller.plan.fleet_index import FleetIndex
from controller.plan.placement import Slot
from controller.plan.states import check_step
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.ultraserver import Allocation, Phase, Unread


class Holdings(Container[str]):
    """All reservations, and what nodes and claims show of them.

    As a container it has the names of the reserved and used nodes. It reads stored reservations from the index and
    keeps copies of those that the plan changes; `planning` compares the two and writes the difference.
    """

    def __init__(self, index: FleetIndex) -> None:
        self._index = index
        self._nodes = index.node_by_name
        self._published = index.published_by_name
        self._held: dict[str, list[Reservation]] = {}  # by UltraServer, those that the plan changes
        self._of: dict[str, list[Reservation]] = {}  # by workload UID, the same
        self._reserved: Counter[str] = Counter()  # by node, the difference from what is stored
        self.unread = dict(index.evidence.unread)
        """The entries that this release cannot read, by UltraServer."""
        self._withheld: dict[str, list[str]] = {}  # by workload UID
        self._nodes_of: Counter[str] = Counter()  # by namespace, the difference from what is stored
        self.journal: list[str] = []
        """The UltraServer of each reservation that was made or dropped, in order."""

    # What is there

    def __contains__(self, name: object) -> bool:
        return self._index.is_taken(str(name), self._reserved[str(name)])

    def is_reserved(self, node: str) -> bool:
        """Return True if the node is in a reservation, readable or not."""
        return self._index.reserved(node) + self._reserved[node] > 0

    @property
    def version(self) -> int:
        """A number that changes whenever a reservation is made or dropped."""
        return len(self.journal)

    @property
    def changed(self) -> Collection[str]:
        """The UltraServers whose reservations the plan has changed, even if they are as stored again."""
        return self._held.keys()

    def has_changed(self, workload_uid: str) -> bool:
        """Return True if the plan has changed reservations of this workload."""
        return workload_uid in self._of

    @property
    def in_use(self) -> Collection[str]:
        """Nodes with an allocated claim."""
        return self._index.in_use

    def at(self, ultraserver: str) -> Sequence[Reservation]:
        """The reservations of one UltraServer, in their stored order; none if it has no object."""
        found = self._held.get(ultraserver)
        if found is not None:
            return found
        stored = self._index.ultraserver_by_name.get(ultraserver)
        return stored.reservations if stored else ()

    def of(self, workload_uid: str) -> list[Reservation]:
        """The reservations of one workload, by index and allocationId, in all phases."""
        found = self._of.get(workload_uid)
        if found is None:
            found = self._index.held(workload_uid)
        return sorted(found, key=lambda each: (each.allocation.ultraserver_index, each.allocation.allocation_id))

    def live(self, workload_uid: str) -> dict[int, Reservation]:
        """The reservations of one workload that are not Draining, by index.

        There may be two for one index after a failed write: the Bound one counts, because its pods may run.
        """
        found: dict[int, Reservation] = {}
        for each in self.of(workload_uid):
            index = each.allocation.ultraserver_index
            if each.allocation.phase is Phase.BOUND or (each.allocation.phase is Phase.PENDING and index not in found):
                found[index] = each
        return found

    def pending(self, workload_uid: str) -> list[Reservation]:
        """The Pending reservations of one workload: no pod may start there yet."""
        return [each for each in self.of(workload_uid) if each.allocation.phase is Phase.PENDING]

    def with_another_size(self, workload_uid: str) -> list[Reservation]:
        """The Bound reservations of one workload whose number of its nodes is not stored as planned."""
        stored = {each.allocation.allocation_id: each.allocation.world_size for each in self._index.held(workload_uid)}
        return [
            each
            for each in self.live(workload_uid).values()
            if each.allocation.phase is Phase.BOUND
            and stored.get(each.allocation.allocation_id) != each.allocation.world_size
        ]

    def leaving(self, workload_uid: str) -> list[Reservation]:
        """The Draining reservations of one workload on which its pods may still run.

        A dead node shows its last tag permanently. No pod can start there: when it comes back, its plugin reads the
        reservation first.
        """
        return [
            each
            for each in self.of(workload_uid)
            if each.allocation.phase is Phase.DRAINING
            and (
                any(
                    self.shows(name, each.allocation, Phase.BOUND) and self.is_ready(name)
                    for name in each.allocation.nodes
                )
                or self.own_uses(each.allocation)
            )
        ]

    def workload_uids(self) -> set[str]:
        """The UIDs of the workloads that have a reservation."""
        return {uid for uid in {*self._index.holders, *self._of} if self._of.get(uid, True)}

    def withheld(self, workload_uid: str) -> Sequence[str]:
        """The nodes that a workload's copies name, that publish nothing, and that stay closed (`withhold`)."""
        return self._withheld.get(workload_uid, ())

    def nodes_of_namespace(self, namespace: str) -> int:
        """Return how many nodes the workloads of a namespace have; of two reservations for one index, one counts.

        Those that the plan gives back still count: others may be reserved only after that write was answered.
        """
        return self._index.nodes_of_namespace(namespace) + self._nodes_of[namespace]

    def sizes(self, workload_uid: str) -> dict[int, int]:
        """Return how many nodes a workload has for each index, as `nodes_of_namespace` counts them."""
        return sizes([*self._index.held(workload_uid), *self._of.get(workload_uid, ())])

    def uses(self, nodes: Iterable[str]) -> list[ClaimUse]:
        """Return the claims that are allocated on these nodes, each once."""
        return list(dict.fromkeys(use for name in nodes for use in self._index.uses(name)))

    def own_uses(self, allocation: Allocation) -> list[ClaimUse]:
        """Return the claims of the reservation's workload that are allocated on its nodes, each once."""
        return [use for use in self.uses(allocation.nodes) if use.is_of(allocation)]

    def shows(self, node: str, allocation: Allocation, phase: Phase) -> bool:
        """Return True if the node's slices have the tag of exactly this reservation, in this phase.

        Incomplete slices show nothing, and neither does another Node with its name.
        """
        published = self._published.get(node)
        tag = published.tag if published else None
        return (
            published is not None
            and published.complete
            and tag is not None
            and (tag.allocation_id, tag.phase) == (allocation.allocation_id, phase)
            and self.is_there(node, allocation)
        )

    def has_tags(self, allocation: Allocation) -> bool:
        """Return True if all nodes are Ready and show this reservation, and no other claim came before it.

        It may then be bound.
        """
        return not self.without_tag(allocation) and not self.untagged_claims(allocation)

    def without_tag(self, allocation: Allocation) -> list[str]:
        """Return the nodes of a Pending reservation that do not show it, or are not Ready, in the order of ranks."""
        return [
            name
            for name in allocation.nodes
            if not (self.shows(name, allocation, Phase.PENDING) and self.is_ready(name))
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

    def is_there(self, node: str, allocation: Allocation) -> bool:
        """Return True if the reserved Node exists, and not another one with its name."""
        return node in self._nodes and allocation.is_for(node, self._nodes[node].uid)

    def published(self, node: str, allocation: Allocation) -> PublishedNode | None:
        """Return what the reserved node publishes; None without slices, or if another Node has its name."""
        found = self._published.get(node)
        if found is None or not self.is_there(node, allocation):
            return None
        return found if found.node_uid in ("", self._nodes[node].uid) else None

    def is_ready(self, node: str) -> bool:
        """Return True if the Node exists and is Ready."""
        return node in self._nodes and self._nodes[node].ready

    def is_closed(self, node: str, allocation: Allocation, *, final: bool) -> bool:
        """Return True if no pod of the workload can be placed on the node.

        That is so if the node shows the reservation as Draining, publishes nothing, is gone, or was given up by a user.
        `final`: another tag, or none, is enough, because the workload will not be bound again.
        """
        published = self._published.get(node)
        if published is None or not self.is_there(node, allocation) or self._nodes[node].out_of_service:
            return True
        if self.shows(node, allocation, Phase.DRAINING):
            return True
        if not published.complete or not final:
            return False
        return published.tag is None or (published.tag.allocation_id, published.tag.phase) != (
            allocation.allocation_id,
            Phase.BOUND,
        )

    def kind(self, node: str) -> str | None:
        """Return the resourceType that the node publishes, neuron_node or neuron_device, or None."""
        published = self._published.get(node)
        return published.kind or None if published else None

    # What the plan changes

    def reserve(self, workload: Workload, index: int, slot: Slot, now: datetime.datetime) -> None:
        """Reserve a slot for a workload: a new Pending reservation.

        The allocationId contains the object's resourceVersion, which guards the write: no two written reservations can
        have the same id, and planning twice gives the same one.
        """
        ultraserver = self._index.ultraserver_by_name[slot.ultraserver]
        parts = (ultraserver.uid, ultraserver.version, workload.uid, str(index), *slot.nodes)
        allocation = Allocation(
            workload_namespace=workload.namespace,
            workload_name=workload.name,
            workload_uid=workload.uid,
            allocation_id=hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()[:16],
            phase=Phase.PENDING,
            nodes=slot.nodes,
            node_count=len(slot.nodes),
            ultraserver_index=index,
            allocated_at=objects.time(now),
            node_uids=tuple(self._nodes[name].uid for name in slot.nodes),
        )
        self.add(Reservation(slot.ultraserver, allocation))

    def add(self, one: Reservation) -> None:
        """Add a reservation."""
        of_server, of_workload = self._own(one)
        before = self._size(one)
        of_server.append(one)
        of_workload.append(one)
        self._nodes_of[one.allocation.workload_namespace] += self._size(one) - before
        self._reserved.update(one.allocation.nodes)
        self.journal.append(one.ultraserver)

    def adopt(self, ultraserver: str, left: Sequence[Unread], taken: Iterable[Reservation]) -> None:
        """Replace unreadable entries of an UltraServer by reservations, `taken`; `left` stay unreadable."""
        for before in self.unread[ultraserver]:
            self._reserved.subtract(before.nodes)
        for each in left:
            self._reserved.update(each.nodes)
        self.unread[ultraserver] = tuple(left)
        for one in taken:
            self.add(one)

    def withhold(self, ultraserver: str, workload_uid: str, nodes: Sequence[str]) -> None:
        """Keep nodes closed for a workload that may have them: nothing shows whether it does."""
        self._withheld.setdefault(workload_uid, []).extend(nodes)
        self.close(ultraserver, nodes)

    def close(self, ultraserver: str, nodes: Iterable[str]) -> None:
        """Keep nodes of an UltraServer closed in this plan, as if they were reserved."""
        self._held.setdefault(ultraserver, list(self.at(ultraserver)))  # its free slots are to be found again
        self._reserved.update(nodes)
        self.journal.append(ultraserver)

    def bind(self, one: Reservation) -> None:
        """Open a reservation's nodes for pods of its workload."""
        check_step(one.allocation.phase, Phase.BOUND)
        self.change(one, phase=Phase.BOUND)

    def drain(self, one: Reservation) -> None:
        """Close a reservation's nodes; its faults no longer matter."""
        check_step(one.allocation.phase, Phase.DRAINING)
        self.change(one, phase=Phase.DRAINING, faults=())

    def change(self, one: Reservation, **changes: Any) -> None:
        """Change other fields of a reservation's allocation."""
        changed = one.changed(**changes)
        for held in self._own(one):
            held[held.index(one)] = changed

    def drop(self, one: Reservation) -> None:
        """Remove a reservation: its nodes are free."""
        check_step(one.allocation.phase, None)
        self._remove(one)

    def put_back(self, workload_uid: str, held: Iterable[Reservation]) -> None:
        """Restore the reservations that a workload had earlier in this plan."""
        earlier = list(held)
        for one in self.of(workload_uid):
            if one not in earlier:
                self._remove(one)
        for one in earlier:
            if one not in self.of(workload_uid):
                self.add(one)

    def _remove(self, one: Reservation) -> None:
        of_server, of_workload = self._own(one)
        before = self._size(one)
        of_server.remove(one)
        of_workload.remove(one)
        self._nodes_of[one.allocation.workload_namespace] += self._size(one) - before
        self._reserved.subtract(one.allocation.nodes)
        self.journal.append(one.ultraserver)

    def _size(self, one: Reservation) -> int:
        """Return how many nodes its workload has for its index."""
        return self.sizes(one.allocation.workload_uid).get(one.allocation.ultraserver_index, 0)

    def _own(self, one: Reservation) -> tuple[list[Reservation], list[Reservation]]:
        """Return the plan's own copies of the lists that a reservation is or belongs in."""
        uid = one.allocation.workload_uid
        if one.ultraserver not in self._held:
            self._held[one.ultraserver] = list(self.at(one.ultraserver))
        if uid not in self._of:
            self._of[uid] = self._index.held(uid)
        return self._held[one.ultraserver], self._of[uid]

    def set_world_size(self, workload: Workload, rendezvous: Rendezvous | None, groups: int) -> None:
        """Write into every slot the number of nodes of the workload, which node has rank 0, and its address.

        The number covers the groups that are reserved, and those below `groups`, which are open or being repaired:
        never ranks that only the spec requests.
        """
        live = self.live(workload.uid)
        if 0 not in live:
            return
        size = max(groups, max(live) + 1) * workload.size
        first = live[0].allocation.nodes[0]
        for each in list(live.values()):
            has = (each.allocation.world_size, each.allocation.rank0_node, each.allocation.rendezvous)
            if has != (size, first, rendezvous):
                self.change(each, world_size=size, rank0_node=first, rendezvous=rendezvous)


def sizes(held: Iterable[Reservation]) -> dict[int, int]:
    """Return how many nodes a workload has for each index.

    Of two reservations for one index the larger counts.
    """
    found: dict[int, int] = {}
    for each in held:
        index = each.allocation.ultraserver_index
        found[index] = max(found.get(index, 0), each.allocation.node_count)
    return found
