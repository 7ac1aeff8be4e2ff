"""How often RestartAll may restart a workload: at once, then after waits that grow, and not for ever. Pure.

The restarts in a row stand in the workload's status, by the times at which they began. They are forgotten after an hour
in which the workload was Allocated and nothing was wrong with it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from controller.observe import decode
from controller.observe.model import Reservation, Workload, condition
from controller.plan import objects, releasing
from controller.plan.context import PlanningContext

FIRST_WAIT = datetime.timedelta(seconds=10)
LONGEST_WAIT = datetime.timedelta(minutes=10)
FORGOTTEN_AFTER = datetime.timedelta(hours=1)
MOST_KEPT = 16
"""How many times the status has room for; a larger limit counts no further, as the waits are the longest by then."""

LIMIT_EXCEEDED = "RestartLimitExceeded"


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether the next restart may begin: at `begins_at`, or not at all when the limit is reached (None)."""

    number: int
    begins_at: datetime.datetime | None


def in_a_row(workload: Workload, now: datetime.datetime) -> tuple[str, ...]:
    """Return when the restarts in a row began, the oldest first."""
    found = tuple(str(each) for each in workload.status.get("restartedAt") or ())
    until = forgotten_at(workload)
    return () if until is not None and now >= until else found


def forgotten_at(workload: Workload) -> datetime.datetime | None:
    """Return when the restarts are forgotten if all stays well until then; None without any, or while it is not."""
    if not workload.status.get("restartedAt"):
        return None
    ready, degraded = _condition(workload, "Ready"), _condition(workload, "Degraded")
    if ready is None or degraded is None or (ready[0], degraded[0]) != ("True", "False"):
        return None
    return max(ready[1], degraded[1]) + FORGOTTEN_AFTER


def turn(workload: Workload, now: datetime.datetime, limit: int) -> Turn:
    """Return when the next restart may begin: the first at once, each further one after twice the wait."""
    begun = in_a_row(workload, now)
    number = len(begun) + 1
    if len(begun) >= limit:
        return Turn(number, None)
    if not begun:
        return Turn(number, now)
    last = decode.time(begun[-1])
    ready = _condition(workload, "Ready")
    if ready is not None and ready[0] == "True":
        last = max(last, ready[1])
    return Turn(number, last + min(FIRST_WAIT * 2 ** (len(begun) - 1), LONGEST_WAIT))


def _condition(workload: Workload, kind: str) -> tuple[str, datetime.datetime] | None:
    found = condition(workload.status, kind)
    return (str(found.get("status")), decode.time(found.get("lastTransitionTime"))) if found else None


def waits(context: PlanningContext, workload: Workload, bound: list[Reservation]) -> tuple[str, str]:
    """Why RestartAll does not begin now: a reason that is worse than what is wrong, or nothing, and a sentence."""
    found = turn(workload, context.now, context.limits.restart_limit)
    if found.begins_at is None:
        return LIMIT_EXCEEDED, (
            f"RestartAll has restarted the workload {found.number - 1} times in a row and does not try again: "
            "nothing is evicted; repair or delete the nodes, or delete the workload and create it again; restarts are "
            "forgotten after an hour in which it is Allocated and nothing is wrong"
        )
    if found.begins_at > context.now:
        context.look_again(found.begins_at)
        return "", f"RestartAll begins restart {found.number} in a row at {objects.time(found.begins_at)}"
    unreachable = releasing.out_of_reach(context, workload.uid, bound)
    if unreachable is not None:
        return "", f"RestartAll begins when an eviction can follow, unless it is over by then; {unreachable[1]}"
    return "", ""
