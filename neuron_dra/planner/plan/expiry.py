"""The end of reservations that nobody uses: `spec.ttlSecondsUnused`. Pure.

The condition InUse keeps since when no claim of the workload is allocated on its nodes: the time of its last
transition. Its reason Expired is written before anything is released, so it is there for every later plan.
"""

from __future__ import annotations

import datetime
from typing import Final

from neuron_dra.planner.decisions import objects
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import EXPIRED, IN_USE, condition

SOON: Final = "ExpiresSoon"
VALID: Final = datetime.timedelta(seconds=2)
"""The controller gives up unused nodes only so long after it has read the claims on them."""


def in_use(view: View) -> tuple[bool, str, str] | None:
    """Return status, reason and message of the condition InUse; None without a limit, or without Bound groups."""
    workload, now = view.workload, view.now
    if not workload.ttl_unused_s:
        return None
    stored = condition(workload.status, IN_USE)
    if view.has_expired:
        return False, EXPIRED, str(stored.get("message") or "")
    if not view.held.bound:
        return None
    if view.is_used:
        return True, "ClaimsAllocated", "claims of the workload are allocated on its nodes"
    unused_since = decode.time(stored.get("lastTransitionTime")) if stored.get("status") == "False" else now
    limit = datetime.timedelta(seconds=workload.ttl_unused_s)
    text = f"no claim is allocated on its nodes since {objects.time(unused_since)}"
    if now >= unused_since + limit and view.sight.has_read_claims(view.held.bound, VALID):
        advice = "remove spec.ttlSecondsUnused to reserve again, or delete the workload"
        return False, EXPIRED, f"{text}, for {workload.ttl_unused_s} s: its nodes are released; {advice}"
    ends = f"its nodes are released at {objects.time(unused_since + limit)} (spec.ttlSecondsUnused)"
    if now >= unused_since + limit / 2:
        view.sight.look_again(unused_since + limit)
        return False, SOON, f"{text}: {ends}"
    view.sight.look_again(unused_since + limit / 2)
    return False, "NoClaims", f"{text}: {ends}"
