"""Keeps Kueue's Workloads and our workloads with a queue in step: reads, decides, writes.

It decides in each pass of the controller, when no write of reservations is in progress, because it returns quota for
nodes. The outbox sends its writes, and lists Kueue's Workloads again: the webhooks of Kueue may not answer.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from controller.apply.decided_writes import (
    Attempt,
    DecidedWrites,
    Rejection,
    WriteOutcome,
    WriteRow,
    attempted,
)
from controller.apply.errors import Errors
from controller.apply.outbox import Answer, RequestWish
from controller.apply.requests import Applier
from controller.apply.write_backoff import Tries
from controller.observe.caches import Caches
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
from neuron_dra.errors import Conflict
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.requests import KUEUE_WORKLOADS, NEURON_WORKLOADS
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.changed_objects import ChangedObjects
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.memo import EVERYTHING
from neuron_dra.planner.observed.model import API_VERSION, Admission, QueueRecord, Workload, condition

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""The limit of Events in one pass."""
UNCERTAIN: Final = (Reason.UNREADABLE_RESERVATION, Reason.RESERVATION_NOT_SEEN)
"""The reasons of workloads that may have nodes which the controller cannot see."""


_LISTING: Final = "Kueue's Workloads are listed again, because another replica may have changed them"
_LIST: Final = "list"
_NO_TRIES: Final = Tries(0, datetime.datetime.min.replace(tzinfo=datetime.UTC))


class Queues:
    """Decides in each pass of the controller what has changed. It can forget all that it keeps, and decide it again.

    It calls `on_change` after each request, because the next decision may depend on it.
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
        self._sender = applier.sender
        self._now = datetime.datetime.min.replace(tzinfo=datetime.UTC)  # the time of the last look
        self._kept = KeptQueueDecisions()
        retry_s = timing.first_s, timing.longest_s
        self._writes = DecidedWrites("queues", self, self._kept.writes, self._sender, events, retry_s, on_change)
        self._changes: ChangedObjects | None = None
        self._unsettled: set[str] = set()  # UIDs of workloads for which a write had no answer
        self._unreadable: frozenset[str] = frozenset()  # UIDs of workloads whose Workload of Kueue cannot be read
        self._stale = False  # another replica may have changed Kueue's Workloads
        self._list_tries = _NO_TRIES
        self._listed = asyncio.Event()  # set at the end of a list
        self._left: frozenset[str] = frozenset()
        self._beyond_limit: frozenset[str] = frozenset()
        self._uncertain: frozenset[str] = frozenset()  # UIDs of workloads whose reservations are being written
        self._told: EventTurns[str] = EventTurns()  # by UID of the workload
        self._errors = Errors()

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._writes.end_waits()
        self._list_tries = _NO_TRIES
        self._kept.mark_with(EVERYTHING)

    def leave_to_the_plan(
        self, rejected_statuses: frozenset[str], beyond_limit: frozenset[str], unsettled: frozenset[str]
    ) -> None:
        """Write nothing into the status of workloads, by UID, of which the server has rejected the plan's write.

        Ask for no quota for those beyond the limit of waiting workloads: each Workload of Kueue takes memory, too. Give
        no quota back while a write of a workload's reservations is unsettled.
        """
        moved = (self._left ^ rejected_statuses) | (self._beyond_limit ^ beyond_limit)
        self._writes.move(sorted(moved, key=self._kept.order))
        self._left, self._beyond_limit, self._uncertain = rejected_statuses, beyond_limit, unsettled

    async def relist(self, now: datetime.datetime) -> None:
        """Begin to read Kueue's Workloads again, for a new leader, and wait a moment for the result.

        Without it, workloads with a queue wait, and all others are planned.
        """
        self._stale = True
        self._kept.mark_with(EVERYTHING)
        self._list_tries = _NO_TRIES
        self._now = now
        self._listed.clear()
        self._wish_list(self._watch.relist)
        try:
            async with asyncio.timeout(self._timing.relist_s):
                await self._listed.wait()
        except TimeoutError:
            log.warning("workloads with a queue wait: Kueue's Workloads are not listed yet")

    def resume(self) -> None:
        """Open the watch of Kueue's Workloads again, for a leader that regained its Lease."""
        self._wish_list(self._watch.resume)

    def _wish_list(self, read: Callable[[], Awaitable[None]]) -> None:
        """Let Kueue's Workloads be listed, unless they are."""
        wish = RequestWish(_LIST, _LIST, "", "list workloads.kueue.x-k8s.io", partial(self._list, read))
        self._sender.put(_LIST, self._applier.fence.term, wish)

    async def _list(self, read: Callable[[], Awaitable[None]], term: int) -> Answer:
        """List them. What was unsettled before the list began is known then. Raises EndedTerm."""
        unsettled, was_stale = self._unsettled - self._writes.in_flight.keys(), self._stale
        self._list_tries = self._list_tries.once_more(self._timing.first_s, self._now, self._timing.longest_s)
        attempt = await attempted(read())
        self._listed.set()
        if attempt.outcome is WriteOutcome.WRITTEN:
            self._list_tries = _NO_TRIES
            self._unsettled -= unsettled
            self._writes.move(sorted(unsettled, key=self._kept.order))
            self._stale = self._stale and not was_stale
        else:
            self._stale = True
            log.warning("Kueue's Workloads could not be listed", extra={"error": attempt.error})
        self._on_change()
        return attempt.answer

    def admissions(self, index: FleetIndex, now: datetime.datetime) -> dict[str, Admission]:
        """Return what the queue of each workload allows, for a plan."""
        self._follow(index, now)
        return dict(self._kept.admissions)

    def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide, and begin the writes; return when to do so again at the latest."""
        moments: list[datetime.datetime] = []
        self._now = now
        if self._unsettled or self._stale:
            if self._list_tries.next_at <= now:
                self._wish_list(self._watch.relist)
            else:
                moments.append(self._list_tries.next_at)
        self._writes.begin(self._applier.fence.term)
        self._follow(index, now)
        self._errors.report(self._kept.errors)
        due_at = self._writes.place(now)
        self._tell(now)
        moments += [moment for moment in (due_at, self._kept.next_moment()) if moment is not None]
        return min(moments, default=None)

    def _follow(self, index: FleetIndex, now: datetime.datetime) -> None:
        """Decide what has changed."""
        if self._changes is None:
            self._changes = index.follow()
        changes = self._changes.take()
        for uid, workload in changes.workloads.items():
            self._kept.put(uid, workload)
        self._unreadable = self._kept.named(self._watch.unreadable)
        decided = self._kept.follow(self._view(index, now), changes.holders | self._watch.follow())
        for uid in decided:
            if notes := self._kept.of(uid).notes:
                self._told.put(uid, notes[0].workload.namespace, notes[0].message)
            else:
                self._told.forget(uid)
        self._writes.decided(sorted(self._kept.take_moved(), key=self._kept.order))

    def row(self, key: str, write: Write) -> WriteRow | None:
        """Return how a write is sent: to the workload itself, or to Kueue's Workload for it."""
        is_record = isinstance(write, RecordQueue)
        is_left = is_record and key in self._left
        is_beyond_limit = isinstance(write, CreateKueueWorkload) and key in self._beyond_limit
        if is_left or is_beyond_limit or key in self._unsettled or key in self._unreadable:
            return None
        name = key if is_record else f"Kueue's Workload for {key}"
        kind = "patch neuronultraserverworkloads/status" if is_record else f"{type(write).__name__} of Kueue"
        # A quota, a policy or a webhook of Kueue may reject for ever.
        text = "a write of Kueue's Workload or of status.queue was rejected"
        rejection = Rejection(self._subject(key, write), "QueueRejected", text)
        namespace = _about(write).namespace
        return WriteRow(name, namespace, kind, rejection, is_shown=True, takes=_takes_quota(write))

    def _subject(self, key: str, write: Write) -> dict[str, str]:
        """Return the workload of a write, or what Kueue has left of one that is gone."""
        about = self._kept.workloads.get(key) or _about(write)
        if isinstance(about, Workload):
            return reference(API_VERSION, "NeuronUltraServerWorkload", about.namespace, about.name, about.uid)
        version = f"{KUEUE_WORKLOADS.group}/{KUEUE_WORKLOADS.version}"
        return reference(version, "Workload", about.namespace, about.name, about.uid)

    def _view(self, index: FleetIndex, now: datetime.datetime) -> QueueView:
        required = () if index.namespaces is None else self._caches.queued_namespaces
        uncertain = self._uncertain
        return QueueView(
            kueue=self._watch.by_owner,
            unknown=self._watch.unknown or (_LISTING if self._stale else ""),
            held=lambda uid, workload: _held(index, uid, workload, is_uncertain=uid in uncertain),
            uncertain=uncertain,
            required=frozenset(required),
            unsettled=self._unsettled | self._writes.taking,
            priorities=dict(self._applier.priorities.found),
            timing=self._timing,
            now=now,
            unreadable=self._unreadable,
            unread=self._caches.unread_workloads(),
        )

    def follow_outcome(self, key: str, write: Write, attempt: Attempt) -> None:
        """Log what was written. After a write without an answer, a list shows which Workload Kueue has."""
        if attempt.outcome is WriteOutcome.WRITTEN:
            log.info("wrote for a queue", extra={"write": type(write).__name__, "of": _about(write).ref})
        elif attempt.outcome is not WriteOutcome.REJECTED and not isinstance(write, RecordQueue):
            self._unsettled.add(key)

    async def send(self, key: str, write: Write, term: int) -> None:
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
                stored_workload = await self._read(kueue)
                body = apply_status(stored_workload, write, self._now)
                self._applier.fence.check(term)  # again: the Workload was read meanwhile
                stored = await self._client.replace(KUEUE_WORKLOADS, kueue.namespace, body, "status")
                self._watch.remember(stored)
            case LetGo(kueue=kueue, delete=delete):
                other_finalizers = [name for name in kueue.finalizers if name != IN_USE]
                await self._patch(kueue, {"metadata": {"finalizers": other_finalizers}})
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
        stored = self._caches.workloads.items.get(workload.ref)
        if stored is None or stored["metadata"]["resourceVersion"] != workload.version:
            raise Conflict(f"{workload.ref} has changed")  # the plan has written its status meanwhile
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
            identities = (objects.identity(raw) for raw in page.items)
            if any((identity.name, identity.uid) == (kueue.owner.name, kueue.owner.uid) for identity in identities):
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

    From its decision to its answer, nothing may be reserved for that quota.
    """
    return isinstance(write, WriteStatus) and ("Evicted" in write.conditions or bool(write.reclaimable))


def _about(write: Write) -> Workload | KueueWorkload:
    return write.workload if isinstance(write, CreateKueueWorkload | RecordQueue) else write.kueue


def _held(index: FleetIndex, uid: str, workload: Workload | None, *, is_uncertain: bool) -> HeldNodes:
    """Return what a workload has of nodes; `is_uncertain`: a write of its reservations is unsettled."""
    allocations = [reservation.allocation for reservation in index.held(uid)]
    live_allocations = [allocation for allocation in allocations if allocation.phase is not Phase.DRAINING]
    bound = {allocation.ultraserver_index for allocation in live_allocations if allocation.phase is Phase.BOUND}
    unseen = False
    if workload is not None:
        # A lost reservation is restored from the copy in the workload's status.
        reason = condition(workload.status, "Ready").get("reason")
        unseen = bool(workload.groups) or reason in UNCERTAIN
    return HeldNodes(
        some=bool(allocations) or unseen or is_uncertain,
        is_uncertain=is_uncertain,
        groups=max((allocation.ultraserver_index for allocation in live_allocations), default=-1) + 1,
        bound=len(bound),
        nodes=sum(len(allocation.nodes) for allocation in allocations),
    )
