"""Makes single writes of a plan, and keeps what their results mean for later ones: back-off, objects to avoid."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence

from controller.apply import schema_check
from controller.apply.fence import EndedTerm
from controller.apply.rejections import Rejections
from controller.apply.requests import Applier
from controller.apply.status_throttle import StatusThrottle
from controller.apply.write_backoff import Backoff
from controller.decisions.actions import (
    Action,
    CreateUltraServer,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.fleet.fleet_index import FleetIndex
from controller.metrics import Metrics
from controller.observe.caches import Caches
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


class Writes:
    """The writes of one replica, pass by pass. `begin` starts a pass; `make` makes one of its writes."""

    def __init__(
        self,
        caches: Caches[FleetIndex],
        applier: Applier,
        metrics: Metrics,
        throttle: StatusThrottle,
        timing: WriteTiming,
    ) -> None:
        self._timing = timing
        self._caches = caches
        self._applier = applier
        self._metrics = metrics
        self._throttle = throttle
        self._backoff = Backoff(self._timing)
        self._unwritable: dict[str, tuple[str, datetime.datetime]] = {}  # NeuronUltraServer: why, and until when
        self._without_namespace = False
        self.rejections = Rejections()
        self._now = datetime.datetime.min
        self._waiting: set[int] = set()
        self.server_unavailable = False
        """The API server was unavailable or overloaded in this pass."""
        self.unanswered = False
        """A write of reservations had no answer in this pass: they may be stored."""
        self.attempted: list[Action] = []
        """The writes of this pass that were sent."""

    def begin(self, actions: Sequence[Action], now: datetime.datetime) -> None:
        """Start a pass with the writes of a plan."""
        self._now = now
        self.server_unavailable, self.unanswered, self.attempted = False, False, []
        next_tries = {id(action): self._backoff.next_try(action) for action in actions}
        tries = {key: moment for key, moment in next_tries.items() if moment is not None}
        self._waiting = {key for key, moment in tries.items() if moment > now}
        # Also those that are tried in this pass: the metric does not change with every try.
        self._metrics.held(len(tries))
        self.rejections.keep(actions)

    def end_waits(self) -> None:
        """Make all writes at once: the clock was set back, and the times of their next tries are far away."""
        self._backoff = Backoff(self._timing)
        self._unwritable = {}
        self._throttle.end_waits()

    def waits(self, action: Action) -> bool:
        """Return whether a write of this pass is not due yet, because it was rejected or had no effect before."""
        return id(action) in self._waiting

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
        """Make one write and return whether it succeeded. A failed one is planned again on newer state."""
        self.attempted.append(action)
        try:
            await self._applier.perform(action, self._now)
        except EndedTerm:
            return False  # it was not sent, which is no failure of the object; the next leader decides
        except ApiError as err:
            self._failed(action, err)
            if isinstance(err, Forbidden | Invalid):
                self.rejections.note(action, err)
                self._applier.tell_rejected(action, err, self._now)
            return False
        self._metrics.wrote(type(action).__name__, "ok")
        self._backoff.written(action, self._now)
        self.rejections.made(action)
        if isinstance(action, WriteUltraServerStatus):
            self._unwritable.pop(action.name, None)
        if isinstance(action, WriteWorkloadStatus):
            self._throttle.written(action, self._now)
            self._note_allocated(action)
            self._metrics.status_written(action.before, action.status, self._now)
        return True

    def _failed(self, action: Action, err: ApiError) -> None:
        """Log why a write failed. One that the server rejected waits, longer each time; others do not."""
        name = type(action).__name__
        if isinstance(err, schema_check.Outdated):
            self._metrics.wrote(name, "failed")
            return  # it was not sent; the next plan takes the CRD into account
        if isinstance(action, WriteUltraServerStatus) and isinstance(err, Unavailable):
            self.unanswered = True
        outdated = isinstance(err, Conflict | NotFound | AlreadyExists)
        self._metrics.wrote(name, "outdated" if outdated else "failed")
        unavailable = _is_unavailable(err)
        if unavailable:
            self.server_unavailable = True
        else:
            self._backoff.refused(action, self._now)
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
                until = self._now + datetime.timedelta(seconds=self._timing.longest_s)
                self._unwritable[action.name] = str(err), until

    def _note_allocated(self, action: WriteWorkloadStatus) -> None:
        """Report the time from the creation of a workload to its first state Allocated."""
        again = action.status.get("restarts")
        if action.status.get("allocatedAt") and not action.before.get("allocatedAt") and not again:
            found = self._caches.workloads.items.get(f"{action.namespace}/{action.name}")
            if found is not None:
                self._metrics.allocated(max(0.0, (self._now - found["value"].created).total_seconds()))


def _is_unavailable(err: ApiError) -> bool:
    """The server is unavailable or overloaded: the object is not the cause, and every write waits."""
    return isinstance(err, TooManyRequests) or (isinstance(err, Unavailable) and err.status != 500)
