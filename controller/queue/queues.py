"""Keeps Kueue's Workloads and our workloads with a queue in step: reads, decides, writes."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from controller.apply.fence import EndedTerm
from controller.apply.requests import Applier
from controller.apply.write_backoff import Tries
from controller.observe.caches import Caches
from controller.observe.model import API_VERSION, JOBS_QUEUED, Admission, QueueRecord, Workload, condition
from controller.plan.fleet_index import FleetIndex
from controller.plan.reasons import Reason
from controller.queue.admission import Held, View, admissions
from controller.queue.decide import Create, LetGo, Note, Record, Write, WriteSpec, WriteStatus, apply_status, decide
from controller.queue.model import IN_USE, KueueWorkload
from controller.queue.watches import QueueWatch
from controller.timing import QueueTiming
from neuron_dra.core.ultraserver import Phase
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import KUEUE_WORKLOADS, NEURON_WORKLOADS

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""The limit of writes in one pass."""
UNCERTAIN: Final = (Reason.UNREADABLE_RESERVATION, Reason.RESERVATION_NOT_SEEN)
"""The reasons of workloads that may have nodes which the controller cannot see."""


class Queues:
    """Decides in each pass of the controller, and keeps no state but waits and what was told."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches[FleetIndex],
        applier: Applier,
        watch: QueueWatch,
        events: EventRecorder,
        timing: QueueTiming,
    ) -> None:
        self._client = client
        self._caches = caches
        self._applier = applier
        self._watch = watch
        self._events = events
        self._timing = timing
        self._tries: dict[str, Tries] = {}  # by UID of the workload
        self._unsettled: set[str] = set()  # UIDs of workloads for which a write had no answer
        self._rejected: frozenset[str] = frozenset()
        self._doubted = False  # a write of reservations had no answer
        self._told: dict[str, str] = {}  # by UID of the workload, the last Event

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._tries = {}

    def doubt(self) -> None:
        """Note that a write of reservations had no answer: they may exist although the caches do not show them."""
        self._doubted = True

    def leave_to_the_plan(self, rejected: frozenset[str]) -> None:
        """Write nothing into the status of workloads, by UID, whose status the server rejected: the plan tries it."""
        self._rejected = rejected

    async def relist(self) -> None:
        """Read Kueue's Workloads again: a new leader begins. Raises ApiError."""
        await self._watch.relist()
        self._unsettled.clear()

    def admissions(self, index: FleetIndex, now: datetime.datetime) -> dict[str, Admission]:
        """Return what the queue of each workload allows, for a plan."""
        return admissions(self._view(index, now))

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide and write; return when to do so again at the latest. Raises ApiError of a list."""
        if self._unsettled:
            await self.relist()
        if self._doubted:
            # Quota is given back, and a Workload is finished, only when no reservation is left.
            await self._caches.ultraservers.relist()
            self._doubted = False
            index = self._caches.index()
        decision = decide(self._view(index, now))
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in decision.writes}
        writes = {uid: write for uid, write in decision.writes.items() if not self._is_left(uid, write)}
        due = [uid for uid in writes if self._due(uid, now) <= now]
        # At the same time: Kueue's webhooks answer each of them, and a plan waits for the slowest only.
        made = (self._make(uid, writes[uid], now) for uid in due[:AT_ONCE])
        for result in await asyncio.gather(*made, return_exceptions=True):
            if result is not None:
                raise result
        await self._tell(decision.notes, now)
        moments = [*decision.moments, *(max(self._due(uid, now), now) for uid in writes)]
        return min(moments, default=None)

    def _is_left(self, uid: str, write: Write) -> bool:
        return isinstance(write, Record) and uid in self._rejected

    def _view(self, index: FleetIndex, now: datetime.datetime) -> View:
        required = set()
        if index.namespaces is not None:
            namespaces = (item["value"] for item in self._caches.namespaces.items.values())
            required = {each.name for each in namespaces if each.jobs == JOBS_QUEUED}
        return View(
            workloads=index.workloads,
            kueue=self._watch.by_owner(),
            unknown=self._watch.unknown,
            held=lambda uid, workload: _held(index, uid, workload),
            required=required,
            unsettled=self._unsettled,
            priorities=self._applier.priorities.found,
            timing=self._timing,
            now=now,
        )

    def _due(self, uid: str, now: datetime.datetime) -> datetime.datetime:
        tries = self._tries.get(uid)
        return tries.next_at if tries is not None else now

    async def _make(self, uid: str, write: Write, now: datetime.datetime) -> None:
        """Make one write; what fails is decided again later. Raises EndedTerm."""
        tries = self._tries.get(uid, Tries(0, now))
        self._tries[uid] = tries.once_more(self._timing.first_s, now, self._timing.longest_s)
        facts = {"write": type(write).__name__, "of": _named(write)}
        try:
            self._applier.fence.check()
            await self._send(write, now)
        except (AlreadyExists, Conflict, NotFound):
            self._unsettled.add(uid)  # it changed meanwhile; a list shows how
        except EndedTerm:
            raise
        except (Forbidden, Invalid) as err:
            log.warning("a write for a queue was rejected", extra={**facts, "error": str(err)})
        except (ApiError, *MALFORMED) as err:
            self._unsettled.add(uid)
            log.warning("a write for a queue failed", extra={**facts, "error": str(err) or repr(err)})
        else:
            del self._tries[uid]
            log.info("wrote for a queue", extra=facts)

    async def _send(self, write: Write, now: datetime.datetime) -> None:
        """Send the requests of a write. Raises ApiError, MALFORMED."""
        match write:
            case Create(workload=workload, body=body):
                self._watch.remember(await self._client.create(KUEUE_WORKLOADS, workload.namespace, body))
            case WriteSpec(kueue=kueue, spec=spec):
                without = {"priorityClassRef": None, "priority": None}
                await self._patch(kueue, {"spec": {**without, **spec}})
            case WriteStatus(kueue=kueue, gone=gone):
                if gone and await self._exists(kueue):
                    return
                item = await self._read(kueue)
                body = apply_status(item, write, now)
                stored = await self._client.replace(KUEUE_WORKLOADS, kueue.namespace, body, "status")
                self._watch.remember(stored)
            case LetGo(kueue=kueue, delete=delete):
                others = [name for name in kueue.finalizers if name != IN_USE]
                await self._patch(kueue, {"metadata": {"finalizers": others}})
                if delete:
                    await self._client.delete(KUEUE_WORKLOADS, kueue.namespace, kueue.name, uid=kueue.uid)
            case Record(workload=workload):
                await self._record(workload, write)

    async def _patch(self, kueue: KueueWorkload, patch: Mapping[str, Any]) -> None:
        """Patch Kueue's Workload, unless it has changed. Raises ApiError."""
        meta = {**patch.get("metadata", {}), "resourceVersion": kueue.version}
        body = {**patch, "metadata": meta}
        self._watch.remember(await self._client.patch(KUEUE_WORKLOADS, kueue.namespace, kueue.name, body))

    async def _read(self, kueue: KueueWorkload) -> dict[str, Any]:
        """Return Kueue's Workload as it is. Raises Conflict if it is not the one that was decided about."""
        item: dict[str, Any] = json.loads(await self._client.get(KUEUE_WORKLOADS, kueue.namespace, kueue.name))
        meta = item["metadata"]
        if (meta["uid"], meta["resourceVersion"]) != (kueue.uid, kueue.version):
            raise Conflict(f"Workload {kueue.ref} has changed")
        return item

    async def _record(self, workload: Workload, write: Record) -> None:
        """Write `status.queue`. Raises ApiError."""
        record = write.record
        value: dict[str, Any] | None = None  # removes it
        if record != QueueRecord():
            value = {"localQueue": record.name, "returned": record.returned, "returnedAt": record.returned_at or None}
        patch = {"metadata": {"resourceVersion": workload.version}, "status": {"queue": value}}
        self._applier.schemas.refuse(NEURON_WORKLOADS)
        stored = await self._client.patch(NEURON_WORKLOADS, workload.namespace, workload.name, patch, "status")
        self._caches.workloads.remember(stored)
        self._applier.schemas.check(NEURON_WORKLOADS, patch, stored)

    async def _exists(self, kueue: KueueWorkload) -> bool:
        """Return True if the workload that controls Kueue's Workload exists. Raises ApiError.

        The watch of workloads may lag behind, and what is finished stays so.
        """
        async for page in self._client.list(NEURON_WORKLOADS, kueue.namespace):
            for item in page.decoded(dict).objects:
                if item["metadata"]["uid"] == kueue.owner_uid:
                    return True
        return False

    async def _tell(self, notes: list[Note], now: datetime.datetime) -> None:
        """Post the notes that are new."""
        uids = {note.workload.uid for note in notes}
        self._told = {uid: text for uid, text in self._told.items() if uid in uids}
        for note in notes[:AT_ONCE]:
            workload = note.workload
            if self._told.get(workload.uid) == note.message:
                continue
            self._told[workload.uid] = note.message
            about = reference(API_VERSION, "NeuronUltraServerWorkload", workload.namespace, workload.name, workload.uid)
            await self._events.post(about, "Warning", note.reason, note.message, now)


def _named(write: Write) -> str:
    return write.workload.ref if isinstance(write, Create | Record) else write.kueue.ref


def _held(index: FleetIndex, uid: str, workload: Workload | None) -> Held:
    """Return what a workload has of nodes."""
    stored = [one.allocation for one in index.held(uid)]
    live = [each for each in stored if each.phase is not Phase.DRAINING]
    bound = {each.ultraserver_index for each in live if each.phase is Phase.BOUND}
    unseen = False
    if workload is not None:
        # A lost reservation is restored from the copy in the workload's status.
        reason = condition(workload.status, "Ready").get("reason")
        unseen = bool(workload.groups) or reason in UNCERTAIN
    return Held(
        some=bool(stored) or unseen,
        groups=max((each.ultraserver_index for each in live), default=-1) + 1,
        bound=len(bound),
        nodes=sum(len(each.nodes) for each in stored),
    )
