"""Which workloads would have to move so that one that waits gets its place. Advice only: nobody is moved. Pure.

Enough nodes may be free for a workload, but scattered over UltraServers where small groups of others have the rest.
Here the places are found that the fewest workloads have to leave. An answer is given only if the planner itself, with a
few UltraServers of the fleet, places the workload there and all that leave somewhere else.

The cost is bounded, whatever the fleet: see the numbers below.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.core.ultraserver import Phase, read_allocations
from neuron_dra.planner.decisions.actions import Plan, WriteUltraServerStatus
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.places import everywhere
from neuron_dra.planner.fleet.spares import SIZE, Numbers
from neuron_dra.planner.observed.model import (
    FINALIZER,
    NOTHING_KNOWN,
    ClaimUse,
    FleetSnapshot,
    Known,
    Reservation,
    UltraServer,
    Workload,
    shortened,
)
from neuron_dra.planner.plan import planning

GROUPS_AT_MOST: Final = 64
"""A workload that lacks more groups gets no advice."""
EXAMINED_AT_MOST: Final = 1_000
"""The number of UltraServers, those with the most free nodes first, in which places are looked for."""
BLOCKS_AT_MOST: Final = 24
"""The number of places, those that the fewest workloads have first, of which sets are compared."""
SETS_AT_MOST: Final = 3_000
"""The number of sets that are compared; if there are more, one is built step by step."""
TRIED_AT_MOST: Final = 4
"""The number of sets that the planner tries."""
SPARE: Final = 8
"""The planner gets this many more free places than are needed."""


@dataclass(frozen=True, slots=True)
class Room:
    """What would make room: the workloads that have to leave, by namespace/name, and the nodes that they leave."""

    workloads: tuple[str, ...]
    nodes: tuple[str, ...]

    def message(self, reader: str) -> str:
        """Return the advice, for a message in the namespace `reader`."""
        number = len(self.workloads)
        whose = "1 workload" if number == 1 else f"{number} workloads"
        own_refs = [ref for ref in self.workloads if ref.startswith(f"{reader}/")]
        listed = [shortened(own_refs)] if own_refs else []
        if len(own_refs) < number:
            listed.append(f"{number - len(own_refs)} of other namespaces")
        return (
            f"there would be room if {whose} moved: {' and '.join(listed)}, from {shortened(self.nodes)}; nobody is "
            "moved because of this"
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """A slot of the wanted size whose nodes are free but for these smaller reservations of others."""

    slot: placement.Slot
    movers: tuple[Reservation, ...]

    @property
    def workloads(self) -> frozenset[str]:
        """The UIDs of the workloads that have to leave it."""
        return frozenset(mover.allocation.holder for mover in self.movers)


def advice(
    index: FleetIndex,
    workload: Workload,
    now: datetime.datetime,
    known: Known = NOTHING_KNOWN,
    spares: Numbers = (),
) -> Room | None:
    """Return what would make room for the groups that a workload lacks; None if nothing is found.

    - `spares`: how many groups are kept from new workloads, and so from those that would move because of this.
    """
    live = {
        reservation.allocation.ultraserver_index for reservation in index.held(workload.uid) if _is_live(reservation)
    }
    missing = sum(group_index not in live for group_index in range(min(workload.count, GROUPS_AT_MOST + len(live) + 1)))
    if workload.size < 2 or not 0 < missing <= GROUPS_AT_MOST:
        return None
    blocks = list(_blocks(index, workload, known.unwritable))
    kept = dict(spares).get(workload.instance_type, 0)
    judge = _Judge(index, workload, missing, now, known.unwritable, kept)
    for kind in placement.KINDS:
        short = missing - _number(index, workload, kind, kept)
        of_kind = [block for block in blocks if block.slot.kind == kind]
        if short <= 0:
            continue
        for chosen in itertools.islice(_sets(of_kind, short), TRIED_AT_MOST):
            if judge.allows(chosen):
                return _room(chosen)
    return None


def _number(index: FleetIndex, workload: Workload, kind: str, kept: int) -> int:
    """Return how many free places there are for the workload; below 0 if whole groups are missing to the spares.

    - `kept`: the number of spares.
    """
    free = index.places(workload.instance_type, workload.size).number(everywhere(kind))
    if not kept:
        return free
    if workload.size == SIZE:
        return free - kept
    whole = index.places(workload.instance_type, SIZE).number(everywhere(kind))
    return free - min(kept, whole) * (SIZE // workload.size)


def _is_live(reservation: Reservation) -> bool:
    return reservation.allocation.phase is not Phase.DRAINING


def _room(chosen: Iterable[_Block]) -> Room:
    allocations = [mover.allocation for block in chosen for mover in block.movers]
    nodes = [node_name for allocation in allocations for node_name in allocation.nodes]
    return Room(tuple(sorted({allocation.workload for allocation in allocations})), tuple(sorted(nodes)))


def _blocks(index: FleetIndex, workload: Workload, unwritable: Collection[str]) -> Iterator[_Block]:
    """Yield the places of the workload's size that are not free, but would be if smaller groups left."""
    ultraservers_with_free_nodes = index.tally(workload.instance_type, {}).parts
    examined = heapq.nlargest(EXAMINED_AT_MOST, ultraservers_with_free_nodes, key=lambda part: part[1])
    for ultraserver_name, _ in examined:
        stored, group = index.ultraserver_by_name.get(ultraserver_name), index.group_by_name.get(ultraserver_name)
        if stored is None or group is None or stored.deleting or ultraserver_name in unwritable:
            continue
        if not any(reservation.allocation.node_count < workload.size for reservation in stored.reservations):
            continue
        for slot in placement.slots((group,), frozenset(), workload.instance_type, workload.size):
            movers = _movers(index, stored, slot, workload)
            if movers:
                yield _Block(slot, movers)


def _movers(
    index: FleetIndex, stored: UltraServer, slot: placement.Slot, workload: Workload
) -> tuple[Reservation, ...]:
    """Return the reservations that have to leave a slot; none if it is free, or would not be free even then."""
    slot_nodes = {*slot.nodes}
    if any(not slot_nodes.isdisjoint(unread_entry.nodes) for unread_entry in stored.unread):
        return ()
    movers = [
        reservation for reservation in stored.reservations if not slot_nodes.isdisjoint(reservation.allocation.nodes)
    ]
    for mover in movers:
        allocation = mover.allocation
        is_own = allocation.holder == workload.uid
        is_smaller = allocation.node_count < workload.size
        is_inside = {*allocation.nodes} <= slot_nodes
        if is_own or not _is_live(mover) or not (is_smaller and is_inside):
            return ()
    leaving_nodes = {node_name for mover in movers for node_name in mover.allocation.nodes}
    # A pod without a reservation does not move.
    return () if any(index.uses(node_name) for node_name in slot_nodes - leaving_nodes) else tuple(movers)


def _sets(blocks: Sequence[_Block], number: int) -> Iterator[tuple[_Block, ...]]:
    """Yield sets of so many places, those that the fewest workloads and then the fewest groups have to leave first."""

    def cost(chosen: Iterable[_Block]) -> tuple[int, int, list[tuple[int, int, str, int]]]:
        blocks_to_clear = [*chosen]
        uids = frozenset[str]().union(*(block.workloads for block in blocks_to_clear))
        number_of_movers = sum(len(block.movers) for block in blocks_to_clear)
        return len(uids), number_of_movers, [block.slot.fit for block in blocks_to_clear]

    best = heapq.nsmallest(BLOCKS_AT_MOST, blocks, key=lambda block: cost([block]))
    if number <= len(best) and math.comb(len(best), number) <= SETS_AT_MOST:
        yield from sorted(itertools.combinations(best, number), key=cost)
        return
    remaining, chosen = [*blocks], list[_Block]()
    leaving_uids: Counter[str] = Counter()
    while len(chosen) < number and remaining:
        # The place that adds the fewest workloads to those that leave already.
        cheapest = min(
            remaining, key=lambda block: (len(block.workloads - leaving_uids.keys()), len(block.movers), block.slot.fit)
        )
        remaining.remove(cheapest)
        chosen.append(cheapest)
        leaving_uids.update(cheapest.workloads)
    if len(chosen) == number:
        yield tuple(chosen)


# -- the planner's judgement -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judge:
    """What the planner judges with: the fleet, the workload that lacks `missing` groups, the time, and the spares."""

    index: FleetIndex
    workload: Workload
    missing: int
    now: datetime.datetime
    unwritable: Collection[str]
    kept: int

    def allows(self, chosen: Sequence[_Block]) -> bool:
        """Return True if the planner places the workload, and all that leave the chosen places."""
        waits_since = self.now - datetime.timedelta(days=1)
        hypothetical = [_as_if_new(self.workload, "waits", self.missing, self.workload.size, waits_since)]
        allocations = [mover.allocation for block in chosen for mover in block.movers]
        for number, allocation in enumerate(allocations):
            mover = self.index.workload_by_uid.get(allocation.holder)
            if mover is None or mover.deleting:
                return False  # it is about to leave anyway
            hypothetical.append(_as_if_new(mover, f"leaves-{number}", 1, allocation.node_count, self.now))
        fleet = replace(self.fleet(chosen), workloads=tuple(hypothetical))
        limits = Limits(spares=((self.workload.instance_type, self.kept),))
        reserved_groups = _reserved(planning.plan_of(FleetIndex.of(fleet), self.now, limits))
        return all(reserved_groups[workload.uid] == workload.count for workload in hypothetical)

    def fleet(self, chosen: Sequence[_Block]) -> FleetSnapshot:
        """Return a part of the fleet as if the chosen places were free: where they are, and where free places are."""
        index, kind = self.index, chosen[0].slot.kind
        ultraservers = [index.ultraserver_by_name[ultraserver_name] for ultraserver_name in sorted(self._names(chosen))]
        groups = [index.group_by_name[ultraserver.name] for ultraserver in ultraservers]
        node_names = sorted({node_name for group in groups for node_name in group.node_names})
        published = [
            index.published_by_name[node_name] for node_name in node_names if node_name in index.published_by_name
        ]
        leaving_nodes = {
            node_name for block in chosen for mover in block.movers for node_name in mover.allocation.nodes
        }
        taken_nodes = [
            node_name for node_name in node_names if node_name not in leaving_nodes and index.is_taken(node_name)
        ]
        nodes = [index.node_by_name[node_name] for node_name in node_names]
        published_of_kind = [replace(node, tag=None) for node in published if node.kind == kind]
        claims = [ClaimUse("", f"on-{node_name}", (node_name,), None) for node_name in taken_nodes]
        empty = [replace(ultraserver, reservations=(), unread=()) for ultraserver in ultraservers]
        return FleetSnapshot(
            published=tuple(published_of_kind), nodes=tuple(nodes), claims=tuple(claims), ultraservers=tuple(empty)
        )

    def _names(self, chosen: Sequence[_Block]) -> set[str]:
        """Return the names of the UltraServers that the planner sees."""
        numbers_by_size = Counter(mover.allocation.node_count for block in chosen for mover in block.movers)
        numbers_by_size[self.workload.size] += self.missing
        ultraserver_names = {block.slot.ultraserver for block in chosen}
        for size, number in numbers_by_size.items():
            free = self.index.places(self.workload.instance_type, size).best(everywhere(chosen[0].slot.kind))
            # Those in chosen places are no places for what leaves them.
            most = number + self.workload.size * len(chosen) + SPARE
            ultraserver_names.update(slot.ultraserver for slot in free[:most])
        whole = self.index.places(self.workload.instance_type, SIZE).worst(everywhere(chosen[0].slot.kind))
        ultraserver_names.update(slot.ultraserver for slot in itertools.islice(whole, self.kept))
        return ultraserver_names - {*self.unwritable}


def _as_if_new(workload: Workload, uid: str, count: int, size: int, created: datetime.datetime) -> Workload:
    """Return a workload of the same kind that has nothing yet, and waits for no queue."""
    return replace(
        workload,
        uid=uid,
        name=uid,
        template_name=uid,
        count=count,
        size=size,
        created=created,
        status={},
        groups=(),
        deleting=False,
        finalizers=(FINALIZER,),
        queue="",
        made_for="",
        priority_class="",
    )


def _reserved(plan: Plan) -> Counter[str]:
    """Return how many groups a plan reserves, by the UID of the workload."""
    writes = (action for action in plan.actions if isinstance(action, WriteUltraServerStatus))
    return Counter(
        allocation.holder for action in writes for allocation in read_allocations({"status": action.status}).allocations
    )
