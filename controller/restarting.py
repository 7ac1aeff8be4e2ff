"""RestartAll: everything of a workload is released, then reserved anew; and what its status keeps of it. Pure."""

from __future__ import annotations

from controller import outage, releasing, render, restarts
from controller.actions import Record, Verdict
from controller.draft import Draft
from controller.model import Workload
from controller.recovery import damage, troubles
from neuron_dra.core.ultraserver import Phase


def restart(draft: Draft, workload: Workload, broken_now: set[str]) -> Verdict | None:
    """Release everything of a workload; None when nothing is to be released, or nothing is left of it.

    The decision is written into the workload's status before anything else is, and stays there until all is released:
    a slot that broke may be gone while others are still bound. Until a slot is closed it is withdrawn when all is well.
    """
    holdings = draft.holdings
    held = holdings.of(workload.uid)
    bound = [each for each in held if each.allocation.phase is Phase.BOUND]
    marker = workload.restarting
    if marker is None:
        if workload.strategy != "RestartAll" or not broken_now:
            return None
        reason, message = damage(draft, workload) or ("Restarting", "")
        if restarts.waits(draft, workload, bound) != ("", ""):
            return None
        marker = {
            "since": render.time(draft.now),
            "reason": reason,
            "message": message[: render.MESSAGE_CHARACTERS],
        }
        text = f"everything is released, and reserved anew when that is done: {message}"
        return Verdict("Deallocating", "Restarting", text, (reason, message), marker)
    closed = any(
        each.allocation.phase is Phase.DRAINING and each.allocation.ultraserver_index < workload.count for each in held
    )
    if bound and not closed and (not broken_now or releasing.out_of_reach(draft, workload.uid, bound)):
        draft.withdrawn.add(workload.uid)
        return None
    if not (releasing.delete_templates(draft, workload) or bound or holdings.leaving(workload.uid)):
        return None
    waiting = releasing.give_back(draft, workload.uid, held, failed=True)
    reason, message = str(marker["reason"]), str(marker.get("message") or "")
    return Verdict(
        "Deallocating",
        *(waiting or ("Restarting", f"everything is released, and reserved anew when that is done: {message}")),
        (reason, message),
        {str(name): str(value) for name, value in marker.items()},
    )


def record(draft: Draft, workload: Workload, verdict: Verdict) -> Record:
    """Return what later plans have to know of restarts and outages."""
    number, begun = int(workload.status.get("restarts") or 0), restarts.in_a_row(workload, draft.now)
    forgotten = restarts.forgotten_at(workload)
    if forgotten is not None:
        draft.look_again(forgotten)
    if workload.uid in draft.withdrawn:
        number, begun = max(0, number - 1), begun[:-1]
    elif verdict.restarting and not workload.restarting:
        number, begun = number + 1, (*begun, verdict.restarting["since"])[-restarts.MOST_KEPT :]
    return Record(number, begun, _outage(draft, workload))


def _outage(draft: Draft, workload: Workload) -> tuple[bool, str] | None:
    """The condition Outage: of a workload with a grace period that an outage stops, or has stopped."""
    stored = outage.was_hit(workload)
    if draft.outage is None:
        return (False, "since then every grace period counts anew") if stored else None
    held = [each for each in draft.holdings.of(workload.uid) if each.allocation.phase is not Phase.PENDING]
    hit = any(each.acts_at is not None for one in held for each in troubles(draft, workload, one))
    if hit or stored.get("status") == "True":
        return True, draft.outage.message
    return (False, str(stored.get("message"))) if stored else None
