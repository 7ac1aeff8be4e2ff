"""Decides about all jobs, and all queues, at once: what the controller keeps of its decisions must equal this."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from controller.jobs import decide as jobs
from controller.jobs.decide import JobEvent, JobView, Write, about, taken
from controller.jobs.model import Job
from controller.jobs.there import There, order
from controller.queue import decide as queues
from controller.queue.admission import QueueView, admission_or_error
from controller.queue.decide import QueueDecision
from neuron_dra.core.turns import in_turn
from neuron_dra.planner.observed.model import Admission, Workload


@dataclass(frozen=True, slots=True)
class WholeJobView(JobView):
    """What the decisions about all jobs depend on: also the jobs that ask, and all workloads."""

    jobs: Collection[Job] = field(kw_only=True)
    workloads: Collection[Workload] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class WholeQueueView(QueueView):
    """What the decisions about all queues depend on: also all workloads."""

    workloads: Collection[Workload] = field(kw_only=True)


@dataclass(slots=True)
class WholeJobDecision:
    """What to write and to post for all jobs. Namespaces take turns."""

    writes: list[Write] = field(default_factory=list)
    notes: list[JobEvent] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)


def decide_jobs(view: WholeJobView) -> WholeJobDecision:
    """Return what to write, and what to tell."""
    there = There()
    for workload in view.workloads:
        there.put(workload.uid, workload)
    job_of = {(job.namespace, job.mark): job for job in view.jobs}
    whole = WholeJobDecision()
    for subject in sorted(job_of.keys() | there.made.keys(), key=order):
        decision = jobs.decide_one(view, there, subject, job_of.get(subject))
        there.plan(subject, taken(decision))
        whole.writes += decision.writes.values()
        whole.notes += decision.notes
        whole.errors |= decision.errors
    writes = in_turn(whole.writes, lambda write: about(write).namespace)
    return WholeJobDecision(writes, in_turn(whole.notes, lambda note: note.job.namespace), whole.errors)


def decide_queues(view: WholeQueueView) -> QueueDecision:
    """Return what to write. Nothing, while Kueue's Workloads are not known."""
    whole = QueueDecision()
    if view.unknown:
        return whole
    present = {workload.uid: workload for workload in sorted(view.workloads, key=lambda workload: workload.ref)}
    for uid in (*present, *sorted(view.kueue.keys() - present.keys())):
        decision = queues.decide_one(view, uid, present.get(uid))
        whole.writes |= decision.writes
        whole.notes += decision.notes
        whole.moments += decision.moments
        whole.errors |= decision.errors
    return whole


def admissions(view: WholeQueueView) -> dict[str, Admission]:
    """Return by UID what the queue of each workload allows; those without a queue are not in it."""
    of_all = {workload.uid: admission_or_error(view, workload) for workload in view.workloads}
    return {uid: admission for uid, admission in of_all.items() if admission is not None}
