"""RestartAll: releases all slots of a workload, then reserves them again; records restarts in its status. Pure."""

from __future__ import annotations

from neuron_dra.core.notice import NoticeReason
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Verdict
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.view import Step, View
from neuron_dra.planner.plan import releasing, restart_limit
from neuron_dra.planner.plan.verdicts import degradation


def restart(view: View, broken: set[str]) -> Step | None:
    """Return the next step of a restart that was decided; None if there is none, or if everything is released.

    The decision is written into the workload's status first and stays there until everything is released, because a
    slot with a fault may be gone while others are still Bound. It is withdrawn if the faults end before a slot drains.

    `broken` are the allocationIds of slots with a fault whose grace period has ended.
    """
    marker = view.workload.restarting
    if marker is None or is_withdrawn(view, broken) or _is_reserved_again(view):
        return None
    if not (view.own_templates or view.held.bound or view.leaving()):
        return None
    release = releasing.release_all(view, failed=True, why=NoticeReason.RESTARTING)
    reason, message = str(marker["reason"]), str(marker.get("message") or "")
    verdict = Verdict(
        State.DEALLOCATING,
        *(release.waiting or (Reason.RESTARTING, f"all nodes are released, then reserved again: {message}")),
        (reason, message),
        {str(field): str(text) for field, text in marker.items()},
    )
    return Step(verdict, release.held, release.actions)


def begin(view: View) -> Step | None:
    """Return the step that decides to restart a workload with faults; None if the restart has to wait."""
    reason, message = degradation(view) or (Reason.RESTARTING, "")
    if restart_limit.reason_to_wait(view, view.held.bound) != ("", ""):
        return None
    marker = {
        "since": objects.time(view.now),
        "reason": str(reason),
        "message": message[: objects.MESSAGE_CHARACTERS],
    }
    text = f"all nodes are released, then reserved again: {message}"
    return Step(Verdict(State.DEALLOCATING, Reason.RESTARTING, text, (reason, message), marker), view.held)


def is_withdrawn(view: View, broken: set[str]) -> bool:
    """Return True if a restart was decided, is not needed or not possible now, and no slot has drained for it."""
    reservations = view.held
    if view.workload.restarting is None or not reservations.bound or _is_reserved_again(view):
        return False
    if any(reservation.allocation.ultraserver_index < view.workload.count for reservation in reservations.draining):
        return False
    return not broken or releasing.pods_on_dead_nodes(view.sight, reservations.bound) is not None


def _is_reserved_again(view: View) -> bool:
    """Return True if all groups were released, and others are reserved.

    The workload's status, which is sent later than the reservations, may still have the groups of before and the
    restart: it must neither release the new groups nor count as withdrawn.
    """
    former_ids = {record["allocationId"] for record in view.workload.groups}
    held_ids = {reservation.allocation.allocation_id for reservation in view.held}
    return bool(held_ids) and held_ids.isdisjoint(former_ids)
