"""The reservations of all nodes during a plan: as stored at first, then as its decisions leave them. Pure, no I/O.

A node is in one reservation at most. It is *taken* while it is in one, readable or not, or while a claim is allocated
on it; taken nodes are not free for other workloads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

from neuron_dra.core.ultraserver import UnreadAllocation
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.held import Held, sizes
from neuron_dra.planner.observed.model import Reservation


@dataclass(frozen=True, slots=True)
class Draft(Container[str]):
    """The taken nodes as they will be after a decision that is being made.

    - `ultraservers`: where it makes or removes reservations.
    """

    ultraservers: frozenset[str]
    _holdings: Holdings
    _nodes: Counter[str]  # the difference

    def __contains__(self, name: object) -> bool:
        return self._holdings.is_taken(str(name), self._nodes[str(name)])


class Holdings(Container[str]):
    """All reservations. As a container it has the names of the reserved and used nodes.

    It reads stored reservations from the index and keeps those that the plan changes; `planning` compares the two and
    writes the difference.
    """

    def __init__(self, index: FleetIndex) -> None:
        self._index = index
        self._held: dict[str, list[Reservation]] = {}  # by UltraServer, those that the plan changes
        self._of: dict[str, Held] = {}  # by workload UID, the same
        self._reserved: Counter[str] = Counter()  # by node, the difference from what is stored
        self.unread = dict(index.evidence.unread)
        """The entries that this release cannot read, by UltraServer."""
        self._withheld: dict[str, list[str]] = {}  # by workload UID
        self._nodes_of: Counter[str] = Counter()  # by namespace, the difference from what is stored
        self._assumed: dict[str, list[Reservation]] = {}  # by workload UID
        self.journal: list[str] = []
        """The UltraServer of each reservation that was made or removed, in order."""

    # What is there

    def __contains__(self, name: object) -> bool:
        return self.is_taken(str(name))

    def is_taken(self, node: str, more: int = 0) -> bool:
        """Return True if a claim uses the node, or a reservation has it. `more` is added to the reservations."""
        return self._index.is_taken(node, self._reserved[node] + more)

    def is_reserved(self, node: str) -> bool:
        """Return True if the node is in a reservation, readable or not."""
        return self._index.reserved(node) + self._reserved[node] > 0

    @property
    def version(self) -> int:
        """A number that changes whenever a reservation is made or removed."""
        return len(self.journal)

    @property
    def changed(self) -> Collection[str]:
        """The UltraServers whose reservations the plan has changed, even if they are as stored again."""
        return self._held.keys()

    def has_changed(self, workload_uid: str) -> bool:
        """Return True if the plan has changed reservations of this workload."""
        return workload_uid in self._of

    def at(self, ultraserver: str) -> Sequence[Reservation]:
        """The reservations of one UltraServer, in no order; none if it has no object."""
        planned = self._held.get(ultraserver)
        if planned is not None:
            return planned
        stored = self._index.ultraserver_by_name.get(ultraserver)
        return stored.reservations if stored else ()

    def of(self, workload_uid: str) -> Held:
        """The reservations of one workload."""
        planned = self._of.get(workload_uid)
        return Held.of(self._index.held(workload_uid)) if planned is None else planned

    def workload_uids(self) -> set[str]:
        """The UIDs of the workloads that have a reservation."""
        return {workload_uid for workload_uid in {*self._index.holders, *self._of} if self._of.get(workload_uid, True)}

    def withheld(self, workload_uid: str) -> Sequence[str]:
        """The nodes that a workload's copies name, that publish nothing, and that stay closed (`withhold`)."""
        return self._withheld.get(workload_uid, ())

    def nodes_of_namespace(self, namespace: str) -> int:
        """Return how many nodes the workloads of a namespace have; of two reservations for one index, one counts.

        Those that the plan gives back still count: others may be reserved only after that write was answered.
        """
        return self._index.nodes_of_namespace(namespace) + self._nodes_of[namespace]

    def sizes(self, workload_uid: str, reservations: Held) -> dict[int, int]:
        """Return how many nodes a workload that has these reservations has for each index.

        What is stored or assumed counts, too.
        """
        return sizes([*self._index.held(workload_uid), *self._assumed.get(workload_uid, ()), *reservations])

    def draft(self, workload_uid: str, reservations: Held) -> Draft | None:
        """Return which nodes are taken once the workload has these reservations; None if it has them now."""
        current = self.of(workload_uid)
        if reservations.all == current.all:
            return None
        removed, added = _without(current, reservations), _without(reservations, current)
        if not removed and not added:
            return None
        nodes: Counter[str] = Counter()
        for reservation in added:
            nodes.update(reservation.allocation.nodes)
        for reservation in removed:
            nodes.subtract(reservation.allocation.nodes)
        return Draft(frozenset(reservation.ultraserver for reservation in (*removed, *added)), self, nodes)

    # What the plan changes

    def assume(self, reservations: Iterable[Reservation]) -> None:
        """Add reservations that may be stored although the index does not show them.

        They count against limits in the whole plan, even if it drops them.
        """
        for reservation in reservations:
            allocation = reservation.allocation
            workload_uid = allocation.holder
            stored_ids = {stored.allocation.allocation_id for stored in self._index.held(workload_uid)}
            if allocation.allocation_id in stored_ids:
                continue
            count = sum(self.sizes(workload_uid, self.of(workload_uid)).values())
            self._assumed.setdefault(workload_uid, []).append(reservation)
            if not allocation.only_shown:
                added_nodes = sum(self.sizes(workload_uid, self.of(workload_uid)).values()) - count
                self._nodes_of[allocation.workload_namespace] += added_nodes
            self.add(reservation)

    def put(self, workload_uid: str, reservations: Held) -> None:
        """Follow a decision: the workload has these reservations now."""
        before = self.of(workload_uid)
        if reservations == before:
            return
        count = sum(self.sizes(workload_uid, before).values())
        for reservation in set(before) - set(reservations):
            self._own(reservation.ultraserver).remove(reservation)
        for reservation in set(reservations) - set(before):
            self._own(reservation.ultraserver).append(reservation)
        for reservation in _without(before, reservations):
            self._reserved.subtract(reservation.allocation.nodes)
            self.journal.append(reservation.ultraserver)
        for reservation in _without(reservations, before):
            self._reserved.update(reservation.allocation.nodes)
            self.journal.append(reservation.ultraserver)
        self._of[workload_uid] = reservations
        allocation = (*reservations, *before)[0].allocation
        if allocation.only_shown:
            return  # no namespace is charged for a tag
        self._nodes_of[allocation.workload_namespace] += sum(self.sizes(workload_uid, reservations).values()) - count

    def add(self, reservation: Reservation) -> None:
        """Add a reservation that is not stored."""
        workload_uid = reservation.allocation.holder
        self.put(workload_uid, self.of(workload_uid).add(reservation))

    def adopt(self, ultraserver: str, still_unread: Sequence[UnreadAllocation], adopted: Iterable[Reservation]) -> None:
        """Replace unreadable entries of an UltraServer by reservations, `adopted`; the others stay as they are."""
        for before in self.unread[ultraserver]:
            self._reserved.subtract(before.nodes)
        for unread_entry in still_unread:
            self._reserved.update(unread_entry.nodes)
        self.unread[ultraserver] = tuple(still_unread)
        for reservation in adopted:
            self.add(reservation)

    def withhold(self, ultraserver: str, workload_uid: str, nodes: Sequence[str]) -> None:
        """Keep nodes closed for a workload that may have them: nothing shows whether it does."""
        self._withheld.setdefault(workload_uid, []).extend(nodes)
        self.close(ultraserver, nodes)

    def close(self, ultraserver: str, nodes: Iterable[str]) -> None:
        """Keep nodes of an UltraServer closed in this plan, as if they were reserved."""
        self._own(ultraserver)  # its free slots are to be found again
        self._reserved.update(nodes)
        self.journal.append(ultraserver)

    def _own(self, ultraserver: str) -> list[Reservation]:
        """Return the plan's own copy of an UltraServer's reservations."""
        if ultraserver not in self._held:
            self._held[ultraserver] = list(self.at(ultraserver))
        return self._held[ultraserver]


def _without(reservations: Held, others: Held) -> list[Reservation]:
    """Return those reservations of which others have neither allocationId nor place."""
    other_places = {_place(reservation) for reservation in others}
    return [reservation for reservation in reservations if _place(reservation) not in other_places]


def _place(reservation: Reservation) -> tuple[str, str, tuple[str, ...]]:
    return reservation.ultraserver, reservation.allocation.allocation_id, reservation.allocation.nodes
