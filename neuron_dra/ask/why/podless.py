"""Why a workload, such as a Deployment, has no pods: from its own state, and from Events about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dra.ask.read.job_objects import JobObjectView
from neuron_dra.ask.read.views import EventView
from neuron_dra.ask.render.findings import Finding, Report
from neuron_dra.ask.why import gates
from neuron_dra.ask.world import events
from neuron_dra.ask.world.world import World

_FAILED = ("ReplicaFailure", "Failed", "FailureTarget")
"""Conditions that are True while pods cannot be created, or are not created again."""
_ENDED = ("Complete", "Completed", "Succeeded", "SuccessCriteriaMet")


def report(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a workload without pods; None if neither it nor Events about it were read."""
    raw_job = world.snapshot.get(kind, name, namespace)
    if raw_job is None:
        refused = _refused(world, kind, name, namespace)
        return None if refused is None else Report(subject, "has no pods", (refused,))
    job = JobObjectView.of(raw_job)
    for condition in filter(None, map(job.condition, _FAILED)):
        message = condition.message or condition.reason or "no message"
        text = f"condition {condition.type}: {events.quoted(message)}"
        return Report(subject, "has no pods", (Finding("PodsNotCreated", text),))
    if any(map(job.condition, _ENDED)):
        return Report(subject, "has ended, with success", fine=True)
    if job.field("replicas") == 0:
        return Report(subject, "has no pods, as its spec.replicas is 0", fine=True)
    if (refused := _refused(world, kind, name, namespace)) is not None:
        return Report(subject, "has no pods", (refused,))
    if job.field("suspend") is True:
        return Report(subject, "has no pods", (_suspended(world, job),))
    if kind == "DaemonSet" and job.counted("desiredNumberScheduled") == 0:
        text = "no node matches its node selector, affinity and tolerations"
        return Report(subject, "has no pods", (Finding("PodsNotCreated", text),))
    if world.snapshot.all("Event"):
        text = "unknown: there are no Events about it. Is its controller running?"
    else:
        text = "unknown: no Events were read, which would show it"
    return Report(subject, "has no pods", (Finding("Unknown", text),))


def _suspended(world: World, job: JobObjectView) -> Finding:
    """Return the finding for a job that is suspended: by Kueue until it admits the job, or by a person."""
    reason = gates.kueue_reason(world, job.metadata.namespace, {job.metadata.uid} - {""})
    if reason is not None:
        return reason
    text = "it is suspended (spec.suspend is true)"
    if gates.QUEUE_LABEL in job.metadata.labels:
        text += f", which Kueue ends when it admits the job to queue {events.quoted(_queue(job))}"
    return Finding("JobSuspended", text)


def _queue(job: JobObjectView) -> str:
    return str(job.metadata.labels[gates.QUEUE_LABEL])


def _refused(world: World, kind: str, name: str, namespace: str) -> Finding | None:
    """Return the finding of the newest Event about pods that could not be created."""
    posted_events: list[EventView] = []
    for about in _subjects(world, kind, name, namespace):
        posted_events += map(EventView.of, world.events[about])
    failed = [event for event in posted_events if event.reason == "FailedCreate"]
    if not failed:
        return None
    newest = max(failed, key=lambda event: event.seen_at)
    return Finding("PodsNotCreated", f"its pods cannot be created: {events.quoted(newest.message)}")


def _subjects(world: World, kind: str, name: str, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Yield the objects whose Events are about the workload's pods: a Deployment's ReplicaSets post its Events."""
    if (kind, namespace, name) in world.events:
        yield kind, namespace, name
    if kind != "Deployment":
        return
    for about in world.events:
        if about[:2] == ("ReplicaSet", namespace) and about[2].rpartition("-")[0] == name:
            yield about
