"""The loop: wait for a change, take a snapshot, plan, write. What changed does not matter, only what is."""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from controller import planning, writes
from controller.actions import Action, Evict, Plan, WriteWorkloadStatus
from controller.apply import EVICT_AGAIN_S, Applier
from controller.caches import Caches
from controller.leader import Leadership
from controller.metrics import Metrics
from controller.planning import Limits
from controller.wording import Wording
from neuron_dra.core import backoff
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound

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
        caches: Caches,
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
        self._wording = Wording()
        applier.on_eviction = metrics.evicted
        self._term = 0
        self._told_blocked: dict[str, str] = {}
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
                plan, clean = await self._pass()
            except ApiError as err:
                log.warning("the caches could not be read afresh", extra={"error": str(err)})
                wait_s = next(waits)
                continue
            busy = busy + 1 if any(not isinstance(action, Evict) for action in plan.actions) else 0
            if not clean:
                wait_s = next(waits)
                continue
            waits = backoff.delays(*RETRY_S, random.random)
            wait_s = self._next(plan)
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

    async def _pass(self) -> tuple[Plan, bool]:
        """Plan once and write; return the plan, and whether all of it was written. Raises ApiError."""
        if self._term != self._leadership.term:
            term = self._leadership.term
            try:
                await self._caches.relist()
            except* ApiError as group:
                raise ApiError(str(group.exceptions[0])) from group
            self._term = term
        now = self._clock()
        plan = self._plan(now)
        if plan.hands_over:
            # The watch of claims may be behind that of slices: read as of now who has a claim on these nodes.
            await self._caches.claims.relist()
            plan = self._plan(now)
        plan = self._wording.unhurried(plan, now)
        clean = await writes.perform(plan.actions, lambda action: self._write(action, now), self._leadership.holds)
        return plan, clean

    def _plan(self, now: datetime.datetime) -> Plan:
        started = time.perf_counter()
        index = self._caches.index(self._applier.blocked_evictions)
        plan = planning.plan_of(index, now, self._limits)
        index.settle(plan.settled, plan.settled_nodes)
        self._metrics.planned(time.perf_counter() - started, index)
        return plan

    async def _write(self, action: Action, now: datetime.datetime) -> bool:
        """Make one write; return whether it was made. What fails is planned again on newer knowledge."""
        name = type(action).__name__
        try:
            await self._applier.perform(action, now)
        except (Conflict, NotFound, AlreadyExists) as err:
            log.info("the plan was out of date", extra={"action": name, "error": str(err)})
            self._metrics.wrote(name, "outdated")
            return False
        except ApiError as err:
            log.warning("a write failed", extra={"action": name, "error": str(err)})
            self._metrics.wrote(name, "failed")
            return False
        self._metrics.wrote(name, "ok")
        if isinstance(action, WriteWorkloadStatus):
            self._wording.written(action, now)
            self._note_allocated(action, now)
            self._metrics.told(action.before, action.status, now)
        return True

    def _note_allocated(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        again = action.status.get("restarts")
        if action.status.get("allocatedAt") and not action.before.get("allocatedAt") and not again:
            found = self._caches.workloads.items.get(f"{action.namespace}/{action.name}")
            if found is not None:
                self._metrics.allocated(max(0.0, (now - found["value"].created).total_seconds()))

    def _next(self, plan: Plan) -> float | None:
        """How long the plan holds, in seconds; None until something changes."""
        if any(isinstance(action, Evict) for action in plan.actions):
            others = [action for action in plan.actions if not isinstance(action, Evict)]
            return GATHER_S if others else EVICT_AGAIN_S
        if plan.actions:
            return 0.0
        if plan.recheck is not None:
            return max(0.0, (plan.recheck - self._clock()).total_seconds())
        return None
