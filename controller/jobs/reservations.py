"""Makes, changes and releases the workloads of jobs, and posts Events on the jobs."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Final

from controller.apply.beside import WatchedTerm
from controller.apply.decided_writes import Attempt, DecidedWrites, Rejection, WriteOutcome, WriteRow
from controller.apply.errors import Errors
from controller.apply.requests import Applier
from controller.jobs.decide import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    JobEvent,
    JobView,
    Write,
    about,
)
from controller.jobs.early_pods import EarlyPods
from controller.jobs.guard import Guard
from controller.jobs.kept import KeptJobDecisions
from controller.jobs.kinds import KINDS, read
from controller.jobs.model import Job
from controller.jobs.there import Subject, kind_and_name
from controller.jobs.unread_kinds import UnreadKinds, reference_to
from controller.jobs.watches import JobWatches
from controller.observe.caches import Caches
from controller.timing import JobTiming
from neuron_dra.core.event_turns import EventTurns
from neuron_dra.core.ultraserver import Phase, Tag
from neuron_dra.errors import Conflict, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.requests import NEURON_WORKLOADS, is_path_segment
from neuron_dra.planner.fleet.changed_objects import ChangedObjects
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.memo import EVERYTHING
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.observed.model import Namespace, Template, Workload

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""The limit of Events in one pass."""


class JobReservations:
    """Decides after each change what has changed. It can forget all that it keeps, and decide it again."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches[FleetIndex],
        applier: Applier,
        watches: JobWatches,
        events: EventRecorder,
        timing: JobTiming,
        default_limit: int | None,
        *,
        queues: bool,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`queues`: Kueue admits workloads that have a queue. `on_change` is called after each request."""
        self._queues = queues
        self._client = client
        self._caches = caches
        self._applier = applier
        self._watches = watches
        self._events = events
        self._timing = timing
        self._default_limit = default_limit
        self._guard = Guard(client, timing)
        self._early_pods = EarlyPods(client, timing, applier.sender, on_change, events)
        self._watched = WatchedTerm(applier.fence)
        self._kept = KeptJobDecisions()
        retry_s = timing.first_s, timing.longest_s
        self._writes = DecidedWrites("jobs", self, self._kept.writes, applier.sender, events, retry_s, on_change)
        self._changes: ChangedObjects | None = None
        self._namespaces: dict[str, Namespace] = {}
        self._rejected: dict[Subject, JobEvent] = {}
        self._told: EventTurns[Subject] = EventTurns()
        self._errors = Errors()
        self._unread_kinds = UnreadKinds(events, timing)

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._writes.end_waits()
        self._guard.end_waits()
        self._early_pods.end_waits()

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide and write; return when to do so again at the latest. Raises ApiError of a list."""
        pinned = self._caches.is_pinned
        term = await self._watched.begin(self._watches)
        if self._writes.begin(term):
            self._kept.mark_with(EVERYTHING)
        self._follow(index)
        moments = [await self._guard.look(now)] if self._kept.jobs else []
        self._decide(index)
        self._errors.report(self._kept.errors)
        due_at = self._writes.place(now)
        for subject in self._told.take(AT_ONCE):
            self._post(subject, now)
        workloads = self._kept.there.workloads.values()
        again = self._unread_kinds.look(self._watches, workloads, self._caches.namespaces.items, now)
        optional_moments = [due_at, self._early_pods.look(now, term)]
        if again is not None:
            optional_moments.append(again)
        if self._kept.undecided or self._told or pinned:
            optional_moments.append(now)  # a pinned index does not show all changes
        return min((*moments, *(moment for moment in optional_moments if moment is not None)), default=None)

    def _follow(self, index: FleetIndex) -> None:
        """Find what has to be decided because it has changed, or something that it depends on."""
        if self._changes is None:
            self._changes = index.follow()
        changes = self._changes.take()
        there = self._kept.there
        template_keys = {*changes.templates}
        for uid, workload in changes.workloads.items():
            for former_or_current in (there.workloads.get(uid), workload):
                if former_or_current is not None:
                    template_keys.add((former_or_current.namespace, former_or_current.template_name))
        self._kept.put_workloads(changes.workloads)
        for before, job in self._watches.follow():
            self._kept.put_job(before, job)
            if before is not None and (job is None or job.uid != before.uid):
                # The next job of this name is another one: it does not wait for what was rejected for this one.
                self._writes.forget_tries(f"{before.namespace}/{before.name}")
        for uid in changes.holders:
            self._kept.mark_job_of(there.workloads.get(uid))
        for user in changes.users:
            self._kept.mark_job_of(there.named.get(user))
        for namespace, template_name in changes.templates:
            self._kept.mark_with(("template", namespace, template_name))
        for namespace in changes.namespaces:
            item = self._caches.namespaces.items.get(f"/{namespace}")
            put(self._namespaces, namespace, None if item is None else item["value"])
            self._kept.mark_with(("namespace", namespace))
        for key in template_keys:
            template = index.template_by_key.get(key)
            self._early_pods.put(key, template if template is not None and self._is_made(template) else None)

    def _is_made(self, template: Template) -> bool:
        """Return True if a workload of a job made the template, and it stays."""
        name = template.owner.name if template.owner is not None else template.workload_id or ""
        workload = self._kept.there.named.get((template.namespace, name))
        if workload is None or template.deleting or workload.template_name != template.name:
            return False
        return bool(workload.made_for) and template.is_of(workload)

    def _decide(self, index: FleetIndex) -> None:
        """Decide the next that have to be."""
        decided = self._kept.follow(self._view(index))
        self._writes.decided(sorted(self._kept.take_moved()))
        for subject in decided:
            if subject not in self._kept.jobs:
                self._rejected.pop(subject, None)
                self._told.forget(subject)
            self._tell(subject)

    def _view(self, index: FleetIndex) -> JobView:
        return JobView(
            kinds=self._watches.kinds,
            templates=index.template_by_key,
            namespaces=None if index.namespaces is None else self._namespaces,
            default_limit=self._default_limit,
            unguarded=self._guard.problem,
            in_use=lambda workload: _in_use(index, workload),
            queues=self._queues,
            unkept=self._applier.schemas.unkept,
            unread_jobs=self._watches.unreadable,
            unread_workloads=self._caches.unread_workloads(),
        )

    def row(self, key: str, write: Write) -> WriteRow | None:
        """Return how a write is sent."""
        namespace = about(write).namespace
        match write:
            case CreateWorkload():
                return WriteRow(f"workload {key}", namespace, "create neuronultraserverworkloads")
            case ChangeWorkload(workload=workload):
                return WriteRow(workload.uid, namespace, "patch neuronultraserverworkloads")
            case DeleteWorkload(workload=workload):
                text = "the deletion of this workload was rejected, and its nodes stay reserved"
                rejection = Rejection(reference_to(workload), "ReleaseRejected", text)
                return WriteRow(workload.uid, namespace, "delete neuronultraserverworkloads", rejection)

    def follow_outcome(self, key: str, write: Write, attempt: Attempt) -> None:
        """Tell the job what was rejected. What changed meanwhile is decided again."""
        if isinstance(write, DeleteWorkload):
            return
        if attempt.outcome is WriteOutcome.WRITTEN:
            self._reject(write.job, None)
        elif attempt.outcome is WriteOutcome.REJECTED:
            text = f"the reservation was rejected: {attempt.error}"
            self._reject(write.job, JobEvent(write.job, True, "ReservationRejected", text, text))

    async def send(self, key: str, write: Write, term: int) -> None:
        """Send the request of a write. Raises ApiError, MALFORMED, EndedTerm."""
        self._applier.schemas.refuse(NEURON_WORKLOADS)
        workloads = self._caches.workloads
        match write:
            case CreateWorkload(job=job, body=body):
                workloads.remember(await self._client.create(NEURON_WORKLOADS, job.namespace, body))
                log.info("made a reservation for a job", extra={"workload": key, "job": job.mark})
            case ChangeWorkload(job=seen, workload=old, spec=spec, labels=labels):
                await self._check_unchanged(old, seen, term)  # a smaller serverCount ends the pods of groups
                patch = {"metadata": {"resourceVersion": old.version, "labels": dict(labels)}, "spec": dict(spec)}
                workloads.remember(await self._client.patch(NEURON_WORKLOADS, old.namespace, old.name, patch))
            case DeleteWorkload(workload=old, why=why, job=seen):
                await self._check_unchanged(old, seen, term)
                await self._client.delete(NEURON_WORKLOADS, old.namespace, old.name, uid=old.uid, version=old.version)
                log.info("released the reservation of a job", extra={"workload": old.ref, "why": why})

    async def _check_unchanged(self, workload: Workload, seen: Job | None, term: int) -> None:
        """Read the job of a workload. Raises Conflict if it is not `seen`, ApiError, MALFORMED, EndedTerm."""
        if await self._job_of(workload) != seen:
            raise Conflict(f"the job of {workload.ref} has changed, and its watch has not shown that yet")
        self._applier.fence.check(term)  # again: the job was read meanwhile

    async def _job_of(self, workload: Workload) -> Job | None:
        """Read the job that a workload was made for; None if it is gone or asks for nothing any more.

        Raises ApiError, MALFORMED if that is not certain.
        """
        kind_name, name = kind_and_name(workload.made_for)
        kind = next(kind for kind in KINDS if kind.name == kind_name)
        if not is_path_segment(name):
            return None  # a person wrote the annotation, and no job has such a name
        try:
            raw = await self._client.get(kind.resource, workload.namespace, name)
        except NotFound:
            return None
        job = kind.job(read(raw))
        self._watches.remember(kind_name, raw)
        return job if job is not None and job.mark == workload.made_for else None

    def _reject(self, job: Job, note: JobEvent | None) -> None:
        """Note that the last write for a job was rejected; None: it was not."""
        subject = job.namespace, job.mark
        put(self._rejected, subject, note)
        self._tell(subject)

    def _tell(self, subject: Subject) -> None:
        """Let a note about a job have its turn if it is new."""
        note = self._note(subject)
        self._told.put(subject, subject[0], note.key if note is not None else None)

    def _note(self, subject: Subject) -> JobEvent | None:
        return self._rejected.get(subject) or self._kept.note(subject)

    def _post(self, subject: Subject, now: datetime.datetime) -> None:
        note = self._note(subject)
        if note is not None:
            job = note.job
            about = reference(job.api_version, job.kind, job.namespace, job.name, job.uid)
            self._events.post(about, "Warning" if note.warning else "Normal", note.reason, note.message, now)


def _in_use(index: FleetIndex, workload: Workload) -> bool:
    """Return True if a claim of the workload is allocated on a node of its reservations, stored or copied."""
    nodes = {node_name for reservation in index.held(workload.uid) for node_name in reservation.allocation.nodes}
    for group in workload.groups:
        nodes |= set(group["nodes"])
    tag = Tag(workload.namespace, workload.name, workload.uid, "", Phase.BOUND)
    return any(use.is_of(tag) for node_name in nodes for use in index.uses(node_name))
