"""Which tests end so that waiting workloads get their nodes. Pure.

A workload that waits for nodes must not wait for a test. Whether it would get its place if tests ended is counted group
by group; a test ends only if that helps, and as few end as possible. What is found here need not be exact, so only some
free slots are looked at: the plan decides who gets the nodes. While a workload waits that could have them, no other
test begins. Only groups that replace others get spares.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.qualify.model import GroupTest
from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions.actions import WAITING_AT_MOST, Verdict
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet import placement, suitable
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.free_slots import FreeSlots
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.placement import KINDS, Slot
from neuron_dra.planner.fleet.places import everywhere
from neuron_dra.planner.fleet.spares import SparePool
from neuron_dra.planner.observed.model import Workload

SLOTS_AT_MOST: Final = 1_000
"""The free slots that are looked at in one look for those who wait in a namespace."""


@dataclass(frozen=True, slots=True)
class Yields:
    """What waiting workloads need of tests.

    - `tests`: the UIDs of the workloads of tests that end, with the workload that gets their nodes.
    - `pausing`: the instance types of which no test begins, because somebody waits who could have nodes.
    """

    tests: Mapping[str, str]
    pausing: frozenset[str]


def waiting(index: FleetIndex, verdicts: Mapping[str, Verdict]) -> list[Workload]:
    """Return the workloads that still wait for nodes, in the order of the queue, of those that waited in a plan."""
    waiting_workloads: list[Workload] = []
    for uid, verdict in verdicts.items():
        workload = index.workload_by_uid.get(uid)
        if workload is None or workload.target is not None or workload.deleting:
            continue
        if verdict.waits_for_nodes or _is_being_placed(index, workload, verdict):
            waiting_workloads.append(workload)
    return waiting_workloads[:WAITING_AT_MOST]


def _is_being_placed(index: FleetIndex, workload: Workload, verdict: Verdict) -> bool:
    """Return True if a plan has chosen nodes that are not stored yet: they look free, and are not."""
    return verdict.state == State.ALLOCATING and len(_groups(index, workload)) < workload.count


def _groups(index: FleetIndex, workload: Workload) -> set[int]:
    """Return which groups of a workload have nodes."""
    reservations = index.held(workload.uid)
    allocations = [reservation.allocation for reservation in reservations]
    return {allocation.ultraserver_index for allocation in allocations if allocation.phase is not Phase.DRAINING}


def yields(
    index: FleetIndex, workloads: Sequence[Workload], tests: Sequence[GroupTest], now: datetime.datetime, limits: Limits
) -> Yields:
    """Return which tests end for these workloads, the first in the queue first."""
    pool = _Pool(index, tests, now, limits)
    pausing: set[str] = set()
    for workload in workloads:
        if pool.serve(workload):
            pausing.add(workload.instance_type)
    return Yields(pool.ending, frozenset(pausing))


class _Pool:
    """The nodes that are free, and those that tests have, less what earlier workloads get of them."""

    def __init__(self, index: FleetIndex, tests: Sequence[GroupTest], now: datetime.datetime, limits: Limits) -> None:
        self._index = index
        self._now = now
        self._limits = limits
        self._given: set[str] = set()  # nodes
        self._test_of: dict[str, GroupTest] = {}  # by node
        self._where: dict[str, set[str]] = {}  # by instance type, the UltraServers with tests
        self._spares = _spares(index, now, limits)
        self._looks: Counter[str] = Counter()  # by namespace
        self.ending: dict[str, str] = {}
        for test in tests:
            for reservation in index.held(test.workload.uid):
                self._where.setdefault(test.workload.instance_type, set()).add(reservation.ultraserver)
                for node in reservation.allocation.nodes:
                    self._test_of[node] = test

    def serve(self, workload: Workload) -> bool:
        """Give a workload free nodes, and those of tests; return False, and give nothing, if all are not enough."""
        groups = _groups(self._index, workload)
        # One whose group has a fault needs another one, though it has all.
        missing = max(1, workload.count - len(groups))
        replaces = bool(groups) or bool(workload.status.get("restartedAt"))
        closed = self._given if replaces else self._given | self._spares
        best: list[Slot] = []
        for kind in KINDS:
            best = self._slots(workload, kind, missing, closed)
            if len(best) == missing:
                break
        if len(best) < missing:
            return False
        for slot in best:
            self._given |= {*slot.nodes}
            for node in slot.nodes:
                test = self._test_of.get(node)
                if test is not None:
                    self.ending[test.workload.uid] = workload.ref
        return True

    def _slots(self, workload: Workload, kind: str, number: int, closed: Collection[str]) -> list[Slot]:
        """Return up to so many slots of a resourceType: free ones, then those whose tests end already, then others.

        No node of `closed` is in them.
        """
        slots: list[Slot] = []
        for slot in self._index.places(workload.instance_type, workload.size).best(everywhere(kind)):
            if len(slots) == number:
                return slots
            if self._looks[workload.namespace] == SLOTS_AT_MOST:
                break
            self._looks[workload.namespace] += 1
            if self._suits(workload, slot, closed):
                slots.append(slot)
        slots += self._of_tests(workload, kind, closed)[: number - len(slots)]
        return slots

    def _of_tests(self, workload: Workload, kind: str, closed: Collection[str]) -> list[Slot]:
        """Return the slots that become free if tests end, those first for which the fewest more end."""
        ranked_slots: list[tuple[int, str, int, Slot]] = []
        for ultraserver_name in self._where.get(workload.instance_type, ()):
            group = self._index.group_by_name.get(ultraserver_name)
            if group is None:
                continue
            test_by_node = self._test_of
            taken = {node for node in group.node_names if node not in test_by_node and self._index.is_taken(node)}
            for slot in placement.slots((group,), taken, workload.instance_type, workload.size):
                slot_tests = [test_by_node[node] for node in slot.nodes if node in test_by_node]
                tests = {test.workload.uid: test for test in slot_tests}
                if tests and slot.kind == kind and self._suits(workload, slot, closed):
                    more = sum(not test.stopping and uid not in self.ending for uid, test in tests.items())
                    ranked_slots.append((more, slot.ultraserver, slot.first_id, slot))
        return [slot for *_, slot in sorted(ranked_slots, key=lambda ranked_slot: ranked_slot[:3])]

    def _suits(self, workload: Workload, slot: Slot, closed: Collection[str]) -> bool:
        if any(node in closed for node in slot.nodes):
            return False
        lasts = suitable.lasts(workload, slot, self._now, self._limits.block_lead)
        return lasts and suitable.is_qualified(workload, slot, self._now)


def _spares(index: FleetIndex, now: datetime.datetime, limits: Limits) -> frozenset[str]:
    """Return the nodes of all spares, as a plan chooses them."""
    if not limits.spares:
        return frozenset()
    free_slots = FreeSlots(index, Holdings(index), (), SparePool(limits.spares, now + limits.block_lead))
    spare_nodes: set[str] = set()
    for instance_type, _ in limits.spares:
        for slot in free_slots.spares(instance_type):
            spare_nodes.update(slot.nodes)
    return frozenset(spare_nodes)
