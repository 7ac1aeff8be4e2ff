"""What a plan has decided so far: it follows one step after the other. Pure, no I/O.

Workloads are planned one after the other, and each sees what the decisions before it left. Only `after` changes the
ledger, and only with a complete step: an error in a decision leaves nothing to take back.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    Decided,
    DeleteTemplate,
    Evict,
    Kept,
    NodesToRead,
    SetFinalizers,
    Verdict,
    WaitingWorkloads,
    WriteWorkloadStatus,
)
from neuron_dra.planner.decisions.reasons import WAITING
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.free_slots import FreeSlots
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.placement import Slot
from neuron_dra.planner.fleet.quota import Quota
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.fleet.view import Reads, Step, TurnKey, View
from neuron_dra.planner.observed.model import FINALIZER, ClaimUse, Meeting, Starting, Turn, Workload
from neuron_dra.planner.plan import queue, releasing, waiting_limit
from neuron_dra.planner.plan.restoration import Failures
from neuron_dra.planner.plan.strategies import NO_OP, STRATEGIES


@dataclass(frozen=True, slots=True)
class PlannedWrites:
    """The writes of workloads so far, in the order in which they are made; reservations come after `before`.

    - `before`: finalizers, and deletions of templates.
    - `after`: creations of templates, and evictions.
    - `statuses`.
    - `last`: our finalizer is removed.
    """

    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    statuses: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)

    def add(self, action: Action) -> None:
        """Add a write where it belongs."""
        match action:
            case SetFinalizers(finalizers=finalizers):
                (self.before if FINALIZER in finalizers else self.last).append(action)
            case DeleteTemplate():
                self.before.append(action)
            case CreateTemplate() | Evict():
                self.after.append(action)
            case WriteWorkloadStatus():
                self.statuses.append(action)
            case _:
                raise TypeError(f"{type(action).__name__} is no write of a workload")


@dataclass(slots=True)
class Ledger:
    """The state of one call of `planning.plan`: what it is given, and the steps so far."""

    workloads: list[Workload]
    """In the order in which they are planned."""
    sight: Sight
    holdings: Holdings
    free_slots: FreeSlots
    quota: Quota
    contested: Mapping[tuple[str, str], Workload]
    """Which workload gets each template name that several request."""
    unrestored: Failures
    turns: dict[TurnKey, Turn]
    errors: dict[str, Exception]
    """By namespace/name or name of the object."""
    unsettled: frozenset[str]
    """The names of the UltraServers whose objects may need a write, because they changed or needed one before."""
    unsettled_nodes: frozenset[str]
    """The names of the Nodes whose labels may need a write, for the same reasons."""
    earlier: Kept
    """What the last plan has left."""
    beyond_limit: Mapping[str, list[Workload]] = field(default_factory=dict)
    """The workloads that are not decided, by namespace."""
    decided: dict[str, Decided] = field(default_factory=dict)
    """By workload UID, the decisions that this plan leaves to the next one."""
    writes: PlannedWrites = field(default_factory=PlannedWrites)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    waiting: WaitingWorkloads = field(default_factory=WaitingWorkloads)
    starving: dict[str, Workload] = field(default_factory=dict)
    """By instance type, the workload that goes first."""
    starting: list[Starting] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    recheck: list[datetime.datetime] = field(default_factory=list)
    spares: dict[str, list[Slot]] = field(default_factory=dict)
    """By UltraServer, the groups that are spares after all steps."""
    shared: dict[ClaimUse, None] = field(default_factory=dict)
    """Claims whose pods have to be read, see `claim_pods`."""
    to_read: dict[NodesToRead, None] = field(default_factory=dict)
    """Nodes that change hands, or do so once their claims were read."""

    @property
    def index(self) -> FleetIndex:
        """The objects."""
        return self.sight.index

    def view(self, workload: Workload) -> View:
        """Return what the decision about a workload depends on, after the steps so far."""
        index, holdings = self.index, self.holdings
        template_key = (workload.namespace, workload.template_name)
        rival = self.contested.get(template_key)
        return View(
            workload=workload,
            strategy=STRATEGIES.get(workload.strategy, NO_OP),
            held=holdings.of(workload.uid),
            stored=Held.of(index.held(workload.uid)),
            sight=self.sight.anew(),
            template=index.template_by_key.get(template_key),
            templates=index.templates_of(workload.identity),
            rival=None if rival is None or rival.uid == workload.uid else rival,
            entries=holdings.unread,
            withheld=holdings.withheld(workload.uid),
            unrestored=self.unrestored.workloads.get(workload.uid),
            starving=self.starving.get(workload.instance_type),
            turns=self.turns,
            holdings=holdings,
            free_slots=self.free_slots,
            quota=self.quota,
        )

    def kept(self, view: View, reads: Reads) -> Step | None:
        """Return the step of an earlier plan, if all that it depends on is the same."""
        earlier_decision = self.earlier.decided.get(view.workload.uid)
        if earlier_decision is None or not earlier_decision.holds(reads, view.now):
            return None
        for moment in earlier_decision.rechecks:
            view.sight.look_again(moment)
        return Step(
            earlier_decision.verdict,
            view.held,
            earlier_decision.actions,
            starving=earlier_decision.starving,
            starting=earlier_decision.starting,
            meeting=earlier_decision.meeting,
        )

    def after(self, view: View, step: Step, reads: Reads) -> None:
        """Follow the step of a workload. One that later plans may take as it is, is kept for them."""
        workload = view.workload
        if reads is not None and step.verdict is not None and view.may_keep(step):
            self.decided[workload.uid] = Decided(
                reads,
                view.now,
                tuple(view.sight.recheck),
                step.verdict,
                step.actions,
                step.starving,
                step.starting,
                step.meeting,
            )
        self.holdings.put(workload.uid, step.held)
        for action in step.actions:
            self.writes.add(action)
        self.note(view.sight)
        if step.verdict is not None:
            self.verdicts[workload.uid] = step.verdict
            if step.error is None:  # else nothing that the workload says may be relied on
                placing = step.verdict.state == State.ALLOCATING and len(view.stored.live()) < workload.count
                self.waiting.note(workload, step.verdict, is_being_placed=placing)
        if step.starving:
            self.starving.setdefault(workload.instance_type, workload)
        if step.turn is not None:
            turn_key, turn = step.turn
            self.turns[turn_key] = turn
        if step.starting is not None:
            self.starting.append(step.starting)
        if step.meeting is not None:
            self.meetings.append(step.meeting)
        if step.error is not None:
            self.errors[workload.ref] = step.error

    def put_off(self, namespace: str) -> None:
        """Write into the workloads of a namespace beyond its limit that they wait for their turn."""
        put_off = self.beyond_limit[namespace]
        limit = self.sight.limits.max_waiting_workloads
        verdict = waiting_limit.verdict(namespace, limit + len(put_off), limit)
        for workload in put_off:
            self.verdicts[workload.uid] = verdict
            for action in waiting_limit.status_write(workload, verdict, limit, self.sight.now):
                self.writes.add(action)

    def release_the_gone(self) -> None:
        """Release the reservations of workloads that are gone; after an error they stay."""
        for workload_uid in sorted(self.holdings.workload_uids() - self.index.workload_by_uid.keys()):
            reservations, sight = self.holdings.of(workload_uid), self.sight.anew()
            try:
                release = releasing.release_reservations(
                    sight, workload_uid, reservations, reservations.all, final=True
                )
            except Exception as err:
                self.errors[reservations.all[0].allocation.workload] = err
                continue
            self.holdings.put(workload_uid, release.held)
            self.writes.after.extend(release.actions)
            self.note(sight)

    def find_spares(self) -> None:
        """Note which groups are spares after all steps."""
        for instance_type, _ in self.sight.limits.spares:
            for slot in self.free_slots.spares(instance_type):
                self.spares.setdefault(slot.ultraserver, []).append(slot)
                if slot.until is not None:
                    # The group is still a spare at exactly this time, so the next plan is due a second later.
                    self.recheck.append(slot.until - self.sight.limits.block_lead + datetime.timedelta(seconds=1))

    def end_turns(self) -> None:
        """Forget the turns that have ended: once the others had theirs, and as long a time has passed."""
        sight, lasting_turns = self.sight, dict[TurnKey, Turn]()
        for (instance_type, namespace), turn in self.turns.items():
            pause = min(turn.last, sight.now) + sight.limits.starvation_limit
            if sight.now < pause:
                self.recheck.append(pause)
                lasting_turns[instance_type, namespace] = turn
                continue
            workloads_of_type = (
                workload for workload in self.index.workloads if workload.instance_type == instance_type
            )
            if any(
                self._waits_for_its_turn(workload, turn)
                for workload in workloads_of_type
                if workload.namespace != namespace
            ):
                lasting_turns[instance_type, namespace] = turn
        self.turns = lasting_turns

    def _waits_for_its_turn(self, workload: Workload, turn: Turn) -> bool:
        """Return True if a workload waits since that turn, and its own time to hold others back is not over."""
        verdict, sight = self.verdicts.get(workload.uid), self.sight
        if verdict is None or verdict.reason not in WAITING:
            return False
        starving_until = queue.starving_until(workload, sight.now, sight.limits)
        return queue.waits_since(workload, sight.now) <= turn.last and sight.now < starving_until

    @property
    def touched(self) -> list[str]:
        """The names of the UltraServers that may need a write."""
        unread, failed = self.holdings.unread, self.unrestored.ultraservers
        return sorted({*self.may_differ, *self.holdings.changed, *unread, *failed})

    @property
    def may_differ(self) -> frozenset[str]:
        """The names of the UltraServers whose status may differ from what is stored, even without a reservation."""
        return self.unsettled | (self.earlier.spares ^ self.spares.keys())

    def note(self, sight: Sight) -> None:
        """Follow what a decision would have to look at later."""
        self.recheck += sight.recheck
        self.shared.update(dict.fromkeys(sight.shared))
        self.to_read.update(dict.fromkeys(sight.to_read))
