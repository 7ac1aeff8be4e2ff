"""The reservations of one workload, as a value: each change returns another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from neuron_dra.core.notice import Notice
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions.states import check_step
from neuron_dra.planner.observed.model import Reservation


def _order(reservation: Reservation) -> tuple[int, str]:
    return reservation.allocation.ultraserver_index, reservation.allocation.allocation_id


@dataclass(frozen=True, slots=True)
class Held:
    """The reservations of one workload in all phases, by index and allocationId."""

    all: tuple[Reservation, ...] = ()

    @classmethod
    def of(cls, reservations: Iterable[Reservation]) -> Held:
        """Return the value of reservations in any order."""
        # Two equal ones are one: an object may list an allocation twice.
        return cls(tuple(sorted(dict.fromkeys(reservations), key=_order)))

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def live(self) -> dict[int, Reservation]:
        """Return the reservations that are not Draining, by index.

        There may be two for one index after a failed write: the Bound one counts, because its pods may run.
        """
        live: dict[int, Reservation] = {}
        for reservation in self.all:
            index = reservation.allocation.ultraserver_index
            phase = reservation.allocation.phase
            if phase is Phase.BOUND or (phase is Phase.PENDING and index not in live):
                live[index] = reservation
        return live

    @property
    def opened(self) -> int:
        """How many groups are or were open for pods, by the highest index. A request beyond that is growth."""
        indices = [
            reservation.allocation.ultraserver_index
            for reservation in self.all
            if reservation.allocation.phase is not Phase.PENDING
        ]
        return max(indices, default=-1) + 1

    @property
    def pending(self) -> list[Reservation]:
        """The reservations in which no pod may start yet."""
        return self._in(Phase.PENDING)

    @property
    def bound(self) -> list[Reservation]:
        """The reservations that are open for pods."""
        return self._in(Phase.BOUND)

    @property
    def draining(self) -> list[Reservation]:
        """The reservations that are being released."""
        return self._in(Phase.DRAINING)

    def _in(self, phase: Phase) -> list[Reservation]:
        return [reservation for reservation in self.all if reservation.allocation.phase is phase]

    def with_another_size(self, stored: Held) -> list[Reservation]:
        """Return the Bound reservations whose number of the workload's nodes is not stored as it is here."""
        sizes_stored = {
            reservation.allocation.allocation_id: reservation.allocation.world_size for reservation in stored
        }
        live = (reservation for reservation in self.live().values() if reservation.allocation.phase is Phase.BOUND)
        return [
            reservation
            for reservation in live
            if sizes_stored.get(reservation.allocation.allocation_id) != reservation.allocation.world_size
        ]

    def add(self, *reservations: Reservation) -> Held:
        """Return the value with more reservations."""
        return Held.of((*self.all, *reservations))

    def bind(self, *reservations: Reservation) -> Held:
        """Open the nodes of some of these reservations for pods of their workload."""
        return self._to(Phase.BOUND, reservations)

    def drain(self, *reservations: Reservation, notice: Notice) -> Held:
        """Close the nodes of some of these reservations, for the reason in `notice`; their faults no longer matter."""
        return self._to(Phase.DRAINING, reservations, faults=(), notice=notice)

    def tell(self, notice: Notice | None) -> Held:
        """Have this notice in every reservation that is open for pods, in place of an earlier one."""
        stale = {reservation for reservation in self.bound if reservation.allocation.notice != notice}
        if not stale:
            return self
        return self._with_changed(stale, notice=notice)

    def drop(self, *reservations: Reservation) -> Held:
        """Remove some of these reservations: their nodes are free."""
        for reservation in reservations:
            check_step(reservation.allocation.phase, None)
        dropped = self._own(reservations)
        return Held(tuple(reservation for reservation in self.all if reservation not in dropped)) if dropped else self

    def _to(self, phase: Phase, reservations: Collection[Reservation], **changes: Any) -> Held:
        for reservation in reservations:
            check_step(reservation.allocation.phase, phase)
        chosen = self._own(reservations)
        if not chosen:
            return self
        return self._with_changed(chosen, phase=phase, **changes)

    def _with_changed(self, chosen: Collection[Reservation], **changes: Any) -> Held:
        changed = (reservation.changed(**changes) if reservation in chosen else reservation for reservation in self.all)
        return Held(tuple(changed))

    def _own(self, reservations: Collection[Reservation]) -> set[Reservation]:
        """Return these reservations. Raises ValueError for one that the workload does not have, or no longer so."""
        own = set(reservations)
        if not own <= set(self.all):
            raise ValueError("a decision changed a reservation that its workload does not have")
        return own

    def with_world_size(self, nodes_a_group: int, rendezvous: Rendezvous | None, groups: int) -> Held:
        """Write into every slot the number of nodes of the workload, which node has rank 0, and its address.

        The number covers the groups that are reserved, and those below `groups`, which are open or being repaired:
        never ranks that only the spec requests. While no group has rank 0, its node and address stay as they are.
        """
        live = self.live()
        size = max(groups, max(live, default=-1) + 1) * nodes_a_group
        first_group = live.get(0)

        def published(reservation: Reservation) -> Reservation:
            allocation = reservation.allocation
            rank0_node, address = allocation.rank0_node, allocation.rendezvous
            if first_group is not None:
                rank0_node, address = first_group.allocation.nodes[0], rendezvous
            same = (allocation.world_size, allocation.rank0_node, allocation.rendezvous) == (size, rank0_node, address)
            if same or live.get(allocation.ultraserver_index) is not reservation:
                return reservation
            return reservation.changed(world_size=size, rank0_node=rank0_node, rendezvous=address)

        return Held(tuple(map(published, self.all)))


def sizes(reservations: Iterable[Reservation]) -> dict[int, int]:
    """Return how many nodes a workload has for each index.

    Of two reservations for one index the larger counts.
    """
    sizes_by_index: dict[int, int] = {}
    for reservation in reservations:
        index = reservation.allocation.ultraserver_index
        sizes_by_index[index] = max(sizes_by_index.get(index, 0), reservation.allocation.node_count)
    return sizes_by_index
