"""Makes and ends tests of UltraServers, and stores what they find, beside the passes."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.apply.beside import WatchedTerm
from controller.apply.decided_writes import Attempt, DecidedWrites, Rejection, WriteOutcome, WriteRow
from controller.apply.errors import Errors
from controller.apply.requests import Applier
from controller.apply.write_backoff import Tries
from controller.metrics import TESTS, Metrics, QualificationFigures
from controller.observe.caches import Caches
from controller.qualify import bodies, survey, yielding
from controller.qualify.decide import (
    DeletePod,
    QualifyView,
    StartPods,
    StartTest,
    StopTest,
    StoreResults,
    Write,
    WriteQualification,
    decide,
    forgotten,
    sources,
)
from controller.qualify.model import GroupTest, PodOfTest, Qualification
from controller.qualify.pace import Pace
from controller.qualify.survey import ResultSurvey
from controller.qualify.watches import QualifyWatches
from controller.timing import QualifyTiming
from neuron_dra.core.ownership import ObjectIdentity
from neuron_dra.core.qualification import NAMESPACE, GroupKey
from neuron_dra.core.ultraserver import NAMESPACE as ULTRASERVERS
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import NEURON_QUALIFICATIONS, NEURON_ULTRASERVERS, NEURON_WORKLOADS, PODS
from neuron_dra.planner.decisions.actions import WaitingWorkloads
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.placement import Slot
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.model import API_VERSION
from neuron_dra.planner.observed.results import Source

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""The limit of writes that one look decides."""
TESTS_AT_ONCE: Final = 20
RESULTS_AT_ONCE: Final = 120
"""The limits of a minute, with QualifyTiming."""


@dataclass(slots=True)
class _Surveyed:
    """The last survey: when it was, of which version of the index and qualifications, and what it found."""

    at: datetime.datetime
    version: int
    uids: Collection[str]
    surveys: Mapping[str, ResultSurvey]
    due: Mapping[str, Sequence[tuple[Slot, str]]]
    beside: dict[frozenset[str], Mapping[str, Sequence[tuple[Slot, str]]]] = field(default_factory=dict)

    def due_beside(self, pausing: frozenset[str]) -> Mapping[str, Sequence[tuple[Slot, str]]]:
        """Return the groups that are due, without those of some instance types."""
        if pausing not in self.beside:
            due_by_name: dict[str, Sequence[tuple[Slot, str]]] = {}
            for name, due in self.due.items():
                due_by_name[name] = [
                    (slot, instance_type) for slot, instance_type in due if instance_type not in pausing
                ]
            self.beside[pausing] = due_by_name
        return self.beside[pausing]


class Qualifications:
    """Decides after each change. What it remembers only avoids work: another leader can go on at any point."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches[FleetIndex],
        applier: Applier,
        watches: QualifyWatches,
        events: EventRecorder,
        metrics: Metrics,
        limits: Limits,
        timing: QualifyTiming,
        waiting: Callable[[], WaitingWorkloads],
        on_change: Callable[[], None],
    ) -> None:
        """`waiting` returns who waits by the last plan. `on_change` is called after each request."""
        self._client = client
        self._caches = caches
        self._applier = applier
        self._watches = watches
        self._events = events
        self._metrics = metrics
        self._limits = limits
        self._timing = timing
        self._waiting = waiting
        self._watched = WatchedTerm(applier.fence)
        self._decided: dict[str, Write] = {}  # by `_key`
        retry_s = timing.first_s, timing.longest_write_s
        self._writes = DecidedWrites("tests", self, self._decided, applier.sender, events, retry_s, on_change)
        self._may_place = self._may_store = 0  # how many more writes, and how many of them that store results
        self._begins = Pace(TESTS_AT_ONCE, timing.begin_s)
        self._stores = Pace(RESULTS_AT_ONCE, timing.result_s)
        self._surveyed: _Surveyed | None = None
        self._complete: set[str] = set()
        self._waits: dict[GroupKey, Tries] = {}
        self._refusals: dict[str, str] = {}  # by UID of the qualification
        self._errors = Errors()
        self._said: dict[str, tuple[Any, datetime.datetime]] = {}  # by UID: the last status, and when it was written
        self._now = survey.EPOCH  # the time of the last look

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._writes.end_waits()
        self._surveyed = None
        self._waits = {}
        self._said = {}

    async def relist(self) -> None:
        """Begin without what was found in an earlier term, because another replica led. Raises ApiError."""
        self.end_waits()
        self._complete, self._refusals = set(), {}
        await self._watches.relist()

    async def resume(self) -> None:
        """Open the watches again. Raises ApiError."""
        await self._watches.resume()

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide and write; return when to do so again at the latest. Raises ApiError of a list."""
        if not self._watches.settled:
            return None
        term = await self._watched.begin(self)
        self._now = now
        qualifications = self._watches.qualifications()
        self._forget_others({qualification.uid for qualification in qualifications.values()})
        if not qualifications and not index.tests:
            self._metrics.qualified(())
            kept = await self._kept_results(index, {})
            are_left = any(True for _ in forgotten(index, kept))
            self._place(self._forgotten(index, kept, now), now, term)
            return now + datetime.timedelta(seconds=self._survey_s(index)) if are_left else None
        self._watches.watch_pods()
        if not (self._watches.sees_pods or self._watches.pods_problem):
            return now + datetime.timedelta(seconds=self._timing.look_s)
        view = self._view(index, qualifications, now)
        decision = decide(view)
        self._errors.report(decision.errors)
        writes = decision.writes
        if view.surveys:
            written = {_key(write) for write in writes}
            kept = await self._kept_results(index, qualifications)
            writes += [write for write in self._forgotten(index, kept, now) if _key(write) not in written]
        self._place(writes, now, term)
        self._complete = {test.workload.uid for test in view.tests if self._is_complete(test)}
        return self._again(view, now)

    def _forget_others(self, uids: Collection[str]) -> None:
        """Keep nothing of qualifications that are gone."""
        self._said = {uid: status_and_time for uid, status_and_time in self._said.items() if uid in uids}
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in uids}

    async def _kept_results(self, index: FleetIndex, qualifications: Mapping[str, Qualification]) -> Collection[Source]:
        """Return the qualifications whose results stay: these, and those of which it is not certain that they are gone,
        or that another one has their name. They are read again.
        """
        kept = sources(qualifications.values())
        if not self._watches.is_served:
            return {*kept, *index.results_of}
        for name, uid in index.results_of.keys() - kept:
            try:
                item = await self._client.read(NEURON_QUALIFICATIONS, "", name)
                self._watches.remember(False, item)
                if uid not in ("", item["metadata"].get("uid")):
                    continue
            except NotFound:
                continue
            except (ApiError, *MALFORMED) as err:
                facts = {"qualification": name, "error": str(err) or repr(err)}
                log.warning("results stay: it is not certain that their qualification is gone", extra=facts)
            kept.add((name, uid))
        return kept

    def _forgotten(self, index: FleetIndex, kept: Collection[Source], now: datetime.datetime) -> list[StoreResults]:
        """Return the writes that remove results: those that wait, and as many more as may be made now."""
        write_by_key: dict[str, StoreResults] = {}
        room = min(AT_ONCE, self._stores.room(now))
        for write in forgotten(index, kept):
            if _key(write) not in write_by_key and self._writes.is_due(_key(write), now):
                if not room:
                    break
                room -= 1
            write_by_key[_key(write)] = write
        return [*write_by_key.values()]

    def _again(self, view: QualifyView, now: datetime.datetime) -> datetime.datetime:
        """Return when to look again: often while tests go on, else as often as a survey may be made."""
        seconds = self._timing.look_s if view.tests else self._survey_s(view.index)
        return now + datetime.timedelta(seconds=seconds)

    def _survey_s(self, index: FleetIndex) -> float:
        return max(self._timing.survey_s, self._timing.survey_group_s * len(index.group_by_name))

    def _is_complete(self, test: GroupTest) -> bool:
        return test.workload.uid in self._complete or len(test.pods) == test.workload.size

    def _view(
        self, index: FleetIndex, qualifications: Mapping[str, Qualification], now: datetime.datetime
    ) -> QualifyView:
        tests = self._tests(index)
        waiting = yielding.waiting(index, self._waiting().for_nodes)
        ending = yielding.yields(index, waiting, tests, now, self._limits)
        surveyed = self._survey(index, qualifications, now)
        uids = {qualification.uid for qualification in qualifications.values()}
        self._waits = {key: tries for key, tries in self._waits.items() if key[0] in uids}
        return QualifyView(
            index=index,
            asked=qualifications,
            tests=tests,
            surveys=surveyed.surveys,
            due=surveyed.due_beside(ending.pausing),
            yields=ending,
            complete=self._complete,
            waits={key: tries.next_at for key, tries in self._waits.items()},
            refusals=self._refusals,
            may_begin=self._begins.room(now),
            limits=self._limits,
            timing=self._timing,
            now=now,
            unseen="" if self._watches.sees_pods else self._watches.pods_problem,
        )

    def _tests(self, index: FleetIndex) -> list[GroupTest]:
        """Return the tests in progress. A pod counts only if it is controlled by the test's workload."""
        by_owner: dict[ObjectIdentity | None, list[PodOfTest]] = {}
        for pod in self._watches.pods():
            by_owner.setdefault(pod.owner, []).append(pod)
        tests: list[GroupTest] = []
        for workload in sorted(index.tests.values(), key=lambda workload: workload.name):
            if workload.target is not None:
                pods = sorted(by_owner.get(workload.identity, ()), key=lambda pod: pod.name)
                tests.append(GroupTest(workload, workload.target, tuple(pods)))
        return tests

    def _survey(
        self, index: FleetIndex, qualifications: Mapping[str, Qualification], now: datetime.datetime
    ) -> _Surveyed:
        """Return the last survey, or a new one if that is old."""
        last_survey = self._surveyed
        period = datetime.timedelta(seconds=self._survey_s(index))
        uids = {qualification.uid for qualification in qualifications.values()}
        if last_survey is not None and last_survey.uids == uids and last_survey.at <= now < last_survey.at + period:
            return last_survey
        wanted_groups = self._waiting().wanted
        surveys: dict[str, ResultSurvey] = {}
        due: dict[str, Sequence[tuple[Slot, str]]] = {}
        for qualification in qualifications.values():
            surveys[qualification.name] = survey.survey(index, qualification, now)
            due[qualification.name] = survey.due(index, qualification, wanted_groups, now, self._limits.block_lead)
        self._surveyed = _Surveyed(now, index.version, uids, surveys, due)
        self._metrics.qualified([_figures(name, surveyed) for name, surveyed in surveys.items()])
        return self._surveyed

    def _place(self, writes: Sequence[Write], now: datetime.datetime, term: int) -> None:
        """Replace all decided writes by these; put those that are due into the outbox, the ends of tests first."""
        self._writes.begin(term)
        before = [*self._decided]
        self._decided.clear()
        for write in sorted(writes, key=lambda write: not isinstance(write, StopTest | DeletePod)):
            self._decided[_key(write)] = write
        self._may_place, self._may_store = AT_ONCE, self._stores.room(now)
        self._writes.decided([*self._decided, *before])
        self._writes.place(now)

    def row(self, key: str, write: Write) -> WriteRow | None:
        """Return how a write is sent; None if it has to wait for a later look."""
        if not self._may_place or not self._is_due(write):
            return None
        if isinstance(write, StoreResults) and write.test is None:
            if not self._may_store:
                return None
            self._may_store -= 1
        self._may_place -= 1
        return _row(write)

    def _is_due(self, write: Write) -> bool:
        if not isinstance(write, WriteQualification) or write.soon:
            return True
        _, written_at = self._said.get(write.asked.uid, (None, survey.EPOCH))
        return not written_at <= self._now < written_at + datetime.timedelta(seconds=self._timing.status_s)

    async def send(self, key: str, write: Write, term: int) -> None:
        """Send the requests of a write. Raises ApiError, MALFORMED, EndedTerm."""
        match write:
            case StartTest(body=body):
                self._begins.spend(self._now)
                self._applier.schemas.refuse(NEURON_WORKLOADS)
                self._caches.workloads.remember(await self._client.create(NEURON_WORKLOADS, NAMESPACE, dict(body)))
            case StartPods(pods=pods):
                for pod in pods:
                    self._applier.fence.check(term)  # again for each
                    try:
                        self._watches.remember(True, await self._client.create(PODS, NAMESPACE, dict(pod)))
                    except AlreadyExists:
                        continue  # it ends, or the watch has not shown it yet
            case StopTest(test=test):
                workload = test.workload
                await self._client.delete(NEURON_WORKLOADS, NAMESPACE, workload.name, uid=workload.uid)
            case DeletePod(pod=pod):
                await self._client.delete(PODS, NAMESPACE, pod.name, uid=pod.uid)
            case StoreResults(ultraserver=name, version=version, results=found, test=test):
                if test is None:
                    self._stores.spend(self._now)
                await self._store(name, version, results.written(found))
            case WriteQualification(asked=asked, status=status):
                body = {"metadata": {"resourceVersion": asked.version}, "status": bodies.patch(asked.status, status)}
                stored = await self._client.patch(NEURON_QUALIFICATIONS, "", asked.name, body, "status")
                self._watches.remember(False, stored)

    async def _store(self, name: str, version: str, entries: list[dict[str, Any]]) -> None:
        self._applier.schemas.refuse(NEURON_ULTRASERVERS)
        seen = self._caches.ultraservers.items.get(f"{ULTRASERVERS}/{name}")
        if seen is None or seen["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{name} has changed")  # the plan has written its status meanwhile
        patch = {"metadata": {"resourceVersion": version}, "status": {"qualifications": entries or None}}
        stored = await self._client.patch(NEURON_ULTRASERVERS, ULTRASERVERS, name, patch, "status")
        self._caches.ultraservers.remember(stored)
        self._applier.schemas.check(NEURON_ULTRASERVERS, patch, stored)

    def follow_outcome(self, key: str, write: Write, attempt: Attempt) -> None:
        """Follow what became of a write."""
        if attempt.outcome is WriteOutcome.WRITTEN:
            self._written(write, self._now)
        match write:
            case StartTest(body=body):
                self._note_refusal(_owner_uid(body), attempt)
            case StartPods(test=test):
                self._note_refusal(test.target.uid, attempt)

    def _note_refusal(self, uid: str, attempt: Attempt) -> None:
        """Note whether the last test of a qualification could begin."""
        if attempt.outcome is WriteOutcome.WRITTEN:
            self._refusals.pop(uid, None)
        elif attempt.outcome is not WriteOutcome.FAILED:
            self._refusals[uid] = attempt.error[:256]

    def _written(self, write: Write, now: datetime.datetime) -> None:
        """Follow a write that was made."""
        match write:
            case StoreResults(test=test, judged=judged, ultraserver=name) if test is not None and judged is not None:
                self._surveyed = None
                target = test.target
                self._waits.pop(target.group, None)
                self._metrics.add(TESTS, target.qualification, judged.outcome.value)
                nodes = ", ".join(write.results[-1].nodes)
                facts = {"ultraserver": name, "verdict": judged.outcome.value, "text": judged.message, "nodes": nodes}
                log.info("tested nodes", extra=facts)
                if judged.message:
                    self._tell(target, "TestFailed", f"{name} ({nodes}): {judged.message}", now)
            case StopTest(test=test, why=why, again=again):
                self._surveyed = None
                log.info("a test ends", extra={"test": test.workload.name, "why": why})
                if again:
                    self._no_verdict(test, why, now)
            case WriteQualification(asked=asked, status=status):
                self._said[asked.uid] = status, now
            case _:
                pass

    def _no_verdict(self, test: GroupTest, why: str, now: datetime.datetime) -> None:
        """Wait before the group is tested again."""
        target = test.target
        tries = self._waits.get(target.group, Tries(0, now))
        self._waits[target.group] = tries.once_more(self._timing.again_s, now, self._timing.longest_s)
        self._metrics.add(TESTS, target.qualification, "none")
        self._tell(target, "NoVerdict", f"{target.ultraserver} from node {target.first_id} on: {why}", now)

    def _tell(self, target: Any, reason: str, message: str, now: datetime.datetime) -> None:
        self._events.post(_reference(target.qualification, target.uid), "Warning", reason, message, now)


def _figures(name: str, surveyed: ResultSurvey) -> QualificationFigures:
    """Return what metrics show of a survey."""
    counts = surveyed.counts
    groups = {"fresh": counts.fresh, "failed": counts.failed, "unqualified": counts.unqualified}
    values: dict[tuple[str, str], list[float]] = {}
    for key, samples in surveyed.samples.items():
        values[key] = [value for _, value in samples]
    return QualificationFigures(name, groups, surveyed.oldest, bool(surveyed.storm), values)


def _owner_uid(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["ownerReferences"][0]["uid"])


def _key(write: Write) -> str:
    """Return what a write is about, for its retries."""
    match write:
        case StartTest(body=body):
            return f"start {body['metadata']['name']}"
        case StartPods(test=test):
            return f"pods of {test.workload.uid}"
        case StopTest(test=test):
            return f"stop {test.workload.uid}"
        case DeletePod(pod=pod):
            return f"delete pod {pod.uid}"
        case StoreResults(ultraserver=name):
            return f"results of {name}"
        case WriteQualification(asked=asked):
            return f"status of {asked.uid}"


def _row(write: Write) -> WriteRow:
    """Return how a write is sent. A job may wait for the nodes of a test that ends; nobody waits for the others."""
    match write:
        case StartTest(body=body):
            name = f"workload {NAMESPACE}/{body['metadata']['name']}"
            return WriteRow(name, NAMESPACE, "create neuronultraserverworkloads", is_background=True)
        case StartPods(test=test):
            return WriteRow(test.workload.uid, NAMESPACE, "create pods", is_background=True)
        case StopTest(test=test):
            subject = f"the end of test {test.workload.name}, whose nodes stay reserved,"
            rejection = _rejection(_reference(test.target.qualification, test.target.uid), subject)
            return WriteRow(test.workload.uid, NAMESPACE, "delete neuronultraserverworkloads", rejection)
        case DeletePod(pod=pod):
            about = reference("v1", "Pod", NAMESPACE, pod.name, pod.uid)
            rejection = _rejection(about, f"the deletion of pod {pod.name} of a test")
            return WriteRow(pod.uid, NAMESPACE, "delete pods", rejection)
        case StoreResults(ultraserver=name):
            about = reference(API_VERSION, "NeuronUltraServer", ULTRASERVERS, name, "")
            rejection = _rejection(about, "the write of status.qualifications")
            request = f"neuronultraserver {name}", ULTRASERVERS, "patch neuronultraservers/status"
            return WriteRow(*request, rejection, is_shown=True, is_background=True)
        case WriteQualification(asked=asked):
            rejection = _rejection(_reference(asked.name, asked.uid), "the write of the status")
            request = asked.uid, "", "patch neuronqualifications/status"
            return WriteRow(*request, rejection, is_shown=True, is_background=True)


def _rejection(about: dict[str, str], subject: str) -> Rejection:
    return Rejection(about, "WriteRejected", f"{subject} was rejected")


def _reference(name: str, uid: str) -> dict[str, str]:
    return reference(API_VERSION, bodies.KIND, "", name, uid)
