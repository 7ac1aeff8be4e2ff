"""Keeps Kueue's Workloads and our workloads with a queue in step: reads, decides, writes.

It decides in each pass of the controller, when no write of reservations is in progress, because it returns quota for
nodes. It writes, and lists Kueue's Workloads again, beside the passes: the webhooks of Kueue may not answer.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from controller.apply.attempts import Attempt, Attempts, WriteOutcome
from controller.apply.errors import Errors
from controller.apply.fence import EndedTerm
from controller.apply.requests import Applier
from controller.decisions.reasons import Reason
from controller.fleet.changed_objects import ChangedObjects
from controller.fleet.due_times import DueTurns
from controller.fleet.fleet_index import FleetIndex
from controller.observe.caches import Caches
from controller.observe.model import API_VERSION, Admission, QueueRecord, Workload, condition
from controller.queue.admission import HeldNodes, QueueView
from controller.queue.decide import (
    CreateKueueWorkload,
    LetGo,
    RecordQueue,
    Write,
    WriteSpec,
    WriteStatus,
    apply_status,
)
from controller.queue.kept import KeptQueueDecisions
from controller.queue.model import IN_USE, KueueWorkload
from controller.queue.watches import QueueWatch
from controller.timing import QueueTiming
from neuron_dra.core.event_turns import EventTurns
from neuron_dra.core.ultraserver import Phase
from neuron_dra.errors import ApiError, Conflict
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.requests import KUEUE_WORKLOADS, NEURON_WORKLOADS

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""The limit of writes in progress, and of Events in one pass."""
UNCERTAIN: Final = (Reason.UNREADABLE_RESERVATION, Reason.RESERVATION_NOT_SEEN)
"""The reasons of workloads that may have nodes which the controller cannot see."""


_LISTING: Final = "Kueue's Workloads are listed again, because another replica may have changed them"
_LIST: Final = "list"


class Queues:
    """Decides in each pass of the controller what has changed. It can forget all that it keeps, and decide it again.

    `run` makes the writes. It calls `on_change` after each, because the next decision may depend on it.
    """

    def __init__(
        self,
        client: KubeClient,
        caches: Caches[FleetIndex],
        applier: Applier,
        watch: QueueWatch,
        events: EventRecorder,
        timing: QueueTiming,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._caches = caches
        self._applier = applier
        self._watch = watch
        self._events = events
        self._timing = timing
        self._on_change = on_change
        self._attempts = Attempts(applier.fence, timing.first_s, timing.longest_s)  # by UID of the workload
        self._work: asyncio.Queue[Callable[[], Coroutine[Any, Any, object]]] = asyncio.Queue()
        self._sent: dict[str, Write] = {}  # by UID of the workload, the writes in progress
        self._kept = KeptQueueDecisions()
        self._changes: ChangedObjects | None = None
        self._moved: set[str] = set()  # UIDs of workloads whose writes may be due since the last look
        self._turns = DueTurns()  # UIDs of workloads with a write
        self._unsettled: set[str] = set()  # UIDs of workloads for which a write had no answer
        self._stale = False  # another replica may have changed Kueue's Workloads
        self._listing: asyncio.Event | None = None  # it is set at the end of the list in progress
        self._left: frozenset[str] = frozenset()
        self._beyond_limit: frozenset[str] = frozenset()
        self._doubted = False  # a write of reservations had no answer
        self._told: EventTurns[str] = EventTurns()  # by UID of the workload
        self._errors = Errors()

    async def run(self) -> None:
        """Carry out what was decided, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                work = await self._work.get()
                group.create_task(work())

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._attempts.end_waits()
        self._kept.decide_all()

    def doubt(self) -> None:
        """Note that a write of reservations had no answer: they may exist although the caches do not show them."""
        self._doubted = True

    @property
    def written(self) -> frozenset[str]:
        """The UIDs of the workloads whose status is being written."""
        return frozenset(uid for uid, write in self._sent.items() if isinstance(write, RecordQueue))

    def leave_to_the_plan(self, left: frozenset[str], beyond_limit: frozenset[str]) -> None:
        """Write nothing into the status of workloads, by UID, that the plan writes, or that the server has rejected.

        Ask for no quota for those beyond the limit of waiting workloads: each Workload of Kueue takes memory, too.
        """
        self._moved |= (self._left ^ left) | (self._beyond_limit ^ beyond_limit)
        self._left, self._beyond_limit = left, beyond_limit

    async def relist(self, now: datetime.datetime) -> None:
        """Begin to read Kueue's Workloads again, for a new leader, and wait a moment for the result.

        Without it, workloads with a queue wait, and all others are planned.
        """
        self._stale = True
        self._kept.decide_all()
        self._attempts.done(_LIST)
        listing = self._begin_list(now)
        try:
            async with asyncio.timeout(self._timing.relist_s):
                await listing.wait()
        except TimeoutError:
            log.warning("workloads with a queue wait: Kueue's Workloads are not listed yet")

    def resume(self) -> None:
        """Open the watch of Kueue's Workloads again, for a leader that regained its Lease."""
        self._work.put_nowait(self._resume)

    async def _resume(self) -> None:
        try:
            await self._watch.resume()
        except ApiError:
            self._stale = True
            self._on_change()

    def _begin_list(self, now: datetime.datetime) -> asyncio.Event:
        """List Kueue's Workloads beside the passes, unless a list is in progress; return what is set at its end."""
        if self._listing is None:
            self._listing = asyncio.Event()
            self._work.put_nowait(partial(self._list, self._listing, now))
        return self._listing

    async def _list(self, ended: asyncio.Event, now: datetime.datetime) -> None:
        """List them. What was unsettled before the list began is known then."""
        unsettled, was_stale = self._unsettled - self._sent.keys(), self._stale
        try:
            attempt = await self._attempts.make(_LIST, self._watch.relist, now)
        except EndedTerm:
            attempt = Attempt(WriteOutcome.FAILED, "the term of leadership has ended")
        self._listing = None
        ended.set()
        if attempt.outcome is WriteOutcome.WRITTEN:
            self._attempts.done(_LIST)
            self._unsettled -= unsettled
            self._moved |= unsettled
            self._stale = self._stale and not was_stale
        else:
            log.warning("Kueue's Workloads could not be listed", extra={"error": attempt.error})
        self._on_change()

    def admissions(self, index: FleetIndex, now: datetime.datetime) -> dict[str, Admission]:
        """Return what the queue of each workload allows, for a plan."""
        self._follow(index, now)
        return dict(self._kept.admissions)

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide, and begin the writes; return when to do so again at the latest. Raises ApiError of a list."""
        moments: list[datetime.datetime] = []
        if self._unsettled or self._stale:
            again = self._attempts.due(_LIST, now)
            if again <= now:
                self._begin_list(now)
            else:
                moments.append(again)
        if self._doubted:
            # Quota is given back, and a Workload is finished, only when no reservation is left.
            await self._caches.ultraservers.relist()
            self._doubted = False
            index = self._caches.index()
        term = self._applier.fence.term
        unreadable = self._follow(index, now)
        self._errors.report(self._kept.errors)
        moved, self._moved = self._moved, set()
        for uid in sorted(moved, key=self._kept.order):
            self._place(uid, unreadable, now)
        while len(self._sent) < AT_ONCE and (due := self._turns.take(now)) is not None:
            write = self._sent[due] = self._kept.writes[due]
            self._work.put_nowait(partial(self._make, due, write, now, term))
        self._tell(now)
        # Those beyond AT_ONCE are due when one that is in progress has ended.
        waits = None if len(self._sent) >= AT_ONCE else self._turns.next(now)
        moments += [each for each in (waits, self._kept.next_moment()) if each is not None]
        return min(moments, default=None)

    def _follow(self, index: FleetIndex, now: datetime.datetime) -> frozenset[str]:
        """Decide what has changed; return the UIDs of workloads whose Workload of Kueue cannot be read."""
        if self._changes is None:
            self._changes = index.follow()
        changes = self._changes.take()
        for uid, workload in changes.workloads.items():
            self._kept.put(uid, workload)
        changed = changes.workloads.keys() | changes.holders | self._watch.follow()
        unreadable = self._kept.named(self._watch.unreadable)
        for uid in self._kept.follow(self._view(index, unreadable, now), changed):
            self._moved.add(uid)
            if notes := self._kept.of(uid).notes:
                self._told.put(uid, notes[0].workload.namespace, notes[0].message)
            else:
                self._told.forget(uid)
        return unreadable

    def _place(self, uid: str, unreadable: Collection[str], now: datetime.datetime) -> None:
        """Let the write for a workload have its turn, or wait for its time."""
        self._turns.discard(uid)
        write = self._kept.writes.get(uid)
        if write is None:
            self._attempts.done(uid)
            return
        left = isinstance(write, RecordQueue) and uid in self._left
        left = left or (isinstance(write, CreateKueueWorkload) and uid in self._beyond_limit)
        if left or uid in self._sent or uid in self._unsettled or uid in unreadable:
            return
        self._turns.put(uid, _about(write).namespace, self._attempts.due(uid, now), now)

    def _view(self, index: FleetIndex, unreadable: frozenset[str], now: datetime.datetime) -> QueueView:
        required = () if index.namespaces is None else self._caches.queued_namespaces
        return QueueView(
            workloads=self._kept.workloads.values(),
            kueue=self._watch.by_owner,
            unknown=self._watch.unknown or (_LISTING if self._stale else ""),
            held=lambda uid, workload: _held(index, uid, workload),
            required=frozenset(required),
            unsettled=self._unsettled | {uid for uid, write in self._sent.items() if _takes_quota(write)},
            priorities=dict(self._applier.priorities.found),
            timing=self._timing,
            now=now,
            unreadable=unreadable,
            unread=self._caches.unread_workloads(),
        )

    async def _make(self, uid: str, write: Write, now: datetime.datetime, term: int) -> None:
        """Make one write that was decided in `term`; what fails is decided again later."""
        facts = {"write": type(write).__name__, "of": _named(write)}
        try:
            attempt = await self._attempts.make(uid, partial(self._send, write, now, term), now, term)
        except EndedTerm:
            return  # it was not sent; the next leader decides
        finally:
            del self._sent[uid]
            self._moved.add(uid)
            self._on_change()
        facts["error"] = attempt.error
        match attempt.outcome:
            case WriteOutcome.WRITTEN:
                self._attempts.done(uid)
                log.info("wrote for a queue", extra=facts)
            case WriteOutcome.CHANGED:
                self._doubt_kueue(uid, write)
            case WriteOutcome.REJECTED:
                log.warning("a write for a queue was rejected", extra=facts)
                self._tell_rejected(uid, write, attempt.error, now)
            case WriteOutcome.FAILED:
                self._doubt_kueue(uid, write)
                log.warning("a write for a queue failed", extra=facts)

    def _tell_rejected(self, uid: str, write: Write, error: str, now: datetime.datetime) -> None:
        """Post an Event on the workload, or on what Kueue has left of it.

        A quota, a policy or a webhook of Kueue may reject for ever.
        """
        workload = self._kept.workloads.get(uid)
        if workload is not None:
            about = reference(API_VERSION, "NeuronUltraServerWorkload", workload.namespace, workload.name, workload.uid)
        elif isinstance(write, WriteSpec | WriteStatus | LetGo):
            left = write.kueue
            version = f"{KUEUE_WORKLOADS.group}/{KUEUE_WORKLOADS.version}"
            about = reference(version, "Workload", left.namespace, left.name, left.uid)
        else:
            return
        text = f"a write of Kueue's Workload or of status.queue was rejected: {error}"
        self._events.post(about, "Warning", "QueueRejected", text, now)

    def _doubt_kueue(self, uid: str, write: Write) -> None:
        """Note that Kueue's Workload may be another one than the watch shows: a list shows which."""
        if not isinstance(write, RecordQueue):
            self._unsettled.add(uid)

    async def _send(self, write: Write, now: datetime.datetime, term: int) -> None:
        """Send the requests of a write. Raises ApiError, MALFORMED, EndedTerm."""
        match write:
            case CreateKueueWorkload(workload=workload, body=body):
                self._watch.remember(await self._client.create(KUEUE_WORKLOADS, workload.namespace, body))
            case WriteSpec(kueue=kueue, spec=spec):
                without = {"priorityClassRef": None, "priority": None}
                await self._patch(kueue, {"spec": {**without, **spec}})
            case WriteStatus(kueue=kueue, gone=gone):
                if gone and await self._exists(kueue):
                    return
                item = await self._read(kueue)
                body = apply_status(item, write, now)
                self._applier.fence.check(term)  # again: the Workload was read meanwhile
                stored = await self._client.replace(KUEUE_WORKLOADS, kueue.namespace, body, "status")
                self._watch.remember(stored)
            case LetGo(kueue=kueue, delete=delete):
                others = [name for name in kueue.finalizers if name != IN_USE]
                await self._patch(kueue, {"metadata": {"finalizers": others}})
                if delete:
                    self._applier.fence.check(term)
                    await self._client.delete(KUEUE_WORKLOADS, kueue.namespace, kueue.name, uid=kueue.uid)
            case RecordQueue(workload=workload):
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

    async def _record(self, workload: Workload, write: RecordQueue) -> None:
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
        """Return True if the workload that controls Kueue's Workload exists, read or not. Raises ApiError, MALFORMED.

        The watch of workloads may lag behind, and what is finished stays so.
        """
        async for page in self._client.list(NEURON_WORKLOADS, kueue.namespace):
            there = (objects.identity(raw) for raw in page.items)
            if any((each.name, each.uid) == (kueue.owner.name, kueue.owner.uid) for each in there):
                return True
        return False

    def _tell(self, now: datetime.datetime) -> None:
        """Post the notes that are new."""
        for uid in self._told.take(AT_ONCE):
            [note] = self._kept.of(uid).notes
            workload = note.workload
            about = reference(API_VERSION, "NeuronUltraServerWorkload", workload.namespace, workload.name, workload.uid)
            self._events.post(about, "Warning", note.reason, note.message, now)


def _takes_quota(write: Write) -> bool:
    """Return True if a write takes away quota that the watch still shows as usable.

    While it is in progress, nothing may be reserved for that quota.
    """
    return isinstance(write, WriteStatus) and ("Evicted" in write.conditions or bool(write.reclaimable))


def _about(write: Write) -> Workload | KueueWorkload:
    return write.workload if isinstance(write, CreateKueueWorkload | RecordQueue) else write.kueue


def _named(write: Write) -> str:
    return _about(write).ref


def _held(index: FleetIndex, uid: str, workload: Workload | None) -> HeldNodes:
    """Return what a workload has of nodes."""
    stored = [one.allocation for one in index.held(uid)]
    live = [each for each in stored if each.phase is not Phase.DRAINING]
    bound = {each.ultraserver_index for each in live if each.phase is Phase.BOUND}
    unseen = False
    if workload is not None:
        # A lost reservation is restored from the copy in the workload's status.
        reason = condition(workload.status, "Ready").get("reason")
        unseen = bool(workload.groups) or reason in UNCERTAIN
    return HeldNodes(
        some=bool(stored) or unseen,
        groups=max((each.ultraserver_index for each in live), default=-1) + 1,
        bound=len(bound),
        nodes=sum(len(each.nodes) for each in stored),
    )
