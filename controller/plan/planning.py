"""Plans the writes that a snapshot calls for. Pure: the same snapshot and time give the same plan.

A workload is allocated in these steps (`allocation`): reservation Pending in the status of NeuronUltraServers, tags on
the nodes' slices, Bound, ResourceClaimTemplate, Allocated. It is released in these (`releasing`): template deleted,
Draining, tags Draining, pods evicted, claims gone, reservation removed, finalizer removed. A slot with a fault is
released in the same way once another is reserved (`recovery`). Every plan derives each workload's step from the objects
and keeps no state, so another replica can continue at any point.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from controller.observe.model import (
    NOTHING_KNOWN,
    Known,
    Meeting,
    Snapshot,
    Starting,
    Suspect,
    Workload,
    shortened,
)
from controller.plan import (
    decided,
    isolation,
    node_labels,
    objects,
    pod_start,
    queue,
    rendezvous,
    restart_all,
    restoration,
    ultraserver_writes,
)
from controller.plan.actions import (
    Action,
    Decided,
    Plan,
    SetFinalizers,
    Verdict,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.plan.allocation import allocate
from controller.plan.context import (
    DEFAULT_LIMITS,
    Limits,
    PlanningContext,
    join_texts,
)
from controller.plan.fleet_index import FleetIndex
from controller.plan.releasing import release, release_reservations
from neuron_dra.core.ultraserver import Phase

__all__ = ["DEFAULT_LIMITS", "Limits", "plan"]

WORKLOADS_A_STEP = 8
ULTRASERVERS_A_STEP = 64

SHORTAGE_REASONS = ("InsufficientCapacity", "CapacitySplit", "NoUltraServers", "NoSpareGroup")
"""The reasons with which a workload waits for nodes."""


def plan(snapshot: Snapshot, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Return the writes that bring the cluster one step closer, and nothing when there is none.

    Planning again after the writes gives the next step, so a failed write needs no special care. `now` decides about
    timeouts and grace periods; `Plan.recheck` is when the next one ends.
    """
    return plan_of(FleetIndex.of(snapshot), now, limits, snapshot)


def plan_of(
    index: FleetIndex, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS, known: Known = NOTHING_KNOWN
) -> Plan:
    """Return the plan for an index that follows the objects, as `plan` does for a snapshot."""
    rest = steps(index, now, limits, known)
    while True:
        try:
            next(rest)
        except StopIteration as end:
            return cast(Plan, end.value)


def steps(
    index: FleetIndex, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS, known: Known = NOTHING_KNOWN
) -> Generator[None, None, Plan]:
    """Plan in steps, between which the caller may do other things, but not change the index; return the plan.

    Objects that the index marks as settled are skipped. If the CRDs are outdated (`known.outdated`), the plan only says
    so.
    """
    if known.outdated:
        return _stopped(index, now, known.outdated)
    context = PlanningContext.of(index, now, limits, known)
    verdicts: dict[str, Verdict] = {}
    starting, meetings = [], []
    for number, workload in enumerate(_ordered(context)):
        if number % WORKLOADS_A_STEP == 0:
            yield
        verdict, starts, meeting = _decide_alone(context, workload)
        if verdict is not None:
            verdicts[workload.uid] = verdict
        if starts is not None:
            starting.append(starts)
        if meeting is not None:
            meetings.append(meeting)
    present = {workload.uid for workload in index.workloads}
    for uid in index.decided.keys() - present:
        del index.decided[uid]
    for uid in sorted(context.holdings.workload_uids() - present):
        _release_alone(context, uid)
    names = _ultraservers(context)
    others: list[Action] = []
    reservations: list[WriteUltraServerStatus] = []
    for first in range(0, len(names), ULTRASERVERS_A_STEP):
        yield
        more = ultraserver_writes.writes(context, names[first : first + ULTRASERVERS_A_STEP])
        others += more[0]
        reservations += more[1]
    _explain_unstored(context, reservations)
    labelled = node_labels.changes(context)
    written = {ultraserver_writes.object_of(action) for action in (*others, *reservations)}
    return Plan(
        actions=(
            *others,
            *labelled,
            *context.before,
            *reservations,
            *context.after,
            *context.statuses,
            *context.last,
        ),
        verdicts=verdicts,
        recheck=min((moment for moment in context.recheck if moment > now), default=None),
        suspects=_suspects(context),
        starting=tuple(starting),
        shared=tuple(context.shared),
        meetings=tuple(meetings),
        settled=frozenset(names) - written,
        settled_nodes=frozenset(index.unsettled_nodes) - {action.name for action in labelled},
        errors=context.errors,
        turns=queue.turns(context, verdicts),
    )


def _ultraservers(context: PlanningContext) -> list[str]:
    """Return the names of the UltraServers that may need a write."""
    holdings, failed = context.holdings, context.unrestored.ultraservers
    return sorted({*context.index.unsettled, *holdings.changed, *holdings.unread, *failed})


def _ordered(context: PlanningContext) -> list[Workload]:
    """Return the workloads in the order in which they are planned; those without a place in it come last."""
    keyed: list[tuple[Any, Workload]] = []
    others: list[Workload] = []
    for workload in context.index.workloads:
        try:
            keyed.append((queue.order(workload, context.holdings, context.known.priorities, context.now), workload))
        except Exception as err:
            context.errors[workload.ref] = err
            others.append(workload)
    return [workload for _, workload in sorted(keyed, key=lambda each: each[0])] + others


def _decide_alone(
    context: PlanningContext, workload: Workload
) -> tuple[Verdict | None, Starting | None, Meeting | None]:
    """Plan the next step of a workload; an error becomes its condition and changes nothing else."""
    unrestored = context.unrestored.workloads.get(workload.uid)
    if unrestored is not None:
        context.errors[workload.ref] = unrestored
        return isolation.of_workload(context, workload, isolation.named(unrestored)), None, None
    if workload.problem and not workload.deleting:  # a release needs nothing of the spec
        return isolation.of_workload(context, workload, workload.problem), None, None
    mark = isolation.Mark.of(context, workload)
    try:
        return _decide(context, workload)
    except Exception as err:
        mark.undo(context)
        context.errors[workload.ref] = err
        return isolation.of_workload(context, workload, isolation.named(err)), None, None


def _release_alone(context: PlanningContext, uid: str) -> None:
    """Release the reservations of a workload that is gone; after an error they stay."""
    held = context.holdings.of(uid)
    try:
        release_reservations(context, uid, held, final=True)
    except Exception as err:
        context.holdings.put_back(uid, held)
        context.errors[held[0].allocation.workload] = err


def _decide(context: PlanningContext, workload: Workload) -> tuple[Verdict | None, Starting | None, Meeting | None]:
    """Plan the next step of a workload; return its state, whether its pods should be looked at, and which has rank 0.

    A decision that needed nothing is kept in the index and holds while everything that it depends on is the same.
    """
    known, reads = context.index.decided.get(workload.uid), decided.reads(context, workload)
    if known is not None and known.reads == reads:
        return known.verdict, known.starting, known.meeting
    before = decided.effects(context)
    planned = len(context.before), len(context.last)
    verdict = release(context, workload) if workload.deleting else allocate(context, workload)
    if verdict is not None:
        verdict = _with_unwritable(context.known.unwritable, verdict)
        if verdict.reason in queue.WAITING:
            problem = queue.class_problem(workload, context.known.priorities)
            verdict = replace(verdict, message=join_texts(verdict.message, problem))
        sets_finalizers = any(
            isinstance(action, SetFinalizers) for action in (*context.before[planned[0] :], *context.last[planned[1] :])
        )
        if not sets_finalizers:  # that write changes the resourceVersion; the next plan writes the status
            _write_status(context, workload, verdict)
    starting, meeting = pod_start.look_at(context, workload), rendezvous.meeting(context, workload)
    context.index.decided.pop(workload.uid, None)
    idle = decided.effects(context) == before and not context.holdings.has_changed(workload.uid)
    if idle and reads is not None and verdict is not None and (verdict.state, verdict.degraded) == ("Allocated", None):
        context.index.decided[workload.uid] = Decided(reads, verdict, starting, meeting)
    return verdict, starting, meeting


def _stopped(index: FleetIndex, now: datetime.datetime, outdated: str) -> Plan:
    """Return a plan that only writes into each workload why the controller has stopped.

    Nothing is reserved, released or evicted: the API server would drop fields that the CRDs lack.
    """
    verdicts, actions = {}, []
    for workload in sorted(index.workloads, key=lambda each: each.ref):
        verdicts[workload.uid] = Verdict(workload.state, objects.OUTDATED, outdated)
        status = objects.with_condition(workload, "Ready", False, objects.OUTDATED, outdated, now)
        if status is not None:
            meta = (workload.namespace, workload.name, workload.uid, workload.version)
            actions.append(WriteWorkloadStatus(*meta, workload.status, status, warning=True, explains_stop=True))
    return Plan(tuple(actions), verdicts)


def _suspects(context: PlanningContext) -> tuple[Suspect, ...]:
    """Return the pods that a Ready node may reject.

    None in an outage, because nothing is evicted then.
    """
    if context.outage is not None:
        return ()
    return tuple(each for each in context.index.suspects() if context.holdings.is_ready(each.node))


# -- statuses ----------------------------------------------------------------------------------------------------------


def _with_unwritable(unwritable: Mapping[str, str], verdict: Verdict) -> Verdict:
    """Add to the message of a workload that waits for nodes which UltraServers are left out, and why."""
    if not unwritable or verdict.reason not in SHORTAGE_REASONS:
        return verdict
    names = sorted(unwritable)
    text = f"left out, because their status cannot be written: {shortened(names)} ({unwritable[names[0]]})"
    return replace(verdict, message=join_texts(verdict.message, text))


def _explain_unstored(context: PlanningContext, reservations: Sequence[WriteUltraServerStatus]) -> None:
    """Replace the status of each workload whose reservations cannot be stored by one that says only that.

    Its whole status waits for those writes, and would say what held before them: perhaps for ever.
    """
    unwritable, waiting = context.known.unwritable, dict[str, list[str]]()
    for write in reservations:
        for uid in write.owners if write.name in unwritable else ():
            waiting.setdefault(uid, []).append(write.name)
    if not waiting:
        return
    context.statuses = [each for each in context.statuses if waiting.keys().isdisjoint(each.owners)]
    for workload in (each for each in context.index.workloads if each.uid in waiting):
        names = waiting[workload.uid]
        text = (
            f"reservations cannot be changed or stored, because the status of NeuronUltraServer {shortened(names)} "
            f"cannot be written: {unwritable[names[0]]}"
        )
        context.explain(workload, objects.NOT_STORED, text)


def _write_status(context: PlanningContext, workload: Workload, verdict: Verdict) -> None:
    """Plan the write of a workload's status, if it changes.

    Draining reservations are not in it: they no longer belong to the workload's allocation.
    """
    if verdict.reason == objects.NOT_SEEN:
        context.explain(workload, verdict.reason, verdict.message)
        return
    status = objects.workload_status(
        workload,
        verdict,
        [each for each in context.holdings.of(workload.uid) if each.allocation.phase is not Phase.DRAINING],
        context.now,
        restart_all.record(context, workload, verdict),
        restoration.groups(context.holdings.of(workload.uid), context.index.ultraserver_by_name),
    )
    if status == dict(workload.status):
        return
    context.statuses.append(
        WriteWorkloadStatus(
            workload.namespace,
            workload.name,
            workload.uid,
            workload.version,
            workload.status,
            status,
            warning=verdict.state == "Failed" or verdict.degraded is not None or verdict.reason == "EvictionBlocked",
            owners=frozenset({workload.uid}),
        )
    )
