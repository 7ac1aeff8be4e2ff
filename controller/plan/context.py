"""The state of a plan in progress: its input, its limits and its decisions so far. Pure, no I/O.

The functions of this package receive the context and add their decisions to it: reservations to `holdings`, writes to
the lists of actions, times to `recheck`. Workloads are planned one after the other, so each sees the decisions for
those before it.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from controller.observe.model import ClusterNode, Template, Turn, Workload
from controller.plan import objects, outage, placement, restoration
from controller.plan.actions import Action, WriteWorkloadStatus
from controller.plan.fleet_index import FleetIndex
from controller.plan.holdings import Holdings
from controller.plan.quota import Quota
from neuron_dra.core.ultraserver import Phase


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a plan: waits, and numbers of nodes or restarts. Each is a flag of the controller.

    - `tag_timeout`: a node that has not tagged after this time loses its Pending reservation.
    - `starvation_threshold`: a workload that has waited for this time holds back others of its type.
    - `starvation_limit`: it does so for at most this time.
    - `node_failure_grace`: a node may be gone or not Ready for this time before a strategy acts.
    - `fault_grace`: the same for all other faults.
    - `outage_nodes`, `outage_percent`: nothing is evicted if at least this number of nodes, and more than this
      percentage, are unavailable.
    - `restart_limit`: restarts in a row, for RestartAll.
    - `max_reserved_nodes`: by a namespace without the annotation; None is no limit.
    """

    tag_timeout: datetime.timedelta = datetime.timedelta(seconds=60)
    starvation_threshold: datetime.timedelta = datetime.timedelta(minutes=10)
    starvation_limit: datetime.timedelta = datetime.timedelta(minutes=30)
    node_failure_grace: datetime.timedelta = datetime.timedelta(minutes=5)
    fault_grace: datetime.timedelta = datetime.timedelta(minutes=1)
    outage_nodes: int = 3  # nothing is evicted if at least this number and more than this percentage are unavailable
    outage_percent: int = 55
    restart_limit: int = 3  # restarts in a row, for RestartAll
    max_reserved_nodes: int | None = None  # by a namespace without the annotation; None is no limit


DEFAULT_LIMITS = Limits()
_FIT = attrgetter("fit")


class FreeSlots:
    """The free slots at this point of a plan.

    Results are cached until a reservation is made or dropped, because a thousand workloads may wait for the same slots.
    """

    def __init__(self, index: FleetIndex, holdings: Holdings) -> None:
        self._index = index
        self._holdings = holdings
        self._version = -1
        self._free: dict[tuple[str, int], tuple[int, list[placement.Slot]]] = {}  # with the version it is of
        self._own: dict[tuple[str, str, int], tuple[placement.Slot, ...]] = {}  # of UltraServers that the plan changed
        self._shortages: dict[tuple[str, int, int], placement.Shortage] = {}
        self._tallies: dict[str, placement.Tally] = {}  # by instance type, since this plan's last reservation
        self._numbers: dict[tuple[str, int], tuple[int, int]] = {}  # free slots of one kind, and with those coming

    def free(self, instance_type: str, size: int) -> Sequence[placement.Slot]:
        """Return the free slots of `size` nodes of an instance type, the best fit first.

        Only UltraServers that have an object count, because the reservation is stored in it.
        """
        key, version = (instance_type, size), self._holdings.version
        before = self._free.get(key)
        if before is not None and before[0] == version:
            return before[1]
        if before is None:
            found, names = self._stored(instance_type, size), {*self._holdings.changed}
        else:
            found, names = list(before[1]), {*self._holdings.journal[before[0] :]}
        for name in names - self._index.unwritable.keys():
            self._overlay(found, name, instance_type, size)
        self._free[key] = version, found
        return found

    def has_type(self, instance_type: str) -> bool:
        """Return True if there is an UltraServer of this type."""
        return self._index.members(instance_type) > 0

    def members(self, instance_type: str) -> int:
        """Return the number of nodes of all UltraServers of this type, healthy or not."""
        return self._index.members(instance_type)

    def capacity(self, instance_type: str, size: int, kind: str | None) -> int:
        """Return the number of slots, free or not, of one resourceType; without `kind`, of the more frequent one."""
        return self._index.capacity(instance_type, size, kind)

    def shortage(self, workload: Workload, count: int) -> placement.Shortage:
        """Return why `count` more slots of the workload's type and size are not available, with numbers.

        While the objects of enough free nodes are being created, the reason is CreatingUltraServers.
        """
        self._renew()
        key = (workload.instance_type, workload.size, count)
        if key not in self._shortages:
            have, soon = self._free_numbers(workload.instance_type, workload.size)
            if soon >= count > have:
                text = "the NeuronUltraServer objects of free nodes are being created"
                self._shortages[key] = placement.Shortage("CreatingUltraServers", text)
            else:
                tally = self._tally(workload.instance_type)
                self._shortages[key] = placement.shortage(tally, workload, have, count)
        return self._shortages[key]

    def _free_numbers(self, instance_type: str, size: int) -> tuple[int, int]:
        """Return how many free slots one workload could have, and how many with the objects that are being created."""
        key = (instance_type, size)
        if key not in self._numbers:
            free = self.free(instance_type, size)
            have = placement.most_of_a_kind(free)
            unstored = self._index.unstored
            coming = placement.slots(unstored, self._holdings, instance_type, size) if unstored else ()
            self._numbers[key] = have, placement.most_of_a_kind((*free, *coming)) if coming else have
        return self._numbers[key]

    def _tally(self, instance_type: str) -> placement.Tally:
        """Return the count of the UltraServers of a type: the index keeps it until this plan changes a reservation."""
        if not self._holdings.changed:
            return self._index.tally(instance_type)
        if instance_type not in self._tallies:
            self._tallies[instance_type] = placement.tally(self._index.groups, self._holdings, instance_type)
        return self._tallies[instance_type]

    def of_nodes(self, names: set[str], instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the slots of `size` nodes that these nodes form, reserved or not."""
        groups = {group.name: group for name in sorted(names) for group in self._index.groups_of(name)}
        others = frozenset(name for group in groups.values() for name in group.node_names) - names
        return placement.slots(groups.values(), others, instance_type, size)

    def _stored(self, instance_type: str, size: int) -> list[placement.Slot]:
        """Return the free slots before this plan."""
        stored = self._index.slots(instance_type, size)
        return [slot for slot in stored if slot.ultraserver not in self._index.unwritable]

    def _overlay(self, found: list[placement.Slot], name: str, instance_type: str, size: int) -> None:
        """Replace the slots of one UltraServer in a list that is sorted by fit."""
        group = self._index.group_by_name.get(name)
        if group is None or name not in self._index.ultraserver_by_name:
            return
        key = (name, instance_type, size)
        before = self._own.get(key)
        for slot in self._index.slot_index.free_of(*key) if before is None else before:
            del found[bisect.bisect_left(found, slot.fit, key=_FIT)]
        self._own[key] = placement.slots((group,), self._holdings, instance_type, size)
        for slot in self._own[key]:
            bisect.insort(found, slot, key=_FIT)

    def _renew(self) -> None:
        """Empty the cache if reservations were made or dropped since it was filled."""
        if self._version != self._holdings.version:
            self._version = self._holdings.version
            self._shortages, self._tallies, self._numbers = {}, {}, {}


@dataclass(slots=True)
class PlanningContext:
    """The state of one call of `planning.plan`.

    Actions are collected in four lists and written in this order: `before` (finalizers and templates), reservations,
    `after`, `statuses`, `last`.
    """

    snapshot: FleetIndex
    now: datetime.datetime
    limits: Limits
    holdings: Holdings
    free_slots: FreeSlots
    quota: Quota
    before: list[Action] = field(default_factory=list)  # finalizers and templates, written before reservations
    after: list[Action] = field(default_factory=list)
    statuses: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)
    starving: dict[str, Workload] = field(default_factory=dict)  # by instance type
    turns: dict[tuple[str, str], Turn] = field(default_factory=dict)  # by instance type and namespace, see `queue`
    recheck: list[datetime.datetime] = field(default_factory=list)
    outage: outage.Outage | None = None
    withdrawn: set[str] = field(default_factory=set)  # UIDs of workloads whose restart is withdrawn
    errors: dict[str, Exception] = field(default_factory=dict)  # by namespace/name or name of the object
    unrestored: restoration.Failures = field(default_factory=restoration.Failures)
    contested: Mapping[tuple[str, str], Workload] = field(default_factory=dict)
    """Which workload gets each template name that several request."""

    @classmethod
    def of(cls, index: FleetIndex, now: datetime.datetime, limits: Limits) -> PlanningContext:
        """Return a context without decisions, except that lost reservations are restored.

        `now` is the time of the plan; every duration is measured against it.
        """
        holdings = Holdings(index)
        quota = Quota(index, limits.max_reserved_nodes, holdings)
        unrestored = restoration.restore(index, holdings, quota, now)
        found = outage.judge(index.countable, index.away, at_least=limits.outage_nodes, percent=limits.outage_percent)
        free_slots = FreeSlots(index, holdings)
        contested = template_names(index.workloads, index.template_by_key, holdings)
        return cls(
            index,
            now,
            limits,
            holdings,
            free_slots,
            quota,
            outage=found,
            errors=dict(unrestored.ultraservers),
            unrestored=unrestored,
            turns=dict(index.turns),
            contested=contested,
        )

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """Every Node by name."""
        return self.snapshot.node_by_name

    @property
    def templates(self) -> Mapping[tuple[str, str], Template]:
        """Every ResourceClaimTemplate by namespace and name."""
        return self.snapshot.template_by_key

    def explain(self, workload: Workload, reason: str, text: str) -> None:
        """Plan the write of one condition, if it changes. The rest of the stored status stays, with its copies."""
        kind = ("Degraded", True) if workload.runs else ("Ready", False)
        status = objects.with_condition(workload, *kind, reason, text, self.now)
        if status is not None and workload.version:  # what was never read has no version, and cannot be written
            meta = (workload.namespace, workload.name, workload.uid, workload.version)
            self.statuses.append(WriteWorkloadStatus(*meta, workload.status, status, warning=True))

    def look_again(self, moment: datetime.datetime) -> None:
        """Plan again at that time, if it is in the future."""
        if moment > self.now:
            self.recheck.append(moment)


def template_names(
    workloads: Iterable[Workload], templates: Mapping[tuple[str, str], Template], holdings: Holdings
) -> dict[tuple[str, str], Workload]:
    """Return which workload gets each template name that several request, by namespace and name.

    It is the one whose template exists, else one with Bound nodes, else the oldest. A name that one workload requests
    is not in the result.
    """
    asking: dict[tuple[str, str], list[Workload]] = {}
    for each in workloads:
        asking.setdefault((each.namespace, each.template_name), []).append(each)

    def claim(workload: Workload) -> tuple[bool, bool, bool, datetime.datetime, str]:
        """Return the sort key: the workload with the best claim to its template's name is the smallest."""
        template = templates.get((workload.namespace, workload.template_name))
        bound = any(one.allocation.phase is Phase.BOUND for one in holdings.of(workload.uid))
        has_it = template is not None and template.is_of(workload)
        return not has_it, not bound, workload.deleting, workload.created, workload.ref

    return {name: min(found, key=claim) for name, found in asking.items() if len(found) > 1}


def join_texts(*texts: str) -> str:
    """Return the texts that are not empty, joined with semicolons."""
    return "; ".join(text for text in texts if text)
