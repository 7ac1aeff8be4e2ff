"""What was decided about each job, kept until something changes that it depends on. Pure.

A look costs what changed, however many jobs ask. What is kept equals what a look at everything decides; a property test
verifies that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Final

from controller.jobs.decide import JobEvent, JobView, Write, decide_one, taken
from controller.jobs.model import Job
from controller.jobs.there import Subject, There, kind_and_name, order, wanted
from neuron_dra.planner.fleet.memo import EVERYTHING, Memo
from neuron_dra.planner.observed.model import Workload

AT_ONCE: Final = 128
"""The limit of jobs that are decided in one look."""


class KeptJobDecisions(Memo[Subject, Write, JobEvent]):
    """The decisions by job: by namespace and mark.

    - `jobs`: those that ask; `there`: the workloads.
    - `writes`: what is left to write, by namespace/name of the workload.
    """

    def __init__(self) -> None:
        super().__init__(order)
        self.jobs: dict[Subject, Job] = {}
        self.there = There()

    def note(self, subject: Subject) -> JobEvent | None:
        """Return the Event for a job; None if there is none."""
        notes = self.of(subject).notes
        return notes[-1] if notes else None

    def put_job(self, before: Job | None, job: Job | None) -> None:
        """Follow a change of a job, as it was and as it is; None: it was not there, or is gone."""
        if before == job:
            return
        if before is not None:
            del self.jobs[before.namespace, before.mark]
            self.mark((before.namespace, before.mark))
        if job is not None:
            self.jobs[job.namespace, job.mark] = job
            self.mark((job.namespace, job.mark))

    def put_workloads(self, workloads: Mapping[str, Workload | None]) -> None:
        """Follow changes of workloads, by UID; None: it is gone."""
        gone_first = sorted(workloads.items(), key=lambda item: item[1] is not None)
        for uid, workload in gone_first:
            before = self.there.workloads.get(uid)
            changed = self.there.put(uid, workload)
            self.mark_job_of(before)
            self.mark_job_of(workload)
            for shared in changed:
                self.mark_with(shared)

    def mark_job_of(self, workload: Workload | None) -> None:
        """Let the job of a workload be decided again."""
        if workload is not None and workload.made_for:
            self.mark((workload.namespace, workload.made_for))

    def follow(self, view: JobView, at_most: int = AT_ONCE) -> list[Subject]:
        """Decide the next jobs that have to be, and return them.

        What changed in other parts of the view is found here.
        """
        kinds, unkept = frozenset(view.kinds), frozenset(view.unkept)
        common = kinds, view.namespaces is None, view.default_limit, view.unguarded, view.queues, unkept
        if self.differences("common", [common]):
            self.mark_with(EVERYTHING)
        for key in self.differences("unread jobs", view.unread_jobs):
            self.mark_with(("job", *key))
        for uid in self.differences("unread workloads", view.unread_workloads):
            self.mark_job_of(self.there.workloads.get(uid))
        decided = []
        for subject in self.take(at_most):
            self._decide(view, subject)
            decided.append(subject)
        return decided

    def _decide(self, view: JobView, subject: Subject) -> None:
        job = self.jobs.get(subject)
        decision = decide_one(view, self.there, subject, job)
        for shared in self.there.plan(subject, taken(decision)):
            # Those after this job may want a name that it takes or gives back.
            self.mark_after(subject, shared)
        is_known = job is not None or subject in self.there.made
        self.keep(subject, decision, _inputs(subject, job) if is_known else None)


def _inputs(subject: Subject, job: Job | None) -> Iterator[Hashable]:
    """Yield what a subject has in common with others, and its decision depends on."""
    namespace, mark = subject
    kind, name = kind_and_name(mark)
    yield "job", kind, f"{namespace}/{name}"
    if job is not None:
        yield "namespace", namespace
        yield from wanted(job)
