"""The reservations of one workload, as a value: each change returns another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from controller.decisions.states import check_step
from controller.observe.model import Reservation
from neuron_dra.core.notice import Notice
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.ultraserver import Phase


def _order(one: Reservation) -> tuple[int, str]:
    return one.allocation.ultraserver_index, one.allocation.allocation_id


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
        found: dict[int, Reservation] = {}
        for each in self.all:
            index = each.allocation.ultraserver_index
            if each.allocation.phase is Phase.BOUND or (each.allocation.phase is Phase.PENDING and index not in found):
                found[index] = each
        return found

    @property
    def opened(self) -> int:
        """How many groups are or were open for pods, by the highest index. A request beyond that is growth."""
        indices = [each.allocation.ultraserver_index for each in self.all if each.allocation.phase is not Phase.PENDING]
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
        return [each for each in self.all if each.allocation.phase is phase]

    def with_another_size(self, stored: Held) -> list[Reservation]:
        """Return the Bound reservations whose number of the workload's nodes is not stored as it is here."""
        sizes_stored = {each.allocation.allocation_id: each.allocation.world_size for each in stored}
        live = (each for each in self.live().values() if each.allocation.phase is Phase.BOUND)
        return [each for each in live if sizes_stored.get(each.allocation.allocation_id) != each.allocation.world_size]

    def add(self, *more: Reservation) -> Held:
        """Return the value with more reservations."""
        return Held.of((*self.all, *more))

    def bind(self, *some: Reservation) -> Held:
        """Open the nodes of some of these reservations for pods of their workload."""
        return self._to(Phase.BOUND, some)

    def drain(self, *some: Reservation, notice: Notice) -> Held:
        """Close the nodes of some of these reservations, for the reason in `notice`; their faults no longer matter."""
        return self._to(Phase.DRAINING, some, faults=(), notice=notice)

    def tell(self, notice: Notice | None) -> Held:
        """Have this notice in every reservation that is open for pods, in place of an earlier one."""
        stale = {each for each in self.bound if each.allocation.notice != notice}
        if not stale:
            return self
        return Held(tuple(one.changed(notice=notice) if one in stale else one for one in self.all))

    def drop(self, *some: Reservation) -> Held:
        """Remove some of these reservations: their nodes are free."""
        for one in some:
            check_step(one.allocation.phase, None)
        gone = self._own(some)
        return Held(tuple(each for each in self.all if each not in gone)) if gone else self

    def _to(self, phase: Phase, some: Collection[Reservation], **changes: Any) -> Held:
        for one in some:
            check_step(one.allocation.phase, phase)
        chosen = self._own(some)
        if not chosen:
            return self
        return Held(tuple(one.changed(phase=phase, **changes) if one in chosen else one for one in self.all))

    def _own(self, some: Collection[Reservation]) -> set[Reservation]:
        """Return these reservations. Raises ValueError for one that the workload does not have, or no longer so."""
        found = set(some)
        if not found <= set(self.all):
            raise ValueError("a decision changed a reservation that its workload does not have")
        return found

    def with_world_size(self, nodes_a_group: int, rendezvous: Rendezvous | None, groups: int) -> Held:
        """Write into every slot the number of nodes of the workload, which node has rank 0, and its address.

        The number covers the groups that are reserved, and those below `groups`, which are open or being repaired:
        never ranks that only the spec requests. While no group has rank 0, its node and address stay as they are.
        """
        live = self.live()
        size = max(groups, max(live, default=-1) + 1) * nodes_a_group
        first = live.get(0)

        def published(one: Reservation) -> Reservation:
            has = one.allocation
            rank0_node, address = has.rank0_node, has.rendezvous
            if first is not None:
                rank0_node, address = first.allocation.nodes[0], rendezvous
            same = (has.world_size, has.rank0_node, has.rendezvous) == (size, rank0_node, address)
            if same or live.get(has.ultraserver_index) is not one:
                return one
            return one.changed(world_size=size, rank0_node=rank0_node, rendezvous=address)

        return Held(tuple(map(published, self.all)))


def sizes(held: Iterable[Reservation]) -> dict[int, int]:
    """Return how many nodes a workload has for each index.

    Of two reservations for one index the larger counts.
    """
    found: dict[int, int] = {}
    for each in held:
        index = each.allocation.ultraserver_index
        found[index] = max(found.get(index, 0), each.allocation.node_count)
    return found
