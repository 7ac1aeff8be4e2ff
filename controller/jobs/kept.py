"""What was decided about each job, kept until something changes that it depends on. Pure.

A look costs what changed, however many jobs ask. What is kept equals `decide` about all of them; a property test
verifies that.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from controller.fleet.reserved import put
from controller.fleet.sharing import Sharing
from controller.jobs.decide import NOTHING, JobDecision, JobEvent, JobView, Write, decide_one, taken, target
from controller.jobs.model import Job
from controller.jobs.there import Shared, Subject, There, kind_and_name, order, wanted
from controller.observe.model import Workload

AT_ONCE: Final = 128
"""The limit of jobs that are decided in one look."""


class _Undecided:
    """The subjects that have to be decided: namespaces take turns, each with its subjects in their order."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[tuple[str, str, str, str], Subject]]] = {}  # the next namespace first
        self._there: set[Subject] = set()

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._there

    def add(self, subject: Subject) -> None:
        """Add a subject that is not there."""
        self._there.add(subject)
        heapq.heappush(self._heaps.setdefault(subject[0], []), (order(subject), subject))

    def take(self) -> Subject:
        """Remove and return the next one. Raises StopIteration if there is none."""
        namespace = next(iter(self._heaps))
        heap = self._heaps.pop(namespace)
        _, subject = heapq.heappop(heap)
        if heap:
            self._heaps[namespace] = heap  # behind the other namespaces
        self._there.discard(subject)
        return subject


@dataclass(frozen=True, slots=True)
class _Common:
    """The parts of a view that all decisions depend on."""

    kinds: frozenset[str]
    namespaces: bool
    default_limit: int | None
    unguarded: str
    queues: bool
    unkept: frozenset[str]

    @classmethod
    def of(cls, view: JobView) -> _Common:
        kinds, unkept = frozenset(view.kinds), frozenset(view.unkept)
        return cls(kinds, view.namespaces is not None, view.default_limit, view.unguarded, view.queues, unkept)


class KeptJobDecisions:
    """The decisions by job: by namespace and mark.

    - `jobs`: those that ask; `there`: the workloads.
    - `writes`: what is left to write, by namespace/name of the workload. A job that waits to be decided has none.
    """

    def __init__(self) -> None:
        self.jobs: dict[Subject, Job] = {}
        self.there = There()
        self.writes: dict[str, Write] = {}
        self._decisions: dict[Subject, JobDecision] = {}  # those that say anything
        self._errors: dict[Subject, JobDecision] = {}
        self._sharing: Sharing[Subject, Hashable] = Sharing()
        self._undecided = _Undecided()
        self._common: _Common | None = None
        self._unread_jobs: Set[tuple[str, str]] = frozenset()
        self._unread_workloads: Set[str] = frozenset()

    @property
    def undecided(self) -> int:
        """How many are left for the next `follow`."""
        return len(self._undecided)

    @property
    def errors(self) -> dict[str, Exception]:
        """The errors of decisions, by job."""
        return {name: err for each in self._errors.values() for name, err in each.errors.items()}

    def note(self, subject: Subject) -> JobEvent | None:
        """Return the Event for a job; None if there is none."""
        notes = self._decisions.get(subject, NOTHING).notes
        return notes[-1] if notes else None

    def put_job(self, before: Job | None, job: Job | None) -> None:
        """Follow a change of a job, as it was and as it is; None: it was not there, or is gone."""
        if before == job:
            return
        if before is not None:
            del self.jobs[before.namespace, before.mark]
        if job is not None:
            self.jobs[job.namespace, job.mark] = job
        for one in (before, job):
            if one is not None:
                self._follow_subject((one.namespace, one.mark))

    def put_workloads(self, workloads: Mapping[str, Workload | None]) -> None:
        """Follow changes of workloads, by UID; None: it is gone."""
        gone_first = sorted(workloads.items(), key=lambda item: item[1] is not None)
        for uid, workload in gone_first:
            before = self.there.workloads.get(uid)
            changed = self.there.put(uid, workload)
            for one in (before, workload):
                if one is not None and one.made_for:
                    self._follow_subject((one.namespace, one.made_for))
            for shared in changed:
                self.decide_sharing(shared)

    def _follow_subject(self, subject: Subject) -> None:
        """Mark a subject to be decided again, and record what its decision depends on."""
        self.decide(subject)
        there = subject in self.jobs or subject in self.there.made
        self._sharing.put(subject, _shared(subject, self.jobs.get(subject)) if there else ())

    def decide(self, subject: Subject) -> None:
        """Mark a subject to be decided again by `follow`; until then, nothing is written for it."""
        if subject not in self._undecided:
            self._undecided.add(subject)
            for write in self._decisions.get(subject, NOTHING).writes:
                self.writes.pop(target(write), None)

    def decide_of(self, workload: Workload | None) -> None:
        """Mark the job of a workload to be decided again."""
        if workload is not None and workload.made_for:
            self.decide((workload.namespace, workload.made_for))

    def decide_sharing(self, shared: Hashable) -> None:
        """Mark all subjects that share something to be decided again."""
        for subject in [*self._sharing.of(shared)]:
            self.decide(subject)

    def decide_all(self) -> None:
        """Mark all subjects to be decided again."""
        for subject in {*self.jobs, *self.there.made}:
            self.decide(subject)

    def follow(self, view: JobView, at_once: int = AT_ONCE) -> dict[Subject, set[str]]:
        """Decide the next that have to be; return them, each with namespace/name of the workloads it wrote or writes.

        What changed in other parts of the view is found here.
        """
        self._decide_affected(view)
        found: dict[Subject, set[str]] = {}
        while self._undecided and len(found) < at_once:
            subject = self._undecided.take()
            found[subject] = found.get(subject, set()) | self._decide_now(view, subject)
        return found

    def _decide_affected(self, view: JobView) -> None:
        """Mark what depends on the changed parts of the view to be decided again."""
        common = _Common.of(view)
        if common != self._common:
            self.decide_all()
        unread_jobs, unread_workloads = frozenset(view.unread_jobs), frozenset(view.unread_workloads)
        for key in self._unread_jobs ^ unread_jobs:
            self.decide_sharing(("job", *key))
        for uid in self._unread_workloads ^ unread_workloads:
            self.decide_of(self.there.workloads.get(uid))
        self._common, self._unread_jobs, self._unread_workloads = common, unread_jobs, unread_workloads

    def _decide_now(self, view: JobView, subject: Subject) -> set[str]:
        before = self._decisions.get(subject, NOTHING)
        decision = decide_one(view, self.there, subject, self.jobs.get(subject))
        for shared in self.there.plan(subject, taken(decision)):
            self._decide_later(subject, shared)
        writes = {target(write): write for write in decision.writes}
        self.writes |= writes
        put(self._decisions, subject, decision if decision != NOTHING else None)
        put(self._errors, subject, decision if decision.errors else None)
        return {*writes, *(target(write) for write in before.writes)}

    def _decide_later(self, subject: Subject, shared: Shared) -> None:
        """Mark the subjects after this one that may want a name that it takes or gives back."""
        own = order(subject)
        for each in [*self._sharing.of(shared)]:
            if order(each) > own:
                self.decide(each)


def _shared(subject: Subject, job: Job | None) -> Iterator[Hashable]:
    """Yield what a subject has in common with others, and its decision depends on."""
    namespace, mark = subject
    kind, name = kind_and_name(mark)
    yield "job", kind, f"{namespace}/{name}"
    if job is not None:
        yield "namespace", namespace
        yield from wanted(job)
