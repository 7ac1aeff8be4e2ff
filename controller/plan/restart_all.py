"""RestartAll: releases all slots of a workload, then reserves them again; records restarts in its status. Pure."""

from __future__ import annotations

from controller.observe.model import Workload
from controller.plan import (
    objects,
    outage,
    releasing,
    restart_limit,
)
from controller.plan.actions import Record, Verdict
from controller.plan.context import PlanningContext
from controller.plan.recovery import degradation, node_faults
from neuron_dra.core.ultraserver import Phase


def restart(context: PlanningContext, workload: Workload, broken_now: set[str]) -> Verdict | None:
    """Plan the next step of a restart; return None if none is due, or if everything is released.

    The decision is written into the workload's status first and stays there until everything is released, because a
    slot with a fault may be gone while others are still Bound. It is withdrawn if the faults end before a slot drains.

    `broken_now` are the allocationIds of slots with a fault whose grace period has ended.
    """
    holdings = context.holdings
    held = holdings.of(workload.uid)
    bound = [each for each in held if each.allocation.phase is Phase.BOUND]
    marker = workload.restarting
    if marker is None:
        if workload.strategy != "RestartAll" or not broken_now:
            return None
        reason, message = degradation(context, workload) or ("Restarting", "")
        if restart_limit.reason_to_wait(context, workload, bound) != ("", ""):
            return None
        marker = {
            "since": objects.time(context.now),
            "reason": reason,
            "message": message[: objects.MESSAGE_CHARACTERS],
        }
        text = f"all nodes are released, then reserved again: {message}"
        return Verdict("Deallocating", "Restarting", text, (reason, message), marker)
    closed = any(
        each.allocation.phase is Phase.DRAINING and each.allocation.ultraserver_index < workload.count for each in held
    )
    if bound and not closed and (not broken_now or releasing.pods_on_dead_nodes(context, bound)):
        context.withdrawn.add(workload.uid)
        return None
    if not (releasing.delete_templates(context, workload) or bound or holdings.leaving(workload.uid)):
        return None
    waiting = releasing.release_reservations(context, workload.uid, held, failed=True)
    reason, message = str(marker["reason"]), str(marker.get("message") or "")
    return Verdict(
        "Deallocating",
        *(waiting or ("Restarting", f"all nodes are released, then reserved again: {message}")),
        (reason, message),
        {str(name): str(value) for name, value in marker.items()},
    )


def record(context: PlanningContext, workload: Workload, verdict: Verdict) -> Record:
    """Return the record of restarts and outages for later plans.

    A restart that begins adds its time; one that was withdrawn removes it.
    """
    number, begun = int(workload.status.get("restarts") or 0), restart_limit.recent_restarts(workload, context.now)
    reset = restart_limit.reset_at(workload)
    if reset is not None:
        context.look_again(reset)
    if workload.uid in context.withdrawn:
        number, begun = max(0, number - 1), begun[:-1]
    elif verdict.restarting and not workload.restarting:
        number, begun = number + 1, (*begun, verdict.restarting["since"])[-restart_limit.MOST_KEPT :]
    return Record(number, begun, _outage(context, workload))


def _outage(context: PlanningContext, workload: Workload) -> tuple[bool, str] | None:
    """Return value and message of the condition Outage; None if no outage has stopped a grace period."""
    stored = outage.was_hit(workload)
    if context.outage is None:
        return (False, "since then every grace period starts again") if stored else None
    held = [each for each in context.holdings.of(workload.uid) if each.allocation.phase is not Phase.PENDING]
    hit = any(each.acts_at is not None for one in held for each in node_faults(context, workload, one))
    if hit or stored.get("status") == "True":
        return True, context.outage.message
    return (False, str(stored.get("message"))) if stored else None
