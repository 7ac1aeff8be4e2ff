"""The loop: wait for a change, take a snapshot, plan, write. What changed does not matter, only what is."""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.apply import batches, schema_check, write_backoff
from controller.apply.leader import Leadership
from controller.apply.requests import Applier
from controller.apply.status_throttle import StatusThrottle
from controller.apply.write_backoff import Backoff
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.observe.model import shortened
from controller.plan import planning
from controller.plan.actions import (
    Action,
    CreateUltraServer,
    Evict,
    Plan,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.plan.fleet_index import FleetIndex
from controller.plan.planning import Limits
from neuron_dra.core import backoff
from neuron_dra.core.names import WORKLOAD_CLASS
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound, TooManyRequests, Unavailable

log = logging.getLogger(__name__)

GATHER_S: Final = 0.05  # changes come in bursts: one plan for all of them
RETRY_S: Final = (0.2, 30.0)  # first and longest wait after a write that failed
BUSY_PASSES: Final = 50  # so many passes with writes in a row, and somebody undoes what we do
BUSY_WAIT_S: Final = 5.0


def wall_clock() -> datetime.datetime:
    """Return the time."""
    return datetime.datetime.now(datetime.UTC)


class Reconciler:
    """Plans and writes while this process is the leader."""

    def __init__(
        self,
        caches: Caches[FleetIndex],
        applier: Applier,
        leadership: Leadership,
        metrics: Metrics,
        limits: Limits,
        clock: Callable[[], datetime.datetime] = wall_clock,
    ) -> None:
        self._caches = caches
        self._applier = applier
        self._leadership = leadership
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._refusals = applier.refusals
        self._pod_looks = applier.pod_looks
        self._wording = StatusThrottle()
        applier.on_eviction = applier.refusals.on_eviction = metrics.evicted
        applier.schemas.on_change = metrics.crd_outdated
        self._term = 0
        self._told_blocked: dict[str, str] = {}
        self._backoff = Backoff()
        self._unwritable: dict[str, tuple[str, datetime.datetime]] = {}  # NeuronUltraServer: why, and until when
        self._away = False  # the server, in this pass
        self._tried: list[Action] = []  # writes, in this pass
        self._without_namespace = False
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        waits = backoff.delays(*RETRY_S, random.random)
        busy = 0
        wait_s: float | None = None
        while True:
            await self._change(wait_s)
            if self._caches.missing() or not self._leadership.holds():
                self._metrics.leading(self._leadership.holds())
                wait_s = 1.0
                continue
            self._metrics.leading(True)
            try:
                plan, waiting = await self._pass()
            except ApiError as err:
                log.warning("the caches could not be read afresh", extra={"error": str(err)})
                wait_s = next(waits)
                continue
            busy = busy + 1 if any(not isinstance(action, Evict) for action in plan.actions) else 0
            if self._away:
                wait_s = next(waits)
                continue
            waits = backoff.delays(*RETRY_S, random.random)
            wait_s = self._next(plan, waiting)
            if self._told_blocked != self._applier.blocked_evictions:
                self._told_blocked = dict(self._applier.blocked_evictions)
                wait_s = 0.0  # the workload's status is to say so, and to stop saying so
            if busy >= BUSY_PASSES:
                log.warning("every plan has writes: something undoes them", extra={"passes": busy})
                wait_s = BUSY_WAIT_S

    async def _change(self, wait_s: float | None) -> None:
        """Wait for a change, or so long; then a moment more, for what comes along with it."""
        try:
            async with asyncio.timeout(wait_s):
                await self.changed.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(GATHER_S)
        self.changed.clear()

    async def _pass(self) -> tuple[Plan, datetime.datetime | None]:
        """Plan once and write; return the plan of writes that were due, and when others are. Raises ApiError."""
        self._away, self._tried = False, []
        if self._term != self._leadership.term:
            term = self._leadership.term
            try:
                await self._caches.relist()
            except* ApiError as group:
                raise ApiError(str(group.exceptions[0])) from group
            self._term = term
            self._tell_strangers()
        now = self._clock()
        names = self._caches.ultraservers.items, self._caches.workloads.items
        await self._applier.schemas.try_all(*names, now, self._term)
        plan = self._plan(now)
        if plan.handed_over:
            # The watch of claims may be behind that of slices: read as of now who has a claim on these nodes.
            await self._caches.reread_claims(plan.handed_over)
            plan = self._plan(now)
        plan = self._wording.unhurried(plan, now)
        held = {id(action) for action in plan.actions if self._backoff.due(action, now) > now}
        self._metrics.held(len(held))
        await batches.perform(
            plan.actions,
            lambda action: self._write(action, now),
            self._leadership.holds,
            lambda action: id(action) in held,
        )
        self._applier.keep_blocked({action.uid for action in plan.actions if isinstance(action, Evict)})
        due = replace(plan, actions=tuple(self._tried))  # without those that wait, and what waits for them
        moments = [until for _, until in self._unwritable.values()]
        earliest = self._backoff.earliest(plan.actions, now)
        looks = await self._refusals.look(plan.suspects, now), await self._pod_looks.look(plan.starting, now)
        return due, min((*moments, *(each for each in (earliest, *looks) if each is not None)), default=None)

    def _tell_strangers(self) -> None:
        """Say which templates ask for reserved devices that this controller has not made.

        An admission policy refuses new ones; those from before it stay, and so do pods that name them.
        """
        index = self._caches.index({})
        ours = {each.uid for each in index.workloads}
        found = sorted(
            f"{each.namespace}/{each.name}"
            for each in index.templates
            if each.reserved_class and each.owner_uid not in ours
        )
        if found:
            log.warning(
                "ResourceClaimTemplates that are no workload's ask for reserved devices: delete them",
                extra={"templates": shortened(found), "device_class": WORKLOAD_CLASS},
            )

    def _plan(self, now: datetime.datetime) -> Plan:
        self._unwritable = {name: found for name, found in self._unwritable.items() if now < found[1]}
        unwritable = {name: why for name, (why, _) in self._unwritable.items()}
        started = time.perf_counter()
        index = self._caches.index(self._applier.blocked_evictions, unwritable)
        index.outdated = self._applier.schemas.outdated
        index.unschedulable = self._pod_looks.unschedulable
        plan = planning.plan_of(index, now, self._limits)
        index.settle(plan.settled, plan.settled_nodes)
        self._metrics.planned(time.perf_counter() - started, index)
        return plan

    async def _write(self, action: Action, now: datetime.datetime) -> bool:
        """Make one write; return whether it was made. What fails is planned again on newer knowledge."""
        self._tried.append(action)
        name = type(action).__name__
        try:
            await self._applier.perform(action, now)
        except ApiError as err:
            self._failed(action, err, now)
            return False
        self._metrics.wrote(name, "ok")
        self._backoff.written(action, now)
        if isinstance(action, WriteUltraServerStatus):
            self._unwritable.pop(action.name, None)
        if isinstance(action, WriteWorkloadStatus):
            self._wording.written(action, now)
            self._note_allocated(action, now)
            self._metrics.told(action.before, action.status, now)
        return True

    def _failed(self, action: Action, err: ApiError, now: datetime.datetime) -> None:
        """Tell why a write was not made. One that the server refused waits, longer each time; the others do not."""
        name = type(action).__name__
        if isinstance(err, schema_check.Outdated):
            self._metrics.wrote(name, "failed")
            return  # it was not sent: the next plan knows of the CRD
        outdated = isinstance(err, Conflict | NotFound | AlreadyExists)
        self._metrics.wrote(name, "outdated" if outdated else "failed")
        if _is_away(err):
            self._away = True
        else:
            self._backoff.refused(action, now)
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
            if isinstance(action, WriteUltraServerStatus) and not _is_away(err):
                # Workloads are given other groups meanwhile.
                self._unwritable[action.name] = str(err), now + datetime.timedelta(seconds=write_backoff.LONGEST_S)

    def _note_allocated(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        again = action.status.get("restarts")
        if action.status.get("allocatedAt") and not action.before.get("allocatedAt") and not again:
            found = self._caches.workloads.items.get(f"{action.namespace}/{action.name}")
            if found is not None:
                self._metrics.allocated(max(0.0, (now - found["value"].created).total_seconds()))

    def _next(self, plan: Plan, waiting: datetime.datetime | None) -> float | None:
        """How long the plan holds, in seconds, with writes that wait until then; None until something changes."""
        if self._applier.schemas.problems:
            return schema_check.AGAIN.total_seconds()
        if any(not isinstance(action, Evict) for action in plan.actions):
            return 0.0
        moments = [moment for moment in (plan.recheck, waiting) if moment is not None]
        return max(0.0, (min(moments) - self._clock()).total_seconds()) if moments else None


def _is_away(err: ApiError) -> bool:
    """The server is away or overloaded: that says nothing of the object, and everything waits."""
    return isinstance(err, TooManyRequests) or (isinstance(err, Unavailable) and err.status != 500)
