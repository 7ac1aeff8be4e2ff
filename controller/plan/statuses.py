"""Plans the writes of workloads' statuses. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.observe.model import ENDS_SOON, FINALIZER, Known, Workload, shortened
from controller.observe.model import condition as stored_condition
from controller.plan import block_end, expiry, objects, outage, queue, restart_limit
from controller.plan.actions import Action, Record, SetFinalizers, Verdict, WriteUltraServerStatus, WriteWorkloadStatus
from controller.plan.reasons import Reason
from controller.plan.recovery import node_faults
from controller.plan.states import State
from controller.plan.view import Step, View, join_texts
from neuron_dra.core.ultraserver import Phase

SHORTAGE_REASONS = (
    Reason.INSUFFICIENT_CAPACITY,
    Reason.CAPACITY_SPLIT,
    Reason.NO_ULTRASERVERS,
    Reason.NO_SPARE_GROUP,
)
"""The reasons with which a workload waits for nodes."""


def with_finalizer(view: View, step: Step) -> Step:
    """Return the step in which the workload gets our finalizer, unless it has it."""
    workload = view.workload
    if FINALIZER in workload.finalizers:
        return step
    names, meta = (*workload.finalizers, FINALIZER), (workload.namespace, workload.name, workload.version)
    finalizers = SetFinalizers(*meta, names, owners=frozenset({workload.uid}))
    return replace(step, actions=(finalizers, *step.actions))


def with_status(view: View, step: Step) -> Step:
    """Return the step with the write of the workload's status, if it changes. `view` has the step's reservations."""
    if step.verdict is None:
        return step
    verdict = _explained(view, step.verdict)
    if verdict is not step.verdict:
        step = replace(step, verdict=verdict)
    if any(isinstance(action, SetFinalizers) for action in step.actions):
        return step  # that write changes the resourceVersion; the next plan writes the status
    if verdict.reason == Reason.RESERVATION_NOT_SEEN:
        return step.doing(*condition(view.workload, verdict.reason, verdict.message, view.now))
    return step.doing(*_whole(view, step, verdict))


def _explained(view: View, verdict: Verdict) -> Verdict:
    """Return the verdict with what else a workload that waits for nodes should say."""
    texts = [verdict.message]
    unwritable = view.sight.known.unwritable
    if unwritable and verdict.reason in SHORTAGE_REASONS:
        names = sorted(unwritable)
        why = unwritable[names[0]]
        texts.append(f"left out, because their status cannot be written: {shortened(names)} ({why})")
    if verdict.reason == Reason.CAPACITY_SPLIT:
        texts.append(view.sight.known.room.get(view.workload.uid, ""))
    if verdict.reason in queue.WAITING:
        texts.append(queue.class_problem(view.workload, view.sight.known.priorities))
    return replace(verdict, message=join_texts(*texts)) if any(texts[1:]) else verdict


def _whole(view: View, step: Step, verdict: Verdict) -> list[Action]:
    """Return the write of the whole status.

    Draining reservations are not in it: they no longer belong to the workload's allocation.
    """
    workload = view.workload
    record = _record(view, verdict, withdrawn=step.withdrawn)
    status = objects.workload_status(
        workload,
        verdict,
        [*view.held.pending, *view.held.bound],
        view.now,
        record,
        objects.groups(view.held, view.sight.index.ultraserver_by_name),
    )
    if status == dict(workload.status):
        return []
    warning = verdict.state == State.FAILED or verdict.degraded is not None or verdict.reason == Reason.EVICTION_BLOCKED
    write = _write(workload, status, warning=warning, owners=frozenset({workload.uid}))
    ends, told = record.ends_soon, stored_condition(workload.status, ENDS_SOON)
    # When the condition becomes True, the pods are told that run at that time.
    tells = ends is not None and ends[0] and told.get("status") != "True"
    return [replace(write, told=view.pods())] if tells else [write]


def condition(workload: Workload, reason: str, text: str, now: datetime.datetime) -> list[Action]:
    """Return the write of one condition, if it changes. The rest of the stored status stays, with its copies."""
    kind = ("Degraded", True) if workload.runs else ("Ready", False)
    status = objects.with_condition(workload, *kind, reason, text, now)
    if status is None or not workload.version:  # what was never read has no version, and cannot be written
        return []
    return [_write(workload, status, warning=True)]


def _write(
    workload: Workload, status: Mapping[str, object], *, warning: bool, owners: frozenset[str] = frozenset()
) -> WriteWorkloadStatus:
    meta = (workload.namespace, workload.name, workload.uid, workload.version)
    return WriteWorkloadStatus(*meta, workload.status, status, warning=warning, owners=owners)


def _record(view: View, verdict: Verdict, *, withdrawn: bool) -> Record:
    """Return the record of restarts and outages for later plans.

    A restart that begins adds its time; one that was withdrawn removes it.
    """
    workload, stopped = view.workload, _outage(view)
    number, begun = int(workload.status.get("restarts") or 0), restart_limit.recent_restarts(workload, view.now)
    reset = restart_limit.reset_at(workload)
    if reset is not None:
        view.sight.look_again(reset)
    if withdrawn:
        number, begun = max(0, number - 1), begun[:-1]
    elif verdict.restarting and not workload.restarting:
        number, begun = number + 1, (*begun, verdict.restarting["since"])[-restart_limit.MOST_KEPT :]
    return Record(number, begun, stopped, expiry.in_use(view), block_end.ends_soon(view), view.sight.known.unkept)


def _outage(view: View) -> tuple[bool, str] | None:
    """Return value and message of the condition Outage; None if no outage has stopped a grace period."""
    stored = outage.was_hit(view.workload)
    if view.sight.outage is None:
        return (False, "since then every grace period starts again") if stored else None
    held = [each for each in view.held if each.allocation.phase is not Phase.PENDING]
    hit = any(each.acts_at is not None for one in held for each in node_faults(view, one))
    if hit or stored.get("status") == "True":
        return True, view.sight.outage.message
    return (False, str(stored.get("message"))) if stored else None


# -- where a step cannot be stored -------------------------------------------------------------------------------------


def explained(
    written: Sequence[Action],
    reservations: Sequence[WriteUltraServerStatus],
    workloads: Iterable[Workload],
    known: Known,
    now: datetime.datetime,
) -> list[Action]:
    """Return the writes of statuses; that of a workload whose reservations cannot be stored says only that.

    Its whole status waits for those writes, and would say what held before them: perhaps for ever.
    """
    waiting: dict[str, list[str]] = {}
    for write in reservations:
        for uid in write.owners if write.name in known.unwritable else ():
            waiting.setdefault(uid, []).append(write.name)
    if not waiting:
        return [*written]
    found = [each for each in written if waiting.keys().isdisjoint(each.owners)]
    for workload in (each for each in workloads if each.uid in waiting):
        names = waiting[workload.uid]
        text = (
            f"reservations cannot be changed or stored, because the status of NeuronUltraServer {shortened(names)} "
            f"cannot be written: {known.unwritable[names[0]]}"
        )
        found += condition(workload, Reason.RESERVATION_NOT_STORED, text, now)
    return found
