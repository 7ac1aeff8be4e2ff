"""Every metric of the controller, in one list."""

from __future__ import annotations

import datetime
import statistics
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import vocabulary
from neuron_dra.metric_table import MetricTable, Rows, Series
from neuron_dra.planner.decisions.actions import Plan
from neuron_dra.planner.decisions.reasons import WAITS_FOR_QUEUE
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.due_times import DueTimes
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.fleet.spares import SIZE, Numbers
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import ENDS_SOON, Workload, condition

ROWS: Final = Rows("neuron_ultraserver")
LEADER = ROWS.gauge("leader", "1 while this replica is the leader")
WORKLOADS = ROWS.gauge("workloads", "Workloads by state", "state")
SERVERS = ROWS.gauge("ultraservers", "UltraServers, Ready or Degraded", "state")
NODES = ROWS.gauge("nodes", "Nodes of UltraServers: free, reserved, or neither", "state")
FREE = ROWS.gauge(
    "free_groups",
    "Groups of nodes that a new workload could reserve now, by instance type and nodes in a group",
    "instance_type",
    "size",
)
SPARES = ROWS.gauge(
    "spare_groups",
    "Groups of four nodes that only groups which must move may take: kept now, and missing of the number set",
    "instance_type",
    "state",
)
IDLE = ROWS.gauge("idle_reserved_nodes", "Ready nodes that are reserved and open, and have no claim")
OLDEST = ROWS.gauge(
    "oldest_waiting_timestamp_seconds",
    "Unix time since which the Pending workload that waits longest is not Ready, without those that wait for a queue; "
    "0 if none waits",
)
QUEUED = ROWS.gauge("queued_workloads", "Workloads that wait for their queue, by reason", "reason")
OUTDATED = ROWS.gauge(
    "crd_outdated",
    "1 while the API server drops or rejects writes of this kind, because its CRD is another release's",
    "crd",
)
UNREADABLE = ROWS.gauge(
    "unreadable_objects",
    "Objects of which values (part) or the whole (all) cannot be decoded, by resource; the log names them",
    "resource",
    "extent",
)
WRITES = ROWS.counter("writes", "Writes, by action and result", "action", "result")
HELD = ROWS.gauge("held_writes", "Writes that wait because they were rejected or had no effect")
LOST_EVENTS = ROWS.counter("lost_events", "Times that an Event could not be posted; it is posted again")
ANSWERS = ROWS.counter("grpc_answers", "Answers of the gRPC service, by method and code", "method", "code")
PLANS = ROWS.histogram("plan_seconds", "Time to make one plan", (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5))
ALLOCATIONS = ROWS.histogram(
    "time_to_allocated_seconds",
    "From a workload's creation to its first state Allocated",
    (0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200),
)
FAILURES = ROWS.counter("failures", "Workloads that became Degraded, by the condition's reason", "reason")
RECOVERIES = ROWS.counter(
    "recoveries", "Started restarts (RestartAll) and moves of groups (MigrateAffected)", "strategy"
)
DEGRADED_NOW = ROWS.gauge("degraded_workloads", "Workloads that are Degraded, by the condition's reason", "reason")
REPORTED = ROWS.gauge(
    "reported_nodes", "Nodes of which an agent reports a fault, or did in the last 5 minutes: they are not chosen"
)
ENDING = ROWS.gauge(
    "ending_workloads", "Workloads whose nodes EC2 takes back soon, because a capacity block ends (condition EndsSoon)"
)
NEXT_END = ROWS.gauge(
    "next_block_end_timestamp_seconds", "Unix time at which the first capacity block of a Node ends; 0 if none is known"
)
DEGRADED = ROWS.histogram(
    "degraded_seconds",
    "From the time a workload became Degraded to the end of all its faults",
    (1, 5, 10, 30, 60, 120, 300, 600, 1800, 7200, 86400),
)
EVICTIONS = ROWS.counter(
    "evictions",
    "Requested evictions, by answer: evicted, refused by a disruption budget, or the pod was gone",
    "result",
)
TESTS = ROWS.counter("tests", "Tests that ended, by verdict: passed, failed or none", "qualification", "verdict")
TESTED = ROWS.gauge(
    "tested_groups",
    "Groups by the result of their last test: fresh (passed within maxAge), failed, and of these unqualified",
    "qualification",
    "result",
)
OLDEST_RESULT = ROWS.gauge(
    "oldest_result_timestamp_seconds",
    "Unix time of the oldest result of a qualification; 0 without one",
    "qualification",
)
STORMS = ROWS.gauge("failure_storm", "1 while so many groups fail that a qualification tests nothing", "qualification")
FIGURES = ROWS.gauge(
    "figure",
    "Lowest, median and highest value of a figure that tests reported, over the groups of an instance type",
    "qualification",
    "instance_type",
    "figure",
    "of",
)
OF_QUALIFICATIONS: Final = (TESTED, OLDEST_RESULT, STORMS, FIGURES)
OF_CLUSTER: Final = (
    *(WORKLOADS, SERVERS, NODES, FREE, SPARES, QUEUED, DEGRADED_NOW, OUTDATED, UNREADABLE, *OF_QUALIFICATIONS),
    *(HELD, IDLE, OLDEST, REPORTED, ENDING, NEXT_END),
)
"""What only the leader reports, so that sums over the replicas stay right."""


@dataclass(frozen=True, slots=True)
class QualificationFigures:
    """What tests of one qualification found: numbers of groups by result, Unix time of the oldest, and all figures.

    - `values`: by instance type and figure, one of each group.
    """

    name: str
    groups: Mapping[str, int]
    oldest: float
    storm: bool
    values: Mapping[tuple[str, str], Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is counted of one workload; empty for what it is not counted in."""

    state: str
    fault: str
    queued: str
    ends_soon: bool
    since: datetime.datetime | None


class WorkloadFigures:
    """Numbers of workloads by what they are and wait for. They follow an index, and cost what changed.

    - `states`: without expired ones, which have no fault that somebody must correct.
    - `faults`, `queued`: by the reason. `ending`: how many have nodes that EC2 takes back soon.
    """

    def __init__(self, index: FleetIndex) -> None:
        self.index = index
        self.states: Tally[str] = Tally()
        self.faults: Tally[str] = Tally()
        self.queued: Tally[str] = Tally()
        self.ending = 0
        self._changes = index.follow()
        self._facts: dict[str, _Facts] = {}  # by UID
        self._since = DueTimes()  # since when those wait that wait for nodes

    def oldest(self) -> float:
        """Return the Unix time since which the workload waits that waits longest; 0 if none waits."""
        since = self._since.next()
        return 0.0 if since is None else since.timestamp()

    def follow(self) -> None:
        """Follow the changes since the last time."""
        for uid, workload in self._changes.take().workloads.items():
            before = self._facts.get(uid)
            if before is not None:
                self._count(before, -1)
            now = None if workload is None else _facts(workload)
            if now is not None:
                self._count(now, 1)
            put(self._facts, uid, now)
            self._since.set(uid, None if now is None else now.since)

    def _count(self, facts: _Facts, sign: int) -> None:
        self.ending += sign * facts.ends_soon
        for numbers, key in ((self.states, facts.state), (self.faults, facts.fault), (self.queued, facts.queued)):
            numbers[key] += sign if key else 0
            if not numbers[key]:
                del numbers[key]


def _facts(workload: Workload) -> _Facts:
    """Return what is counted of a workload."""
    ready = condition(workload.status, "Ready")
    waits = workload.state == State.PENDING and not workload.deleting
    reason = str(ready.get("reason")) if waits else ""
    is_queued = reason in WAITS_FOR_QUEUE
    fault = _degraded(workload.status)
    since = None
    if waits and not is_queued and ready.get("status") != "True":
        since = max(workload.created, decode.time(ready.get("lastTransitionTime")))
    return _Facts(
        state="" if workload.expired and workload.state == State.FAILED else workload.state,
        fault=str(fault.get("reason")) if fault else "",
        queued=reason if is_queued else "",
        ends_soon=_ends_soon(workload.status),
        since=since,
    )


class Metrics(MetricTable):
    """The metrics. What follows from several of them, or from an index, has a method."""

    def __init__(self) -> None:
        super().__init__(ROWS.all)
        self._leads = True  # until `leading` reports otherwise
        self._outdated_crds: dict[str, bool] = {}
        self._figures_of: WorkloadFigures | None = None
        # `rate` and `increase` do not see the step to the first value of a series, so counters begin at zero.
        for word in vocabulary.REASONS:
            if (word.of, word.condition) == (vocabulary.WORKLOAD, vocabulary.DEGRADED) and word.name != "NoProblem":
                self.of(FAILURES, word.name)
        for strategy in ("RestartAll", "MigrateAffected"):
            self.of(RECOVERIES, strategy)
        for result in ("evicted", "refused", "gone"):
            self.of(EVICTIONS, result)

    def crd_outdated(self, crd: str, outdated: bool) -> None:
        """A CRD drops or rejects fields, or no longer does."""
        self._outdated_crds[crd] = outdated
        self.set(OUTDATED, 1 if outdated else 0, crd)

    def leading(self, leads: bool) -> None:
        """This replica is the leader, or not. A follower reports no figures of the cluster, so that sums stay right."""
        self.set(LEADER, 1 if leads else 0)
        if self._leads and not leads:
            self.clear(*OF_CLUSTER)
        if leads and not self._leads:
            for crd, outdated in self._outdated_crds.items():
                self.crd_outdated(crd, outdated)
        self._leads = leads

    def qualified(self, surveys: Iterable[QualificationFigures]) -> None:
        """Report the results of all qualifications."""
        self.clear(*OF_QUALIFICATIONS)
        for qualification in surveys:
            for result, number in qualification.groups.items():
                self.set(TESTED, number, qualification.name, result)
            self.set(OLDEST_RESULT, qualification.oldest, qualification.name)
            self.set(STORMS, 1 if qualification.storm else 0, qualification.name)
            for (instance_type, figure), values in qualification.values.items():
                summary = {"min": min(values), "median": statistics.median(values), "max": max(values)}
                for statistic, value in summary.items():
                    self.set(FIGURES, value, qualification.name, instance_type, figure, statistic)

    def unreadable(self, objects: Mapping[str, tuple[int, int]]) -> None:
        """Set the numbers of objects of which values, and of which the whole cannot be decoded, by resource."""
        for resource, (part, whole) in objects.items():
            self.set(UNREADABLE, part, resource, "part")
            self.set(UNREADABLE, whole, resource, "all")

    def planned(
        self, seconds: float, index: FleetIndex, plan: Plan, now: datetime.datetime, spares: Numbers = ()
    ) -> None:
        """Record a plan from this index, made at `now`, and its duration in seconds; `spares` are those to keep."""
        self.observe(PLANS, seconds)
        if self._figures_of is None or self._figures_of.index is not index:
            self._figures_of = WorkloadFigures(index)
        figures = self._figures_of
        figures.follow()
        for workload_state in State:
            self.set(WORKLOADS, figures.states[workload_state.value], workload_state.value)
        self._show(DEGRADED_NOW, figures.faults)
        self._show(QUEUED, figures.queued)
        self.set(OLDEST, figures.oldest())
        self.set(ENDING, figures.ending)
        self.set(REPORTED, len(index.reported))
        self.set(NEXT_END, min((end.timestamp() for end in index.block_ends), default=0))
        totals = index.totals
        for state in ("Ready", "Degraded"):
            self.set(SERVERS, totals.states[state], state)
        other = max(0, totals.nodes - totals.free - totals.reserved)
        for state, number in (("free", totals.free), ("reserved", totals.reserved), ("other", other)):
            self.set(NODES, number, state)
        self._groups(index, plan, spares)
        self.set(IDLE, sum(len(workload.idle) for workload in plan.starting))

    def _groups(self, index: FleetIndex, plan: Plan, spares_to_keep: Numbers) -> None:
        """Report the groups that new workloads could reserve, and those that are kept from them."""
        free, kept = Tally(index.free_numbers()), Tally[str]()
        for ultraserver_name in plan.kept.spares:
            instance_type = index.group_by_name[ultraserver_name].instance_type
            kept[instance_type] += len(index.slot_index.free_of(ultraserver_name, instance_type, SIZE))
            for _, size in [key for key in free if key[0] == instance_type]:
                free[instance_type, size] -= len(index.slot_index.free_of(ultraserver_name, instance_type, size))
        self.clear(FREE)
        for (instance_type, size), number in free.items():
            self.set(FREE, max(0, number), instance_type, size)
        self.clear(SPARES)
        for instance_type, number in spares_to_keep:
            self.set(SPARES, kept[instance_type], instance_type, "kept")
            self.set(SPARES, max(0, number - kept[instance_type]), instance_type, "missing")

    def _show(self, row: Series, numbers: Mapping[str, int]) -> None:
        """Set a gauge with one label to these numbers."""
        self.clear(row)
        for label, number in numbers.items():
            self.set(row, number, label)

    def status_written(self, before: Mapping[str, Any], after: Mapping[str, Any], now: datetime.datetime) -> None:
        """The status of a workload was written."""
        degraded_before, degraded_now = _degraded(before), _degraded(after)
        if degraded_now and degraded_now.get("reason") != (degraded_before or {}).get("reason"):
            self.add(FAILURES, str(degraded_now.get("reason")))
        if degraded_before and not degraded_now:
            seconds = (now - decode.time(degraded_before.get("lastTransitionTime"))).total_seconds()
            self.observe(DEGRADED, max(0.0, seconds))
        for counted, strategy in (("restarts", "RestartAll"), ("migrations", "MigrateAffected")):
            begun = int(after.get(counted) or 0) - int(before.get(counted) or 0)
            if begun > 0:
                self.add(RECOVERIES, strategy, number=begun)


def _degraded(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition Degraded of a status; None unless it is True."""
    degraded = condition(status, "Degraded")
    if degraded.get("status") == "True":
        return degraded
    return None


def _ends_soon(status: Mapping[str, Any]) -> bool:
    """Return True if EC2 takes nodes of a workload back soon."""
    return condition(status, ENDS_SOON).get("status") == "True"
