"""Plans the writes of workloads' statuses. Pure."""

from __future__ import annotations

import datetime
from dataclasses import replace

from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action, Record, Verdict, WriteWorkloadStatus, takes_back
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet import outage
from neuron_dra.planner.fleet.view import Step, View
from neuron_dra.planner.observed.model import ENDS_SOON, Workload
from neuron_dra.planner.observed.model import condition as stored_condition
from neuron_dra.planner.plan import block_end, expiry, restart_limit
from neuron_dra.planner.plan.recovery import node_faults


def with_status(view: View, step: Step) -> Step:
    """Return the step with the write of the workload's status, if it changes. `view` has the step's reservations."""
    verdict = step.verdict
    if verdict is None:
        return step
    if verdict.reason == Reason.RESERVATION_NOT_SEEN:
        return step.doing(*condition(view.workload, verdict.reason, verdict.message, view.now))
    if view.sight.awaits_claims and not takes_back(view.workload.status, verdict.state):
        why = view.sight.known.unread_claims.get(view.workload.namespace, "")
        if not why:
            return step  # the read is about to be answered, and the next plan has the whole step
        text = f"reservations cannot be changed, because the claims on their nodes cannot be read: {why}"
        return step.doing(*condition(view.workload, Reason.RESERVATION_NOT_STORED, text, view.now))
    return step.doing(*_whole(view, step, verdict))


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
    write = WriteWorkloadStatus.of(workload, status, warning=warning, owners=frozenset({workload.uid}))
    ends_soon, stored_ends_soon = record.ends_soon, stored_condition(workload.status, ENDS_SOON)
    # When the condition becomes True, the pods are told that run at that time.
    tells = ends_soon is not None and ends_soon[0] and stored_ends_soon.get("status") != "True"
    return [replace(write, told=view.pods())] if tells else [write]


def condition(workload: Workload, reason: str, text: str, now: datetime.datetime) -> list[Action]:
    """Return the write of why a workload does not go on, if it changes. The rest of the stored status stays.

    That is the condition Degraded of one that runs, else Ready. What Progressing said is not so any more: that the
    workload waited for its nodes.
    """
    condition_values = {"Degraded": True} if workload.runs else {"Ready": False}
    if not workload.runs and stored_condition(workload.status, "Progressing"):
        condition_values = {"Progressing": False, "Ready": False}
    changed = workload
    for condition_type, is_true in condition_values.items():
        status = objects.with_condition(changed, condition_type, is_true, reason, text, now)
        if status is not None:
            changed = replace(changed, status=status)
    if changed is workload or not workload.version:  # what was never read has no version, and cannot be written
        return []
    return [WriteWorkloadStatus.of(workload, changed.status, warning=True)]


def _record(view: View, verdict: Verdict, *, withdrawn: bool) -> Record:
    """Return the record of restarts and outages for later plans.

    A restart that begins adds its time; one that was withdrawn removes it.
    """
    workload, stopped = view.workload, _outage(view)
    restarts, restarted_at = (
        int(workload.status.get("restarts") or 0),
        restart_limit.recent_restarts(workload, view.now),
    )
    reset = restart_limit.reset_at(workload)
    if reset is not None:
        view.sight.look_again(reset)
    if withdrawn:
        restarts, restarted_at = max(0, restarts - 1), restarted_at[:-1]
    elif verdict.restarting and not workload.restarting:
        restarts, restarted_at = restarts + 1, (*restarted_at, verdict.restarting["since"])[-restart_limit.MOST_KEPT :]
    return Record(
        restarts, restarted_at, stopped, expiry.in_use(view), block_end.ends_soon(view), view.sight.known.unkept
    )


def _outage(view: View) -> tuple[bool, str] | None:
    """Return value and message of the condition Outage; None if no outage has stopped a grace period."""
    stored = outage.was_hit(view.workload)
    if view.sight.outage is None:
        return (False, "since then every grace period starts again") if stored else None
    not_pending = [reservation for reservation in view.held if reservation.allocation.phase is not Phase.PENDING]
    is_hit = any(fault.acts_at is not None for reservation in not_pending for fault in node_faults(view, reservation))
    if is_hit or stored.get("status") == "True":
        return True, view.sight.outage.message
    return (False, str(stored.get("message"))) if stored else None
