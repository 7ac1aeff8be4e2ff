"""Every metric of the controller, in one list."""

from __future__ import annotations

import datetime
import statistics
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from neuron_dra.core import vocabulary
from neuron_dra.planner.decisions.actions import Plan
from neuron_dra.planner.decisions.reasons import WAITS_FOR_QUEUE
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.due_times import DueTimes
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.fleet.spares import SIZE, Numbers
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import ENDS_SOON, Workload, condition

PREFIX = "neuron_ultraserver"


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


class Metrics:
    """The metrics. Each method reports one kind of event."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._leads = True  # until `leading` reports otherwise
        self._outdated_crds: dict[str, bool] = {}
        self._figures_of: WorkloadFigures | None = None
        self._leader = Gauge(f"{PREFIX}_leader", "1 while this replica is the leader", registry=registry)
        self._workloads = Gauge(f"{PREFIX}_workloads", "Workloads by state", ["state"], registry=registry)
        self._servers = Gauge(f"{PREFIX}_ultraservers", "UltraServers, Ready or Degraded", ["state"], registry=registry)
        self._nodes = Gauge(
            f"{PREFIX}_nodes", "Nodes of UltraServers: free, reserved, or neither", ["state"], registry=registry
        )
        self._capacity_gauges(registry)
        self._outdated = Gauge(
            f"{PREFIX}_crd_outdated",
            "1 while the API server drops or rejects writes of this kind, because its CRD is another release's",
            ["crd"],
            registry=registry,
        )
        self._unreadable = Gauge(
            f"{PREFIX}_unreadable_objects",
            "Objects of which values (part) or the whole (all) cannot be decoded, by resource; the log names them",
            ["resource", "extent"],
            registry=registry,
        )
        self._writes = Counter(
            f"{PREFIX}_writes", "Writes, by action and result", ["action", "result"], registry=registry
        )
        self._held = Gauge(
            f"{PREFIX}_held_writes", "Writes that wait because they were rejected or had no effect", registry=registry
        )
        self._lost_events = Counter(
            f"{PREFIX}_lost_events", "Times that an Event could not be posted; it is posted again", registry=registry
        )
        self._answers = Counter(
            f"{PREFIX}_grpc_answers",
            "Answers of the gRPC service, by method and code",
            ["method", "code"],
            registry=registry,
        )
        self._plans = Histogram(
            f"{PREFIX}_plan_seconds",
            "Time to make one plan",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )
        self._allocations = Histogram(
            f"{PREFIX}_time_to_allocated_seconds",
            "From a workload's creation to its first state Allocated",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200),
            registry=registry,
        )
        self._fault_metrics(registry)
        self._qualification_metrics(registry)
        self._start_at_zero()

    def _fault_metrics(self, registry: CollectorRegistry) -> None:
        """Add the metrics about faults of reserved nodes."""
        self._failures = Counter(
            f"{PREFIX}_failures",
            "Workloads that became Degraded, by the condition's reason",
            ["reason"],
            registry=registry,
        )
        self._recoveries = Counter(
            f"{PREFIX}_recoveries",
            "Started restarts (RestartAll) and moves of groups (MigrateAffected)",
            ["strategy"],
            registry=registry,
        )
        self._degraded_now = Gauge(
            f"{PREFIX}_degraded_workloads",
            "Workloads that are Degraded, by the condition's reason",
            ["reason"],
            registry=registry,
        )
        self._reported = Gauge(
            f"{PREFIX}_reported_nodes",
            "Nodes of which an agent reports a fault, or did in the last 5 minutes: they are not chosen",
            registry=registry,
        )
        self._ending = Gauge(
            f"{PREFIX}_ending_workloads",
            "Workloads whose nodes EC2 takes back soon, because a capacity block ends (condition EndsSoon)",
            registry=registry,
        )
        self._next_end = Gauge(
            f"{PREFIX}_next_block_end_timestamp_seconds",
            "Unix time at which the first capacity block of a Node ends; 0 if none is known",
            registry=registry,
        )
        self._degraded = Histogram(
            f"{PREFIX}_degraded_seconds",
            "From the time a workload became Degraded to the end of all its faults",
            buckets=(1, 5, 10, 30, 60, 120, 300, 600, 1800, 7200, 86400),
            registry=registry,
        )
        self._evictions = Counter(
            f"{PREFIX}_evictions",
            "Requested evictions, by answer: evicted, refused by a disruption budget, or the pod was gone",
            ["result"],
            registry=registry,
        )

    def _qualification_metrics(self, registry: CollectorRegistry) -> None:
        """Add the metrics about tests of UltraServers."""
        self._tests = Counter(
            f"{PREFIX}_tests",
            "Tests that ended, by verdict: passed, failed or none",
            ["qualification", "verdict"],
            registry=registry,
        )
        self._tested = Gauge(
            f"{PREFIX}_tested_groups",
            "Groups by the result of their last test: fresh (passed within maxAge), failed, and of these unqualified",
            ["qualification", "result"],
            registry=registry,
        )
        self._oldest_result = Gauge(
            f"{PREFIX}_oldest_result_timestamp_seconds",
            "Unix time of the oldest result of a qualification; 0 without one",
            ["qualification"],
            registry=registry,
        )
        self._storms = Gauge(
            f"{PREFIX}_failure_storm",
            "1 while so many groups fail that a qualification tests nothing",
            ["qualification"],
            registry=registry,
        )
        self._figures = Gauge(
            f"{PREFIX}_figure",
            "Lowest, median and highest value of a figure that tests reported, over the groups of an instance type",
            ["qualification", "instance_type", "figure", "of"],
            registry=registry,
        )

    def _start_at_zero(self) -> None:
        """Export counters before they count: `rate` and `increase` do not see the step to a series' first value."""
        for word in vocabulary.REASONS:
            if (word.of, word.condition) == (vocabulary.WORKLOAD, vocabulary.DEGRADED) and word.name != "NoProblem":
                self._failures.labels(word.name)
        for strategy in ("RestartAll", "MigrateAffected"):
            self._recoveries.labels(strategy)
        for result in ("evicted", "refused", "gone"):
            self._evictions.labels(result)

    def _capacity_gauges(self, registry: CollectorRegistry) -> None:
        """Add the gauges about free and idle nodes, and who waits for them."""
        self._free = Gauge(
            f"{PREFIX}_free_groups",
            "Groups of nodes that a new workload could reserve now, by instance type and nodes in a group",
            ["instance_type", "size"],
            registry=registry,
        )
        self._spares = Gauge(
            f"{PREFIX}_spare_groups",
            "Groups of four nodes that only groups which must move may take: kept now, and missing of the number set",
            ["instance_type", "state"],
            registry=registry,
        )
        self._idle = Gauge(
            f"{PREFIX}_idle_reserved_nodes",
            "Ready nodes that are reserved and open, and have no claim",
            registry=registry,
        )
        self._oldest = Gauge(
            f"{PREFIX}_oldest_waiting_timestamp_seconds",
            "Unix time since which the Pending workload that waits longest is not Ready, without those that wait for a "
            "queue; 0 if none waits",
            registry=registry,
        )
        self._queued = Gauge(
            f"{PREFIX}_queued_workloads",
            "Workloads that wait for their queue, by reason",
            ["reason"],
            registry=registry,
        )

    def crd_outdated(self, crd: str, outdated: bool) -> None:
        """A CRD drops or rejects fields, or no longer does."""
        self._outdated_crds[crd] = outdated
        self._outdated.labels(crd).set(1 if outdated else 0)

    def event_lost(self) -> None:
        """An Event could not be posted."""
        self._lost_events.inc()

    def leading(self, leads: bool) -> None:
        """This replica is the leader, or not. A follower reports no figures of the cluster, so that sums stay right."""
        self._leader.set(1 if leads else 0)
        if self._leads and not leads:
            gauges = (
                self._workloads,
                self._servers,
                self._nodes,
                self._free,
                self._spares,
                self._queued,
                self._degraded_now,
                self._outdated,
                self._unreadable,
                *self._of_qualifications,
            )
            for gauge in gauges:
                gauge.clear()
            for single in (self._held, self._idle, self._oldest, self._reported, self._ending, self._next_end):
                single.set(0)
        if leads and not self._leads:
            for crd, outdated in self._outdated_crds.items():
                self.crd_outdated(crd, outdated)
        self._leads = leads

    @property
    def _of_qualifications(self) -> tuple[Gauge, ...]:
        return self._tested, self._oldest_result, self._storms, self._figures

    def tested(self, qualification: str, verdict: str) -> None:
        """A test ended."""
        self._tests.labels(qualification, verdict).inc()

    def qualified(self, surveys: Iterable[QualificationFigures]) -> None:
        """Report the results of all qualifications."""
        for gauge in self._of_qualifications:
            gauge.clear()
        for qualification in surveys:
            for result, number in qualification.groups.items():
                self._tested.labels(qualification.name, result).set(number)
            self._oldest_result.labels(qualification.name).set(qualification.oldest)
            self._storms.labels(qualification.name).set(1 if qualification.storm else 0)
            for (instance_type, figure), values in qualification.values.items():
                summary = {"min": min(values), "median": statistics.median(values), "max": max(values)}
                for statistic, value in summary.items():
                    self._figures.labels(qualification.name, instance_type, figure, statistic).set(value)

    def unreadable(self, objects: Mapping[str, tuple[int, int]]) -> None:
        """Set the numbers of objects of which values, and of which the whole cannot be decoded, by resource."""
        for resource, (part, whole) in objects.items():
            self._unreadable.labels(resource, "part").set(part)
            self._unreadable.labels(resource, "all").set(whole)

    def held(self, number: int) -> None:
        """Set the number of writes that wait because they were rejected or had no effect."""
        self._held.set(number)

    def planned(
        self, seconds: float, index: FleetIndex, plan: Plan, now: datetime.datetime, spares: Numbers = ()
    ) -> None:
        """Record a plan from this index, made at `now`, and its duration in seconds; `spares` are those to keep."""
        self._plans.observe(seconds)
        if self._figures_of is None or self._figures_of.index is not index:
            self._figures_of = WorkloadFigures(index)
        figures = self._figures_of
        figures.follow()
        for workload_state in State:
            self._workloads.labels(workload_state.value).set(figures.states[workload_state.value])
        _show(self._degraded_now, figures.faults)
        _show(self._queued, figures.queued)
        self._oldest.set(figures.oldest())
        self._ending.set(figures.ending)
        self._reported.set(len(index.reported))
        self._next_end.set(min((end.timestamp() for end in index.block_ends), default=0))
        totals = index.totals
        for state in ("Ready", "Degraded"):
            self._servers.labels(state).set(totals.states[state])
        other = max(0, totals.nodes - totals.free - totals.reserved)
        for state, number in (("free", totals.free), ("reserved", totals.reserved), ("other", other)):
            self._nodes.labels(state).set(number)
        self._groups(index, plan, spares)
        self._idle.set(sum(len(workload.idle) for workload in plan.starting))

    def _groups(self, index: FleetIndex, plan: Plan, spares_to_keep: Numbers) -> None:
        """Report the groups that new workloads could reserve, and those that are kept from them."""
        free, kept = Tally(index.free_numbers()), Tally[str]()
        for ultraserver_name in plan.kept.spares:
            instance_type = index.group_by_name[ultraserver_name].instance_type
            kept[instance_type] += len(index.slot_index.free_of(ultraserver_name, instance_type, SIZE))
            for _, size in [key for key in free if key[0] == instance_type]:
                free[instance_type, size] -= len(index.slot_index.free_of(ultraserver_name, instance_type, size))
        self._free.clear()
        for (instance_type, size), number in free.items():
            self._free.labels(instance_type, size).set(max(0, number))
        self._spares.clear()
        for instance_type, number in spares_to_keep:
            self._spares.labels(instance_type, "kept").set(kept[instance_type])
            self._spares.labels(instance_type, "missing").set(max(0, number - kept[instance_type]))

    def wrote(self, action: str, result: str) -> None:
        """A write succeeded or failed."""
        self._writes.labels(action, result).inc()

    def answered(self, method: str, code: str) -> None:
        """The gRPC service answered a call."""
        self._answers.labels(method, code).inc()

    def allocated(self, seconds: float) -> None:
        """Record the first Allocated of a workload, and the time since its creation in seconds."""
        self._allocations.observe(seconds)

    def evicted(self, result: str) -> None:
        """An eviction was answered."""
        self._evictions.labels(result).inc()

    def status_written(self, before: Mapping[str, Any], after: Mapping[str, Any], now: datetime.datetime) -> None:
        """The status of a workload was written."""
        degraded_before, degraded_now = _degraded(before), _degraded(after)
        if degraded_now and degraded_now.get("reason") != (degraded_before or {}).get("reason"):
            self._failures.labels(str(degraded_now.get("reason"))).inc()
        if degraded_before and not degraded_now:
            seconds = (now - decode.time(degraded_before.get("lastTransitionTime"))).total_seconds()
            self._degraded.observe(max(0.0, seconds))
        for counted, strategy in (("restarts", "RestartAll"), ("migrations", "MigrateAffected")):
            begun = int(after.get(counted) or 0) - int(before.get(counted) or 0)
            if begun > 0:
                self._recoveries.labels(strategy).inc(begun)


def _degraded(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition Degraded of a status; None unless it is True."""
    degraded = condition(status, "Degraded")
    if degraded.get("status") == "True":
        return degraded
    return None


def _show(gauge: Gauge, numbers: Mapping[str, int]) -> None:
    """Set a gauge with one label to these numbers."""
    gauge.clear()
    for label, number in numbers.items():
        gauge.labels(label).set(number)


def _ends_soon(status: Mapping[str, Any]) -> bool:
    """Return True if EC2 takes nodes of a workload back soon."""
    return condition(status, ENDS_SOON).get("status") == "True"
