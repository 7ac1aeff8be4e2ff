"""The end of reservations that nobody uses: `spec.ttlSecondsUnused`. Pure.

The condition InUse keeps since when no claim of the workload is allocated on its nodes: the time of its last
transition. Its reason Expired is written before anything is released, so it is there for every later plan.
"""

from __future__ import annotations

import datetime
from typing import Final

from controller.observe import decode
from controller.observe.model import EXPIRED, IN_USE, condition
from controller.plan import objects, releasing
from controller.plan.actions import Verdict
from controller.plan.reasons import Reason
from controller.plan.states import State
from controller.plan.view import Step, View

SOON: Final = "ExpiresSoon"


def in_use(view: View) -> tuple[bool, str, str] | None:
    """Return status, reason and message of the condition InUse; None without a limit, or without Bound groups."""
    workload, now = view.workload, view.now
    if not workload.ttl_unused_s:
        return None
    stored = condition(workload.status, IN_USE)
    if _has_expired(view):
        return False, EXPIRED, str(stored.get("message") or "")
    if not view.held.bound:
        return None
    if _is_used(view):
        return True, "ClaimsAllocated", "claims of the workload are allocated on its nodes"
    since = decode.time(stored.get("lastTransitionTime")) if stored.get("status") == "False" else now
    limit = datetime.timedelta(seconds=workload.ttl_unused_s)
    text = f"no claim is allocated on its nodes since {objects.time(since)}"
    if now >= since + limit:
        advice = "remove spec.ttlSecondsUnused to reserve again, or delete the workload"
        return False, EXPIRED, f"{text}, for {workload.ttl_unused_s} s: its nodes are released; {advice}"
    ends = f"its nodes are released at {objects.time(since + limit)} (spec.ttlSecondsUnused)"
    if now >= since + limit / 2:
        view.sight.look_again(since + limit)
        return False, SOON, f"{text}: {ends}"
    view.sight.look_again(since + limit / 2)
    return False, "NoClaims", f"{text}: {ends}"


def _has_expired(view: View) -> bool:
    """Return True if the reservation has expired; not if pods came in the moment before its release."""
    return view.workload.expired and not (view.held.bound and _is_used(view))


def _is_used(view: View) -> bool:
    return any(view.sight.own_uses(each.allocation) for each in view.held)


def ended(view: View) -> Step | None:
    """Return the next step of the release of an expired workload, which reserves nothing any more; None for others."""
    if not _has_expired(view):
        return None
    templates = releasing.templates_of(view)
    message = str(condition(view.workload.status, IN_USE).get("message") or "")
    made = releasing.release_reservations(view.sight, view.workload.uid, view.held, view.held.all)
    verdict = Verdict(State.FAILED, EXPIRED, message)
    if view.held or templates:
        verdict = Verdict(State.DEALLOCATING, *(made.waiting or (Reason.RELEASING, message)))
    return Step(verdict, made.held, (*releasing.delete_templates(view, templates), *made.evictions))
