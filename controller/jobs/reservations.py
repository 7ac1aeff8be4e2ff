"""Makes, changes and releases the workloads of jobs, and posts Events on the jobs."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from controller.apply.attempts import Attempts, WriteOutcome
from controller.apply.beside import WatchedTerm
from controller.apply.errors import Errors
from controller.apply.requests import Applier
from controller.fleet.fleet_index import FleetIndex
from controller.jobs.decide import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    JobEvent,
    JobView,
    Write,
    decide,
)
from controller.jobs.early_pods import EarlyPods
from controller.jobs.guard import Guard
from controller.jobs.kinds import KINDS, read
from controller.jobs.model import Job
from controller.jobs.watches import JobWatches
from controller.observe.caches import Caches
from controller.observe.model import Namespace, Workload
from controller.timing import JobTiming
from neuron_dra.core.turns import in_turn
from neuron_dra.core.ultraserver import Phase, Tag
from neuron_dra.errors import NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.requests import NEURON_WORKLOADS

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""The limit of writes, and of Events, in one pass."""


class JobReservations:
    """Decides after each change, and keeps no state but waits and what was told."""

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
        """`queues`: Kueue admits workloads that have a queue. `on_change` is called after each write of a workload."""
        self._queues = queues
        self._on_change = on_change
        self._client = client
        self._caches = caches
        self._applier = applier
        self._watches = watches
        self._events = events
        self._timing = timing
        self._default_limit = default_limit
        self._guard = Guard(client, timing)
        self._early_pods = EarlyPods(client, timing, applier.fence)
        self._watched = WatchedTerm(applier.fence)
        # By namespace/name of the workload.
        self._attempts = Attempts(applier.fence, timing.first_s, timing.longest_s)
        self._rejected: dict[str, JobEvent] = {}  # by UID of the job
        self._told: dict[str, str] = {}  # by UID of the job, the key of the last note
        self._errors = Errors()

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._attempts.end_waits()
        self._guard.end_waits()
        self._early_pods.end_waits()

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide and write; return when to do so again at the latest. Raises ApiError of a list."""
        if not self._watches.settled:
            return None  # the watches wake the controller
        term = await self._watched.begin(self._watches)
        jobs = tuple(self._watches.jobs())
        moments = [await self._guard.look(now)] if jobs else []
        view = self._view(index, jobs)
        if not jobs and not any(workload.made_for for workload in view.workloads):
            return None
        found = decide(view)
        self._errors.report(found.errors)
        due = [each for each in found.writes if self._attempts.due(_target(each), now) <= now]
        # At once: one that the server does not answer, such as for a slow webhook, holds up no other job.
        await asyncio.gather(*(self._make(each, now, term) for each in due[:AT_ONCE]))
        await self._tell(found.notes, {job.uid for job in jobs}, now)
        keys = {_target(each) for each in found.writes}
        self._attempts.keep(keys)
        moments += [self._attempts.due(key, now) for key in keys]
        early = await self._early_pods.look(view.workloads, view.templates, now)
        return min((*moments, *([early] if early is not None else [])), default=None)

    def _view(self, index: FleetIndex, jobs: Collection[Job]) -> JobView:
        readable = None if index.namespaces is None else self._caches.namespaces.items
        namespaces: dict[str, Namespace] | None = None
        if readable is not None:
            namespaces = {item["value"].name: item["value"] for item in readable.values()}
        return JobView(
            jobs=jobs,
            kinds=self._watches.kinds,
            workloads=[item["value"] for item in self._caches.workloads.items.values()],
            templates=index.template_by_key,
            namespaces=namespaces,
            default_limit=self._default_limit,
            unguarded=self._guard.problem,
            in_use=lambda workload: _in_use(index, workload),
            queues=self._queues,
            unkept=self._applier.schemas.unkept,
            unread_jobs=self._watches.unreadable,
            unread_workloads=self._caches.unread_workloads(),
        )

    async def _make(self, write: Write, now: datetime.datetime, term: int) -> None:
        """Make one write that was decided in `term`. Raises EndedTerm.

        What the server rejects becomes an Event, and is repeated later.
        """
        key = _target(write)
        job = None if isinstance(write, DeleteWorkload) else write.job
        outcome, error = await self._attempts.make(key, lambda: self._send(write, term), now, term)
        match outcome:
            case WriteOutcome.WRITTEN if job is not None:
                self._rejected.pop(job.uid, None)
                # The watch may show nothing new after the answer, and the plan has to see it.
                self._on_change()
            case WriteOutcome.REJECTED if job is not None:
                text = f"the reservation was rejected: {error}"
                self._rejected[job.uid] = JobEvent(job, True, "ReservationRejected", text, text)
            case WriteOutcome.REJECTED:
                log.warning("a reservation of a job was not released", extra={"workload": key, "error": error})
            case WriteOutcome.FAILED:
                facts = {"workload": key, "error": error}
                log.warning("a reservation for a job could not be written", extra=facts)
            case _:
                pass  # what changed meanwhile is decided again

    async def _send(self, write: Write, term: int) -> None:
        """Send the request of a write. Raises ApiError, MALFORMED, EndedTerm."""
        self._applier.schemas.refuse(NEURON_WORKLOADS)
        workloads = self._caches.workloads
        match write:
            case CreateWorkload(job=job, body=body):
                workloads.remember(await self._client.create(NEURON_WORKLOADS, job.namespace, body))
                log.info("made a reservation for a job", extra={"workload": _target(write), "job": job.mark})
            case ChangeWorkload(workload=old, spec=spec, labels=labels):
                patch = {"metadata": {"resourceVersion": old.version, "labels": dict(labels)}, "spec": dict(spec)}
                workloads.remember(await self._client.patch(NEURON_WORKLOADS, old.namespace, old.name, patch))
            case DeleteWorkload(workload=old, why=why, gone=gone):
                if gone and await self._still_asks(old):
                    return
                self._applier.fence.check(term)  # again: the job was read meanwhile
                await self._client.delete(NEURON_WORKLOADS, old.namespace, old.name, uid=old.uid, version=old.version)
                log.info("released the reservation of a job", extra={"workload": old.ref, "why": why})

    async def _still_asks(self, workload: Workload) -> bool:
        """Return True if the job that a workload was made for exists and asks for UltraServers. Raises ApiError.

        The watch of jobs may lag behind, and a release evicts pods.
        """
        kind_name, _, rest = workload.made_for.partition("/")
        name, _, uid = rest.rpartition("/")
        kind = next((each for each in KINDS if each.name == kind_name), None)
        if kind is None:
            return True
        try:
            job = kind.job(read(await self._client.get(kind.resource, workload.namespace, name)))
        except NotFound:
            return False
        return job is not None and job.uid == uid

    async def _tell(self, notes: Iterable[JobEvent], uids: set[str], now: datetime.datetime) -> None:
        """Post the notes that are new."""
        self._told = {uid: key for uid, key in self._told.items() if uid in uids}
        self._rejected = {uid: note for uid, note in self._rejected.items() if uid in uids}
        new = {note.job.uid: note for note in notes} | self._rejected
        due = in_turn(
            (note for uid, note in new.items() if self._told.get(uid) != note.key), lambda note: note.job.namespace
        )
        await asyncio.gather(*(self._post(note, now) for note in due[:AT_ONCE]))

    async def _post(self, note: JobEvent, now: datetime.datetime) -> None:
        job = note.job
        self._told[job.uid] = note.key
        about = reference(job.api_version, job.kind, job.namespace, job.name, job.uid)
        await self._events.post(about, "Warning" if note.warning else "Normal", note.reason, note.message, now)


def _target(write: Write) -> str:
    """Return namespace/name of the workload that is written."""
    if isinstance(write, CreateWorkload):
        return f"{write.job.namespace}/{write.job.name}"
    return write.workload.ref


def _in_use(index: FleetIndex, workload: Workload) -> bool:
    """Return True if a claim of the workload is allocated on a node of its reservations, stored or copied."""
    nodes = {name for one in index.held(workload.uid) for name in one.allocation.nodes}
    for group in workload.groups:
        nodes |= set(group["nodes"])
    tag = Tag(workload.namespace, workload.name, workload.uid, "", Phase.BOUND)
    return any(use.is_of(tag) for name in nodes for use in index.uses(name))
