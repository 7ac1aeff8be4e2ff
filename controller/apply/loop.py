"""The loop: wait for a change, update the index, plan, write. Plans depend on the current state, not on the changes."""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, cast

from controller.apply.beside import Look, next_change
from controller.apply.errors import Errors
from controller.apply.fence import EndedTerm
from controller.apply.leader import Leadership
from controller.apply.requests import Applier
from controller.apply.room_looks import RoomLooks
from controller.apply.status_throttle import StatusThrottle
from controller.apply.writes import Writes
from controller.metrics import EVICTIONS, Metrics
from controller.observe.caches import Caches, wall_clock
from controller.timing import Timing
from neuron_dra.core import backoff
from neuron_dra.core.names import WORKLOAD_CLASS
from neuron_dra.errors import ApiError
from neuron_dra.planner.decisions.actions import NOTHING_KEPT, Evict, Plan, WaitingWorkloads
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import Admission, Known, Turn, shortened
from neuron_dra.planner.plan import planning
from neuron_dra.planner.plan.planning import Limits

log = logging.getLogger(__name__)

MOST_GATHERED_S: Final = 0.5
"""A plan that takes long gathers changes for as long as it takes, up to this."""
BUSY_PASSES: Final = 50  # consecutive passes with writes: another program reverts them


class Admissions(Protocol):
    """What queues allow workloads; see `controller.queue`.

    Its `look` is a part of each pass, after the plan's writes are known. What it writes does not hold up the pass.
    """

    def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Decide, and begin the writes; return when to do so again at the latest."""

    def end_waits(self) -> None:
        """Do at once what waits for a time."""

    async def relist(self, now: datetime.datetime) -> None:
        """Read again what it depends on: a new leader begins."""

    def resume(self) -> None:
        """Open the watch again. Called when this replica regains its Lease and no other replica held it."""

    def admissions(self, index: FleetIndex, now: datetime.datetime) -> Mapping[str, Admission]:
        """Return what the queue of each workload allows, by UID; a workload without a queue is not in it."""

    def leave_to_the_plan(
        self, rejected_statuses: frozenset[str], beyond_limit: frozenset[str], unsettled: frozenset[str]
    ) -> None:
        """Write nothing into the status of workloads, by UID, of which the server has rejected the plan's write.

        Ask for no quota for those beyond the limit of waiting workloads, and give none back while a write of a
        workload's reservations is unsettled.
        """


class Reconciler:
    """Plans and writes while this process is the leader."""

    def __init__(
        self,
        caches: Caches[FleetIndex],
        applier: Applier,
        leadership: Leadership,
        metrics: Metrics,
        limits: Limits,
        timing: Timing,
        clock: Callable[[], datetime.datetime] = wall_clock,
        beside: Sequence[Look] = (),
        queues: Admissions | None = None,
    ) -> None:
        self._beside = beside
        self._queues = queues
        self._caches = caches
        self._applier = applier
        self._leadership = leadership
        self._metrics = metrics
        self._limits = limits
        self._timing = timing.passes
        self._crd_s = timing.writes.crd_s
        self._clock = clock
        self._throttle = StatusThrottle(timing.writes)
        self._writes = Writes(caches, applier, metrics, self._throttle, timing.writes, clock)
        count_eviction = partial(metrics.add, EVICTIONS)
        applier.on_eviction = applier.refusals.on_eviction = applier.pod_looks.on_eviction = count_eviction
        applier.schemas.on_change = metrics.crd_outdated
        self._room = RoomLooks(timing.room, limits.spares)
        self._term = self._tenure = 0  # when everything was listed
        self._progress: float | None = None  # when the running pass last made progress, by the loop's clock
        self._passed_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)
        self._errors = Errors("an object could not be planned")
        self._planned_blocked: dict[str, str] = {}  # the blocked evictions that the last plan had
        self._turns: Mapping[tuple[str, str], Turn] = {}  # of the last plan
        self.waiting = WaitingWorkloads()
        """Who waits, by the last plan."""
        self.on_waiting: Callable[[], None] = lambda: None
        """Called when others wait for nodes than in the plan before: tests of UltraServers yield to them."""
        self.kept = NOTHING_KEPT
        """What the last plan has left to the next one."""
        self.changed = asyncio.Event()
        self._answered = asyncio.Event()  # and no other answer is about to follow
        applier.sender.on_answer = self._follow_answer

    def _follow_answer(self, at_once: bool) -> None:
        """Plan again: the next step of a workload may depend on the answer to a request."""
        self.changed.set()
        if at_once:
            self._answered.set()

    async def run(self) -> None:
        """Work until cancelled."""
        waits = backoff.delays(*self._timing.retry_s, random.random)
        busy = 0
        wait_s: float | None = None
        gather_s = self._timing.gather_s
        loop = asyncio.get_running_loop()
        while True:
            await next_change(self.changed, wait_s, gather_s, self._answered)
            leads = self._leadership.holds()
            if self._caches.missing() or not leads:
                self._metrics.leading(leads)
                wait_s = self._timing.idle_s
                continue
            self._metrics.leading(True)
            try:
                self._progressed()
                was_idle = self._applier.sender.is_idle
                began_s = loop.time()
                plan, waiting = await self._pass()
                # While thousands of writes are answered, half of the time is left for the requests themselves.
                gather_s = min(max(self._timing.gather_s, loop.time() - began_s), MOST_GATHERED_S)
            except EndedTerm:
                log.info("the plan was abandoned: its term of leadership has ended")
                wait_s = 0.0
                continue
            except ApiError as err:
                log.warning("the caches could not be read again", extra={"error": str(err)})
                wait_s = next(waits)
                continue
            finally:
                self._progress = None
            busy = busy + 1 if was_idle and self._writes.has_wishes else 0
            waits = backoff.delays(*self._timing.retry_s, random.random)
            wait_s = self._next(plan, waiting)
            if self._planned_blocked != self._applier.blocked_evictions:
                self._planned_blocked = dict(self._applier.blocked_evictions)
                wait_s = 0.0  # the workload's status shows blocked evictions
            if busy >= BUSY_PASSES:
                log.warning("every plan has writes: something reverts them", extra={"passes": busy})
                wait_s = self._timing.busy_s

    async def _pass(self) -> tuple[Plan, datetime.datetime | None]:
        """Plan once and wish its writes; return the plan, and when to look again. Raises ApiError."""
        self._applier.fence.enter(self._leadership.term)
        if self._term != self._leadership.term:
            await self._begin_term(self._leadership.term, self._leadership.tenure)
            self._progressed()
        now = self._clock()
        if self._was_set_back(now):
            log.warning("the clock was set back", extra={"from": self._passed_at.isoformat(), "to": now.isoformat()})
            self._writes.end_waits()
            self._applier.end_waits()
            self._caches.end_waits()
            self._room.end_waits()
            if self._queues is not None:
                self._queues.end_waits()
            for beside in self._beside:
                beside.end_waits()
        self._passed_at = now
        index = self._caches.index()
        reads = [self._applier.schemas.look(now), self._applier.priorities.look(index, now)]
        plan = await self._plan(now)
        # Before anything updates the index: a read counts for what the plan has seen.
        claims = self._applier.claim_reads.look(plan.to_read, index.published_by_name, now)
        plan = self._throttle.without_deferrable(plan, now)
        self._writes.begin(plan.actions, now)
        self._writes.wish(plan.actions)
        self._applier.keep_blocked({action.uid for action in plan.actions if isinstance(action, Evict)})
        moments = [
            *reads,
            self._caches.next_recovery(),
            self._room.look(plan.waiting.split, self._caches.index(), self.known(now), now),
            self._writes.next_due(),
            self._applier.refusals.look(plan.suspects, now),
            self._applier.pod_looks.look(plan.starting, now),
            self._applier.rendezvous.look(plan.meetings, now),
            self._applier.claim_pods.look(plan.shared, now),
            claims,
        ]
        if self._queues is not None:
            self._queues.leave_to_the_plan(
                self._writes.rejected_statuses(plan.actions), plan.beyond_limit, self._writes.unsettled_owners
            )
            moments.append(self._queues.look(self._caches.index(), now))
            self._progressed()
        return plan, min((moment for moment in moments if moment is not None), default=None)

    async def _begin_term(self, term: int, tenure: int) -> None:
        """List everything if another replica may have led, else only open the watches again. Raises ApiError."""
        same = self._tenure == tenure
        error: Exception | None = None
        try:
            await (self._caches.resume() if same else self._caches.relist())
        except* ApiError as group:
            error = ApiError(str(group.exceptions[0]))
        if error is not None:
            raise error
        if same:
            await asyncio.sleep(self._timing.gather_s)  # what the watches have missed follows at once
        now = self._clock()
        # A pass does not wait for these reads. The first plan of a leader depends on them, however.
        await self._applier.schemas.begin(now)
        if not same:
            await self._applier.priorities.begin(self._caches.index(), now)
        if self._queues is not None:
            if same:
                self._queues.resume()
            else:
                await self._queues.relist(now)
        self._term, self._tenure = term, tenure
        self._report_foreign_templates()

    def _was_set_back(self, now: datetime.datetime) -> bool:
        """Return True if the clock shows much less than in the last pass."""
        return now + datetime.timedelta(seconds=self._timing.set_back_s) < self._passed_at

    def is_current(self) -> bool:
        """Return True if this process leads, and has listed all objects since its term began."""
        return self._leadership.holds() and self._leadership.term == self._term and not self._caches.missing()

    def works(self) -> bool:
        """Return False if a pass has made no progress for too long."""
        return self._progress is None or asyncio.get_running_loop().time() < self._progress + self._timing.progress_s

    def _progressed(self) -> None:
        self._progress = asyncio.get_running_loop().time()

    def _report_foreign_templates(self) -> None:
        """Log which templates request reserved devices although no workload owns them.

        An admission policy rejects new ones; older ones stay, and so do pods that name them.
        """
        index = self._caches.index()
        workload_identities = {workload.identity for workload in index.workloads}
        foreign_templates = []
        for template in index.templates:
            if template.reserved_class and template.owner not in workload_identities:
                foreign_templates.append(f"{template.namespace}/{template.name}")
        if foreign_templates:
            log.warning(
                "ResourceClaimTemplates that no workload owns request reserved devices: delete them",
                extra={"templates": shortened(sorted(foreign_templates)), "device_class": WORKLOAD_CLASS},
            )

    async def _plan(self, now: datetime.datetime) -> Plan:
        """Update the index, plan, and report the time that it took. Raises EndedTerm."""
        started = time.perf_counter()
        index, known = self._caches.index(), self.known(now)
        with self._caches.pinned():
            plan = await self._in_slices(planning.steps(index, now, self._limits, known, self.kept))
        others_wait = plan.waiting.for_nodes.keys() != self.waiting.for_nodes.keys()
        self.kept, self._turns, self.waiting = plan.kept, plan.turns, plan.waiting
        if others_wait:
            self.on_waiting()
        self._errors.report(plan.errors)
        self._metrics.unreadable(self._caches.unreadable)
        self._metrics.planned(time.perf_counter() - started, index, plan, now, self._limits.spares)
        return plan

    def known(self, now: datetime.datetime) -> Known:
        """Return what a plan at that time depends on besides the watched objects."""
        applier = self._applier
        return Known(
            blocked_evictions=dict(applier.blocked_evictions),
            unwritable={**self._caches.unread_ultraservers(), **self._writes.unwritable(now)},
            rejected=self._writes.rejections.told,
            outdated=applier.schemas.outdated,
            unkept=applier.schemas.unkept,
            without_services=applier.rendezvous.forbidden,
            unschedulable=applier.pod_looks.unschedulable,
            turns=self._turns,
            priorities=applier.priorities.found,
            shared_by=applier.claim_pods.found,
            room=self._room.found,
            assumed=self._writes.assumed(),
            read_claims=applier.claim_reads.found,
            unread_claims=applier.claim_reads.errors,
            admissions={} if self._queues is None else self._queues.admissions(self._caches.index(), now),
        )

    async def _in_slices(self, steps: Generator[None, None, Plan]) -> Plan:
        """Return the plan, and let the lease be renewed between its steps. Raises EndedTerm."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(Plan, end.value)
            self._progressed()
            await asyncio.sleep(0)
            self._applier.fence.check()

    def _next(self, plan: Plan, waiting: datetime.datetime | None) -> float | None:
        """Return for how many seconds the plan holds, given when waiting writes are due; None until a change."""
        if self._applier.schemas.problems:
            return self._crd_s
        moments = [moment for moment in (plan.recheck, waiting) if moment is not None]
        now = self._clock()
        if self._was_set_back(now):
            return 0.0  # the clock was set back during this pass
        if moments:
            return max(0.0, (min(moments) - now).total_seconds())
        return None
