"""Makes single writes of a plan, and keeps what their results mean for later ones: back-off, objects to avoid."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from controller.apply import schema_check
from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.rejections import Rejections
from controller.apply.requests import READ_AGAIN, Applier
from controller.apply.sender import answer_of
from controller.apply.status_throttle import StatusThrottle
from controller.apply.write_backoff import Backoff
from controller.metrics import ALLOCATIONS, HELD, WRITES, Metrics
from controller.observe.caches import Caches, wall_clock
from controller.timing import WriteTiming
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from neuron_dra.kube.reflector import Reflector
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import Reservation
from neuron_dra.planner.plan.expiry import VALID

log = logging.getLogger(__name__)

KINDS: Final[dict[type[Action], str]] = {
    CreateUltraServer: "create neuronultraservers",
    UpdateTopology: "patch neuronultraservers",
    DeleteUltraServer: "delete neuronultraservers",
    SetUltraServerFinalizers: "patch neuronultraservers",
    WriteUltraServerStatus: "patch neuronultraservers/status",
    SetFinalizers: "patch neuronultraserverworkloads",
    WriteWorkloadStatus: "patch neuronultraserverworkloads/status",
    CreateTemplate: "create resourceclaimtemplates",
    DeleteTemplate: "delete resourceclaimtemplates",
    Evict: "evict pods",
    LabelNode: "patch nodes",
}
"""The kinds of their requests."""
MOST_LABELS: Final = 128
"""The limit of Nodes that one plan labels. In a new cluster each Node needs labels, and nothing waits for them."""


class Writes:
    """The writes of one replica, plan by plan: `begin`, then `wish`. The outbox sends them."""

    def __init__(
        self,
        caches: Caches[FleetIndex],
        applier: Applier,
        metrics: Metrics,
        throttle: StatusThrottle,
        timing: WriteTiming,
        clock: Callable[[], datetime.datetime] = wall_clock,
    ) -> None:
        self._timing = timing
        self._caches = caches
        self._applier = applier
        self._metrics = metrics
        self._throttle = throttle
        self._clock = clock
        self._backoff = Backoff(self._timing)
        self._next_tries: dict[int, datetime.datetime] = {}  # by id(), because a write may hold a dict
        self._unwritable: dict[str, tuple[str, datetime.datetime]] = {}  # NeuronUltraServer: why, and until when
        self._without_namespace = False
        self.rejections = Rejections()
        self._now = self._begun_at = datetime.datetime.min
        self._open: dict[str, WriteUltraServerStatus] = {}  # by name: writes of reservations that may be stored
        self.has_wishes = False
        """This plan has writes that are due."""
        self.unsettled_owners: frozenset[str] = frozenset()
        """The UIDs of the workloads with a write of reservations that is wished, or may be stored."""

    def begin(self, actions: Sequence[Action], now: datetime.datetime) -> None:
        """Start a pass with the writes of a plan."""
        self._now, self._begun_at = now, self._clock()
        self._next_tries = {}
        for action in actions:
            next_try = self._backoff.next_try(action)
            if next_try is not None:
                self._next_tries[id(action)] = next_try
        # Also those that are tried in this pass: the metric does not change with every try.
        self._metrics.set(HELD, len(self._next_tries))
        self.rejections.keep(actions)

    def assumed(self) -> tuple[Reservation, ...]:
        """Return the reservations that may be stored although the caches do not show them."""
        return tuple(reservation for write in self._open.values() for reservation in write.added)

    def wish(self, actions: Sequence[Action]) -> None:
        """Put the writes into the outbox: of each workload the first step, if what precedes it is stored."""
        forward = {uid for action in actions if not _only_waits(action) for uid in action.owners}
        reservations = [action for action in actions if isinstance(action, WriteUltraServerStatus)]
        # A step that follows a write of reservations waits until that is stored.
        withheld = {uid for write in (*reservations, *self._open.values()) for uid in write.owners}
        first: dict[str, type[Action]] = {}  # by UID of the workload, the step that later ones wait for
        due: list[Action] = []
        for action in actions:
            is_withheld = any(first.get(uid, type(action)) is not type(action) for uid in action.owners)
            # A status that takes something back is true whether the reservations are written already or not, and only
            # this plan knows why.
            if not (isinstance(action, WriteWorkloadStatus) and action.takes_back):
                is_withheld = is_withheld or not withheld.isdisjoint(action.owners)
            if isinstance(action, WriteUltraServerStatus):
                is_withheld = False  # it is for several workloads, and none of them waits for the steps of another
            elif not isinstance(action, Evict):  # what a status says does not depend on evictions
                first |= dict.fromkeys(action.owners - first.keys(), type(action))
            if not is_withheld and not self._waits(action):
                due.append(action)
        due = _with_some_labels(due)
        wishes = []
        for action in due:
            is_background = _only_waits(action) and forward.isdisjoint(action.owners)
            wishes.append(self._wish(action, is_background=is_background))
        wishes += self._settling({wish.object for wish in wishes})
        self.has_wishes = bool(wishes)
        unsettled = (write for write in (*due, *self._open.values()) if isinstance(write, WriteUltraServerStatus))
        self.unsettled_owners = frozenset(uid for write in unsettled for uid in write.owners)
        self._applier.sender.decide("plan", wishes)

    def _wish(self, action: Action, *, is_background: bool) -> RequestWish:
        read = partial(self._read_again, action) if isinstance(action, READ_AGAIN) else None
        kind = KINDS[type(action)]
        send = partial(self._send, action, self._begun_at)
        return RequestWish(_object(action), kind, _namespace(action), kind, send, read, is_background=is_background)

    def _settling(self, wished: Collection[str]) -> list[RequestWish]:
        """Return the reads of objects with a write that had no answer, and that is not followed by another one."""
        in_flight = self._applier.sender.in_flight()
        wishes = []
        for action in self._open.values():
            name = _object(action)
            if name not in wished and name not in in_flight:
                part = KINDS[WriteUltraServerStatus]
                read = partial(self._read_again, action)
                settle = partial(self._settle, action)
                wishes.append(RequestWish(name, part, NAMESPACE, "get neuronultraservers", settle, read))
        return wishes

    async def _settle(self, action: Action, term: int) -> Answer:
        return await self._read_again(action)

    async def _read_again(self, action: Action) -> Answer:
        """Read the object of a write that had no answer; it is settled then."""
        answer = await self._applier.read_again(action)
        if answer is Answer.DECIDED and isinstance(action, WriteUltraServerStatus):
            self._open.pop(action.name, None)
        return answer

    async def _send(self, action: Action, decided_at: datetime.datetime, term: int) -> Answer:
        """Make one write that the outbox sends. Raises EndedTerm."""
        is_old = self._clock() > decided_at + VALID
        if not self._is_current(action) or (is_old and isinstance(action, WriteWorkloadStatus) and action.expires):
            return Answer.NOT_SENT
        if not isinstance(action, WriteUltraServerStatus):
            return await self._try(action, decided_at, term)
        self._open[action.name] = action
        try:
            answer = await self._try(action, decided_at, term)
        except EndedTerm:
            del self._open[action.name]  # the status was not sent
            raise
        if answer is not Answer.NONE:
            del self._open[action.name]
        return answer

    def _is_current(self, action: Action) -> bool:
        """Return True if the cache shows the object as it was when the write was decided."""
        caches = self._caches
        match action:
            case (
                SetFinalizers(namespace=namespace, name=name, version=version)
                | WriteWorkloadStatus(namespace=namespace, name=name, version=version)
            ):
                return _is_seen(caches.workloads, f"{namespace}/{name}", version)
            case CreateTemplate(body=body):
                return f"{body['metadata']['namespace']}/{body['metadata']['name']}" not in caches.templates.items
            case DeleteTemplate(namespace=namespace, name=name, uid=uid):
                stored = caches.templates.items.get(f"{namespace}/{name}")
                return stored is not None and stored["metadata"]["uid"] == uid
            case LabelNode(name=name, uid=uid):
                stored = caches.nodes.items.get(f"/{name}")
                return stored is not None and stored["metadata"]["uid"] == uid
            case CreateUltraServer(body=body):
                return f"{NAMESPACE}/{body['metadata']['name']}" not in caches.ultraservers.items
            case (
                UpdateTopology(name=name, version=version)
                | DeleteUltraServer(name=name, version=version)
                | SetUltraServerFinalizers(name=name, version=version)
                | WriteUltraServerStatus(name=name, version=version)
            ):
                return _is_seen(caches.ultraservers, f"{NAMESPACE}/{name}", version)
        return True

    def end_waits(self) -> None:
        """Make all writes at once: the clock was set back, and the times of their next tries are far away."""
        self._backoff = Backoff(self._timing)
        self._unwritable = {}
        self._throttle.end_waits()

    def _waits(self, action: Action) -> bool:
        """Return whether a write is not due yet, because it was rejected or had no effect before."""
        next_try = self._next_tries.get(id(action))
        return next_try is not None and next_try > self._now

    def rejected_statuses(self, actions: Sequence[Action]) -> frozenset[str]:
        """Return the UIDs of the workloads whose status was rejected, and waits to be written again."""
        status_writes = (action for action in actions if isinstance(action, WriteWorkloadStatus))
        rejected_uids = []
        for write in status_writes:
            if id(write) in self._next_tries:
                rejected_uids.append(write.uid)
        return frozenset(rejected_uids)

    def unwritable(self, now: datetime.datetime) -> dict[str, str]:
        """Return why the status of some NeuronUltraServers cannot be written at present, by name."""
        self._unwritable = {
            ultraserver_name: (why, until) for ultraserver_name, (why, until) in self._unwritable.items() if now < until
        }
        return {ultraserver_name: why for ultraserver_name, (why, _) in self._unwritable.items()}

    def next_due(self) -> datetime.datetime | None:
        """Return when the first write that waits is due, or an unwritable object is tried again; None for never."""
        moments = [until for _, until in self._unwritable.values()]
        moments += [next_try for next_try in self._next_tries.values() if next_try > self._now]
        return min(moments, default=None)

    async def _try(self, action: Action, now: datetime.datetime, term: int) -> Answer:
        """Make one write and note what follows from its answer. Raises EndedTerm."""
        try:
            await self._applier.perform(action, now, term)
        except ApiError as err:
            self._failed(action, err)
            if isinstance(err, Forbidden | Invalid):
                self.rejections.note(action, err)
                self._applier.tell_rejected(action, err, now)
            return answer_of(err)
        self._metrics.add(WRITES, type(action).__name__, "ok")
        self._backoff.written(action, self._clock())
        self.rejections.made(action)
        if isinstance(action, WriteUltraServerStatus):
            self._unwritable.pop(action.name, None)
        if isinstance(action, WriteWorkloadStatus):
            self._throttle.written(action, now)
            self._note_allocated(action, now)
            self._metrics.status_written(action.before, action.status, now)
        return Answer.DECIDED

    def _failed(self, action: Action, err: ApiError) -> None:
        """Log why a write failed. One that the server rejected waits, longer each time; others do not."""
        name = type(action).__name__
        if isinstance(err, schema_check.Outdated):
            self._metrics.add(WRITES, name, "failed")
            return  # it was not sent; the next plan takes the CRD into account
        outdated = isinstance(err, Conflict | NotFound | AlreadyExists)
        self._metrics.add(WRITES, name, "outdated" if outdated else "failed")
        unavailable = _is_unavailable(err)
        if not unavailable:
            self._backoff.refused(action, self._clock())
        if isinstance(err, NotFound) and isinstance(action, CreateUltraServer):
            if not self._without_namespace:
                log.error(
                    "namespace %s does not exist, so UltraServers cannot be written: create it (kubectl create "
                    "namespace %s)",
                    NAMESPACE,
                    NAMESPACE,
                    extra={"error": str(err)},
                )
            self._without_namespace = True
        elif outdated:
            log.info("the plan was out of date", extra={"action": name, "error": str(err)})
        else:
            log.warning("a write failed", extra={"action": name, "error": str(err)})
            if isinstance(action, WriteUltraServerStatus) and not unavailable:
                # Until then workloads get slots in other UltraServers.
                until = self._clock() + datetime.timedelta(seconds=self._timing.longest_s)
                self._unwritable[action.name] = str(err), until

    def _note_allocated(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        """Report the time from the creation of a workload to its first state Allocated."""
        again = action.status.get("restarts")
        if action.status.get("allocatedAt") and not action.before.get("allocatedAt") and not again:
            workload_item = self._caches.workloads.items.get(f"{action.namespace}/{action.name}")
            if workload_item is not None:
                waited_s = (now - workload_item["value"].created).total_seconds()
                self._metrics.observe(ALLOCATIONS, max(0.0, waited_s))


def _with_some_labels(writes: Sequence[Action]) -> list[Action]:
    label_writes = [write for write in writes if isinstance(write, LabelNode)]
    other_writes = [write for write in writes if not isinstance(write, LabelNode)]
    return [*label_writes[:MOST_LABELS], *other_writes]


def _is_seen(cache: Reflector, key: str, version: str) -> bool:
    """Return True if a plan would see this version of an object now.

    Of an object that cannot be read, plans see an older version than the one that is stored. The API server rejects
    such a write, which then waits longer each time; if it were not sent, the plan would be made again at once.
    """
    cached_item = cache.items.get(key)
    return cached_item is not None and cached_item["value"].version == version


def _is_unavailable(err: ApiError) -> bool:
    """The server is unavailable or overloaded: the object is not the cause, and every write waits."""
    return isinstance(err, TooManyRequests) or (isinstance(err, Unavailable) and err.status != 500)


def _object(action: Action) -> str:
    """Return the UID of the object of a write, or its identity."""
    match action:
        case WriteWorkloadStatus(uid=uid) | Evict(uid=uid) | LabelNode(uid=uid):
            return uid
        case SetFinalizers():
            return "".join(action.owners)  # the workload itself
        case CreateUltraServer(body=body):
            return f"neuronultraserver {body['metadata']['name']}"
        case UpdateTopology() | DeleteUltraServer() | SetUltraServerFinalizers() | WriteUltraServerStatus():
            return f"neuronultraserver {action.name}"
        case CreateTemplate(body=body):
            return f"template {body['metadata']['namespace']}/{body['metadata']['name']}"
        case DeleteTemplate(namespace=namespace, name=name):
            return f"template {namespace}/{name}"
    raise TypeError(f"{type(action).__name__} is not sent by the outbox")


def _namespace(action: Action) -> str:
    """Return the namespace of the object of a write; empty for a Node."""
    match action:
        case LabelNode():
            return ""
        case CreateTemplate(body=body):
            return str(body["metadata"]["namespace"])
        case SetFinalizers() | DeleteTemplate() | Evict() | WriteWorkloadStatus():
            return action.namespace
    return NAMESPACE


def _only_waits(action: Action) -> bool:
    """Return True if the workload of this write gets and loses nothing by it."""
    if isinstance(action, WriteWorkloadStatus):
        return action.status.get("state") == "Pending" and action.before.get("state") in (None, "Pending")
    return isinstance(action, SetFinalizers) and bool(action.finalizers)
