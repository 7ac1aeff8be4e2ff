"""What to write for tests of UltraServers. Pure: objects in, writes and Events out.

A test is a NeuronUltraServerWorkload of one group, which gets nodes as any other does, and one pod for each of its
nodes. It ends in this order: the result is stored in the NeuronUltraServer, then the workload is deleted, which frees
the nodes. A result names the workload it is of, so none counts twice.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.qualify import bodies, survey
from controller.qualify.model import GroupTest, PodOfTest, Qualification
from controller.qualify.survey import ResultSurvey
from controller.qualify.verdict import GroupVerdict, Judgement, judge
from controller.qualify.yielding import Yields
from controller.timing import QualifyTiming
from neuron_dra.core.qualification import GroupKey, Target
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet import outage, placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.observed.discovery import Group
from neuron_dra.planner.observed.model import Reservation, shortened
from neuron_dra.planner.observed.results import GroupResult, Source

"""UID of a qualification, name of an UltraServer, number of the group's first node."""

MESSAGE_AT_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class StartTest:
    """Create the workload `body` of a test."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartPods:
    """Create pods of a test."""

    test: GroupTest
    pods: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class StopTest:
    """Delete the workload of a test. `again`: it had no verdict, so the group is tested again, but not at once."""

    test: GroupTest
    why: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod of a test that ends."""

    pod: PodOfTest


@dataclass(frozen=True, slots=True)
class StoreResults:
    """Write `status.qualifications` of a NeuronUltraServer, guarded by its resourceVersion. `test`: what has ended."""

    ultraserver: str
    version: str
    results: tuple[GroupResult, ...]
    test: GroupTest | None = None
    judged: Judgement | None = None


@dataclass(frozen=True, slots=True)
class WriteQualification:
    """Write the status of a qualification. `soon`: not only numbers change."""

    asked: Qualification
    status: Mapping[str, Any]
    soon: bool


Write = StartTest | StartPods | StopTest | DeletePod | StoreResults | WriteQualification


@dataclass(frozen=True, slots=True)
class QualifyView:
    """What decisions about tests depend on.

    - `asked`: the qualifications by name; `tests`: all tests in progress.
    - `surveys`: by name of the qualification; `due`: its free groups that should be tested, with their type.
    - `yields`: which tests end for workloads.
    - `complete`: UIDs of the workloads of tests of which all pods were seen.
    - `waits`: until when a group without a verdict is not tested again.
    - `refusals`: by UID of a qualification, why the last test could not begin.
    - `may_begin`: how many tests may begin now.
    - `unseen`: why the pods of tests cannot be seen; empty if they are.
    """

    index: FleetIndex
    asked: Mapping[str, Qualification]
    tests: Sequence[GroupTest]
    surveys: Mapping[str, ResultSurvey]
    due: Mapping[str, Sequence[tuple[placement.Slot, str]]]
    yields: Yields
    complete: Collection[str]
    waits: Mapping[GroupKey, datetime.datetime]
    refusals: Mapping[str, str]
    may_begin: int
    limits: Limits
    timing: QualifyTiming
    now: datetime.datetime
    unseen: str = ""

    def tests_of(self, qualification: Qualification) -> list[GroupTest]:
        """Return the tests in progress of a qualification."""
        return [test for test in self.tests if test.target.uid == qualification.uid]


@dataclass(slots=True)
class QualifyDecision:
    """The writes; at most one for each test and each UltraServer. `errors` are those of decisions, by object."""

    writes: list[Write] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)


def decide(view: QualifyView) -> QualifyDecision:
    """Return what to write. An error about one test or one qualification leaves that alone, and all others go on."""
    decision = QualifyDecision()
    written_ultraservers: set[str] = set()
    for test in view.tests:
        try:
            writes = _of_test(view, test)
        except Exception as err:
            decision.errors[f"test {test.workload.name}"] = err
            continue
        for write in writes:
            if isinstance(write, StoreResults):
                if write.ultraserver in written_ultraservers:
                    continue
                written_ultraservers.add(write.ultraserver)
            decision.writes.append(write)
    nodes_of_tests = {node_name for test in view.tests for node_name in _wanted_nodes(view, test)}
    may_begin = view.may_begin
    for qualification in view.asked.values():
        try:
            writes, begun = _of_qualification(view, qualification, written_ultraservers, nodes_of_tests, may_begin)
        except Exception as err:
            decision.errors[f"qualification {qualification.name}"] = err
            continue
        may_begin -= begun
        decision.writes += writes
    return decision


def _of_qualification(
    view: QualifyView, qualification: Qualification, written_ultraservers: set[str], nodes_of_tests: set[str], most: int
) -> tuple[list[Write], int]:
    """Return the writes for a qualification, and how many tests of it begin, at most `most`."""
    writes = _withdrawals(view, qualification, written_ultraservers)
    begun = _starts(view, qualification, nodes_of_tests, most)
    return [*writes, *begun, *bodies_of_status(view, qualification, len(begun))], len(begun)


def _of_test(view: QualifyView, test: GroupTest) -> list[Write]:
    """Return the writes for a test in progress."""
    if test.stopping:
        return [DeletePod(pod) for pod in test.pods if not pod.deleting]
    qualification = view.asked.get(test.target.qualification)
    stop = StopTest(test, "the qualification has changed or is gone")
    tested = (test.target.uid, test.target.generation)
    if qualification is None or (qualification.uid, qualification.generation) != tested:
        return [stop]
    if qualification.deleting or qualification.suspended or qualification.problem:
        return [stop]
    group = view.index.group_by_name.get(test.target.ultraserver)
    if group is not None and any(result.test == test.workload.uid for result in group.results):
        return [StopTest(test, "it has ended")]
    if test.workload.uid in view.yields.tests:
        return [StopTest(test, f"{view.yields.tests[test.workload.uid]} waits for nodes")]
    # Whatever its pods do, and whatever the API server answers about them.
    longest = datetime.timedelta(seconds=view.timing.reserve_s + view.timing.start_s) + qualification.timeout
    if view.now >= test.workload.created + longest:
        return [StopTest(test, f"it did not end within {longest.total_seconds():g} s", again=True)]
    if view.unseen:
        return []
    reservations = view.index.held(test.workload.uid)
    if test.workload.state != State.ALLOCATED or len(reservations) != 1 or group is None:
        return _not_allocated(view, test, reservations)
    return _running(view, test, qualification, group, reservations[0])


def _not_allocated(view: QualifyView, test: GroupTest, reservations: Sequence[Reservation]) -> list[Write]:
    """Stop a test that has no nodes: another workload took them, or they have faults now."""
    if test.pods:
        return [StopTest(test, "it has lost its nodes", again=True)]
    late = test.workload.created + datetime.timedelta(seconds=view.timing.reserve_s)
    if view.now >= late:
        return [StopTest(test, "its nodes are not free" if not reservations else "its nodes do not answer", again=True)]
    return []


def _running(
    view: QualifyView, test: GroupTest, qualification: Qualification, group: Group, reservation: Reservation
) -> list[Write]:
    """Return the writes for a test that has its nodes."""
    workload, nodes = test.workload, reservation.allocation.nodes
    other_nodes = frozenset(group.node_names) - {*nodes}
    if not placement.slots((group,), other_nodes, workload.instance_type, workload.size):
        return [StopTest(test, f"nodes have other faults now: {shortened(nodes)}", again=True)]
    missing = [pod_name for pod_name in bodies.pod_names(workload) if pod_name not in {pod.name for pod in test.pods}]
    if missing:
        oldest = min((pod.created for pod in test.pods if pod.created is not None), default=view.now)
        is_late = view.now >= oldest + datetime.timedelta(seconds=view.timing.again_s)
        if workload.uid in view.complete or is_late:
            return [StopTest(test, f"pods were deleted: {shortened(missing)}", again=True)]
        return [StartPods(test, tuple(bodies.pod(test, qualification, pod_name) for pod_name in missing))]
    surveyed = view.surveys.get(qualification.name, ResultSurvey())
    ended = all(pod.exit_code is not None for pod in test.pods)
    medians = surveyed.medians(workload.instance_type, group.name) if ended else {}
    judged = judge(test.pods, qualification, medians, view.now, view.timing)
    if judged is None:
        return []
    if judged.outcome is GroupVerdict.NONE:
        return [StopTest(test, judged.message, again=True)]
    return [_store(view, test, qualification, reservation, judged, surveyed)]


def _store(
    view: QualifyView,
    test: GroupTest,
    qualification: Qualification,
    reservation: Reservation,
    judged: Judgement,
    surveyed: ResultSurvey,
) -> StoreResults:
    """Return the write of a verdict."""
    stored = view.index.ultraserver_by_name[reservation.ultraserver]
    passed = judged.outcome is GroupVerdict.PASSED
    moment = view.now.replace(microsecond=0)
    new = GroupResult(
        qualification=qualification.name,
        qualification_uid=qualification.uid,
        generation=qualification.generation,
        nodes=reservation.allocation.nodes,
        node_uids=reservation.allocation.node_uids,
        passed=passed,
        failures=0,
        tested_at=moment,
        passed_at=moment if passed else None,
        message=judged.message[:MESSAGE_AT_MOST],
        test=test.workload.uid,
        figures=judged.figures,
    )
    storm = "exempt" if stored.name in qualification.exempt else survey.storm_with(surveyed, stored.name, new)
    uids = {node.name: node.uid for node in _nodes(view, stored.spec)}
    results = survey.with_result(stored.results, new, qualification, storm, uids)
    return StoreResults(stored.name, stored.version, results, test, judged)


def _nodes(view: QualifyView, spec: Mapping[str, Any]) -> list[Any]:
    node_names = (str(entry.get("nodeName")) for entry in spec.get("topology") or ())
    nodes = (view.index.node_by_name.get(node_name) for node_name in node_names)
    return [node for node in nodes if node is not None]


def _withdrawals(view: QualifyView, qualification: Qualification, written_ultraservers: set[str]) -> list[Write]:
    """Return the writes that take back faults: those that a storm raised, and those of exempt UltraServers."""
    writes: list[Write] = []
    surveyed = view.surveys.get(qualification.name, ResultSurvey())
    for ultraserver_name, results in survey.withdrawn(qualification, surveyed, view.index.ultraserver_by_name).items():
        if ultraserver_name not in written_ultraservers:
            written_ultraservers.add(ultraserver_name)
            version = view.index.ultraserver_by_name[ultraserver_name].version
            writes.append(StoreResults(ultraserver_name, version, results))
    return writes


def sources(qualifications: Iterable[Qualification]) -> set[Source]:
    """Return the sources of results that count for these qualifications."""
    return {(qualification.name, uid) for qualification in qualifications for uid in (qualification.uid, "")}


def forgotten(index: FleetIndex, kept: Collection[Source]) -> Iterator[StoreResults]:
    """Yield the writes that remove the results of all other qualifications."""
    for source, ultraservers in index.results_of.items():
        for ultraserver in () if source in kept else map(index.ultraserver_by_name.__getitem__, ultraservers):
            if not ultraserver.deleting:
                kept_results = tuple(result for result in ultraserver.results if result.source in kept)
                yield StoreResults(ultraserver.name, ultraserver.version, kept_results)


def resting(view: QualifyView, qualification: Qualification) -> tuple[str, str]:
    """Return why a qualification begins no tests, as a reason and a message; empty if it may."""
    surveyed = view.surveys.get(qualification.name)
    if qualification.problem:
        return "InvalidSpec", qualification.problem
    if qualification.suspended:
        return "Suspended", "spec.suspend is true"
    if view.unseen:
        return "PodsUnreadable", view.unseen
    if surveyed is not None and surveyed.storm:
        return "FailureStorm", (
            f"{surveyed.storm}, which is no fault of single nodes: nothing is tested, and no node is kept from "
            "workloads because of it, until the spec changes (image, thresholds, or attempt)"
        )
    fleet_outage = outage.judge(
        view.index.countable,
        view.index.away,
        at_least=view.limits.outage_nodes,
        percent=view.limits.outage_percent,
    )
    return ("Outage", "no test begins while so many nodes are unavailable") if fleet_outage is not None else ("", "")


def _starts(view: QualifyView, qualification: Qualification, nodes_of_tests: set[str], most: int) -> list[StartTest]:
    """Return the tests of a qualification that begin now, at most `most`.

    `nodes_of_tests`: the nodes that tests have. The nodes of the tests that begin are added to it.
    """
    reason, _ = resting(view, qualification)
    own_tests = view.tests_of(qualification)
    if reason or qualification.deleting or qualification.name not in view.surveys:
        return []
    begun: list[StartTest] = []
    for slot, instance_type in view.due.get(qualification.name, ()):
        if len(begun) >= most or len(own_tests) + len(begun) >= qualification.most:
            break
        name, uid, generation = qualification.name, qualification.uid, qualification.generation
        target = Target(name, uid, generation, slot.ultraserver, slot.first_id)
        is_free = nodes_of_tests.isdisjoint(slot.nodes) and not any(map(view.index.is_taken, slot.nodes))
        if not is_free or instance_type in view.yields.pausing or view.waits.get(target.group, view.now) > view.now:
            continue
        nodes_of_tests |= {*slot.nodes}
        begun.append(StartTest(bodies.workload(qualification, target, instance_type)))
    return begun


def _wanted_nodes(view: QualifyView, test: GroupTest) -> list[str]:
    """Return the nodes that a test has or waits for."""
    group = view.index.group_by_name.get(test.target.ultraserver)
    if group is None:
        return []
    first, size = test.target.first_id, test.workload.size
    return [str(entry["nodeName"]) for entry in group.topology if first <= int(entry["nodeId"]) < first + size]


def bodies_of_status(view: QualifyView, qualification: Qualification, begun: int) -> list[WriteQualification]:
    """Return the write of a qualification's status, if that changes."""
    surveyed = view.surveys.get(qualification.name)
    if surveyed is None or qualification.deleting or qualification.unread:
        return []
    testing = len([test for test in view.tests_of(qualification) if not test.stopping]) + begun
    refusal = view.refusals.get(qualification.uid, "")
    status = bodies.status(qualification, surveyed, testing, resting(view, qualification), refusal, view.now)
    if status == dict(qualification.status):
        return []
    before = qualification.status.get("conditions")
    return [WriteQualification(qualification, status, soon=status["conditions"] != before)]
