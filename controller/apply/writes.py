"""Makes single writes of a plan, and keeps what their results mean for later ones: back-off, objects to avoid."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
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
from controller.decisions.actions import (
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
from controller.fleet.fleet_index import FleetIndex
from controller.metrics import Metrics
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

log = logging.getLogger(__name__)


IN_FLIGHT: Final = 16  # a workload of 256 nodes writes 64 objects twice; more at once would queue at the server
ULTRASERVERS: Final = (
    CreateUltraServer,
    UpdateTopology,
    DeleteUltraServer,
    SetUltraServerFinalizers,
    WriteUltraServerStatus,
)
"""The writes that a pass waits for."""
KINDS: Final[dict[type[Action], str]] = {
    SetFinalizers: "patch neuronultraserverworkloads",
    WriteWorkloadStatus: "patch neuronultraserverworkloads/status",
    CreateTemplate: "create resourceclaimtemplates",
    DeleteTemplate: "delete resourceclaimtemplates",
    Evict: "evict pods",
    LabelNode: "patch nodes",
}
"""The others, with the kind of their requests."""
VALID_S: Final = 2.0
"""A write that gives up nodes because nobody uses them is not sent later than this: its claims are read again."""


class Writes:
    """The writes of one replica, pass by pass: `begin`, then `make_ultraservers`, then `wish_others`.

    The pass waits for the writes of NeuronUltraServers. The others go to the outbox.
    """

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
        self._unwritable: dict[str, tuple[str, datetime.datetime]] = {}  # NeuronUltraServer: why, and until when
        self._without_namespace = False
        self.rejections = Rejections()
        self._now = self._begun_at = datetime.datetime.min
        self._failed_owners: set[str] = set()
        self.server_unavailable = False
        """The API server was unavailable or overloaded in this pass."""
        self.unanswered = False
        """A write of reservations had no answer in this pass: they may be stored."""
        self.attempted: list[Action] = []
        """The writes of NeuronUltraServers in this pass that were sent."""
        self.has_wishes = False
        """This pass has other writes."""

    def begin(self, actions: Sequence[Action], now: datetime.datetime) -> None:
        """Start a pass with the writes of a plan."""
        self._now, self._begun_at = now, self._clock()
        self.server_unavailable, self.unanswered, self.attempted = False, False, []
        self._failed_owners = set()
        # Also those that are tried in this pass: the metric does not change with every try.
        self._metrics.held(sum(self._backoff.next_try(action) is not None for action in actions))
        self.rejections.keep(actions)

    def unsent(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """Return the writes without those whose object has a request in flight."""
        in_flight = self._applier.sender.in_flight()
        return tuple(
            action for action in actions if isinstance(action, ULTRASERVERS) or _object(action) not in in_flight
        )

    async def make_ultraservers(self, actions: Sequence[Action], progressed: Callable[[], None]) -> None:
        """Make the writes of NeuronUltraServers, and wait for them: those of one kind overlap, kinds do not.

        `progressed` is called after each.
        """
        ours = [action for action in actions if isinstance(action, ULTRASERVERS)]
        for _, of_kind in itertools.groupby(ours, key=type):
            due = []
            for action in of_kind:
                if self._waits(action):
                    self._failed_owners |= action.owners
                else:
                    due.append(action)
            waiting = iter(due)

            async def work(waiting: Iterator[Action] = waiting) -> None:
                for action in waiting:
                    if not await self.make(action):
                        self._failed_owners |= action.owners
                    progressed()

            async with asyncio.TaskGroup() as group:
                for number in range(min(len(due), IN_FLIGHT)):
                    group.create_task(work(), name=f"writes {number}")

    def wish_others(self, actions: Sequence[Action]) -> None:
        """Put the other writes into the outbox: of each workload the first step, if what precedes it is stored."""
        forward = {uid for action in actions if not _only_waits(action) for uid in action.owners}
        first: dict[str, type[Action]] = {}  # by UID of the workload, the step that later ones wait for
        withheld = set(self._failed_owners)
        wishes = []
        for action in actions:
            if isinstance(action, ULTRASERVERS):
                continue
            is_later = any(first.get(uid, type(action)) is not type(action) for uid in action.owners)
            # What a status says does not depend on evictions.
            if not isinstance(action, Evict):
                first |= dict.fromkeys(action.owners - first.keys(), type(action))
            if is_later or not withheld.isdisjoint(action.owners) or self._waits(action):
                continue
            is_background = _only_waits(action) and forward.isdisjoint(action.owners)
            wishes.append(self._wish(action, is_background=is_background))
        self.has_wishes = bool(wishes)
        self._applier.sender.decide("plan", wishes)

    def _wish(self, action: Action, *, is_background: bool) -> RequestWish:
        read = partial(self._applier.read_again, action) if isinstance(action, READ_AGAIN) else None
        kind = KINDS[type(action)]
        send = partial(self._send, action, self._begun_at)
        return RequestWish(_object(action), kind, _namespace(action), kind, send, read, is_background=is_background)

    async def _send(self, action: Action, decided_at: datetime.datetime, term: int) -> Answer:
        """Make one write that the outbox sends. Raises EndedTerm."""
        is_old = self._clock() > decided_at + datetime.timedelta(seconds=VALID_S)
        if not self._is_current(action) or (is_old and isinstance(action, WriteWorkloadStatus) and action.expires):
            return Answer.NOT_SENT
        err = await self._try(action, decided_at, term)
        return Answer.DECIDED if err is None else answer_of(err)

    def _is_current(self, action: Action) -> bool:
        """Return True if the cache shows the object as it was when the write was decided."""
        caches = self._caches
        match action:
            case (
                SetFinalizers(namespace=namespace, name=name, version=version)
                | WriteWorkloadStatus(namespace=namespace, name=name, version=version)
            ):
                stored = caches.workloads.items.get(f"{namespace}/{name}")
                return stored is not None and stored["metadata"]["resourceVersion"] == version
            case CreateTemplate(body=body):
                return f"{body['metadata']['namespace']}/{body['metadata']['name']}" not in caches.templates.items
            case DeleteTemplate(namespace=namespace, name=name, uid=uid):
                stored = caches.templates.items.get(f"{namespace}/{name}")
                return stored is not None and stored["metadata"]["uid"] == uid
            case LabelNode(name=name, uid=uid):
                stored = caches.nodes.items.get(f"/{name}")
                return stored is not None and stored["metadata"]["uid"] == uid
        return True

    def end_waits(self) -> None:
        """Make all writes at once: the clock was set back, and the times of their next tries are far away."""
        self._backoff = Backoff(self._timing)
        self._unwritable = {}
        self._throttle.end_waits()

    def _waits(self, action: Action) -> bool:
        """Return whether a write is not due yet, because it was rejected or had no effect before."""
        next_try = self._backoff.next_try(action)
        return next_try is not None and next_try > self._now

    def rejected_statuses(self, actions: Sequence[Action]) -> frozenset[str]:
        """Return the UIDs of the workloads whose status was rejected, and waits to be written again."""
        statuses = (action for action in actions if isinstance(action, WriteWorkloadStatus))
        found = []
        for each in statuses:
            if self._backoff.next_try(each) is not None:
                found.append(each.uid)
        return frozenset(found)

    def unwritable(self, now: datetime.datetime) -> dict[str, str]:
        """Return why the status of some NeuronUltraServers cannot be written at present, by name."""
        self._unwritable = {name: found for name, found in self._unwritable.items() if now < found[1]}
        return {name: why for name, (why, _) in self._unwritable.items()}

    def next_due(self, actions: Sequence[Action]) -> datetime.datetime | None:
        """Return when the first write that waits is due, or an unwritable object is tried again; None for never."""
        moments = [until for _, until in self._unwritable.values()]
        earliest = self._backoff.earliest(actions, self._now)
        return min((*moments, *((earliest,) if earliest is not None else ())), default=None)

    async def make(self, action: Action) -> bool:
        """Make one write of the pass and return whether it succeeded. A failed one is planned again on newer state."""
        self.attempted.append(action)
        try:
            err = await self._try(action, self._now)
        except EndedTerm:
            return False  # it was not sent, which is no failure of the object; the next leader decides
        if err is None:
            return True
        if isinstance(action, WriteUltraServerStatus) and isinstance(err, Unavailable):
            self.unanswered = True
        self.server_unavailable = self.server_unavailable or _is_unavailable(err)
        return False

    async def _try(self, action: Action, now: datetime.datetime, term: int | None = None) -> ApiError | None:
        """Make one write and note what follows from its answer; return the error, if any. Raises EndedTerm."""
        try:
            await self._applier.perform(action, now, term)
        except EndedTerm:
            raise
        except ApiError as err:
            self._failed(action, err)
            if isinstance(err, Forbidden | Invalid):
                self.rejections.note(action, err)
                self._applier.tell_rejected(action, err, now)
            return err
        self._metrics.wrote(type(action).__name__, "ok")
        self._backoff.written(action, self._clock())
        self.rejections.made(action)
        if isinstance(action, WriteUltraServerStatus):
            self._unwritable.pop(action.name, None)
        if isinstance(action, WriteWorkloadStatus):
            self._throttle.written(action, now)
            self._note_allocated(action, now)
            self._metrics.status_written(action.before, action.status, now)
        return None

    def _failed(self, action: Action, err: ApiError) -> None:
        """Log why a write failed. One that the server rejected waits, longer each time; others do not."""
        name = type(action).__name__
        if isinstance(err, schema_check.Outdated):
            self._metrics.wrote(name, "failed")
            return  # it was not sent; the next plan takes the CRD into account
        outdated = isinstance(err, Conflict | NotFound | AlreadyExists)
        self._metrics.wrote(name, "outdated" if outdated else "failed")
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
            found = self._caches.workloads.items.get(f"{action.namespace}/{action.name}")
            if found is not None:
                self._metrics.allocated(max(0.0, (now - found["value"].created).total_seconds()))


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
        case CreateTemplate(body=body):
            return f"template {body['metadata']['namespace']}/{body['metadata']['name']}"
        case DeleteTemplate(namespace=namespace, name=name):
            return f"template {namespace}/{name}"
    raise TypeError(f"{type(action).__name__} is not sent by the outbox")


def _namespace(action: Action) -> str:
    """Return the namespace of the object of a write; empty for a Node."""
    match action:
        case CreateTemplate(body=body):
            return str(body["metadata"]["namespace"])
        case SetFinalizers() | DeleteTemplate() | Evict() | WriteWorkloadStatus():
            return action.namespace
    return ""


def _only_waits(action: Action) -> bool:
    """Return True if the workload of this write gets and loses nothing by it."""
    if isinstance(action, WriteWorkloadStatus):
        return action.status.get("state") == "Pending" and action.before.get("state") in (None, "Pending")
    return isinstance(action, SetFinalizers) and bool(action.finalizers)
