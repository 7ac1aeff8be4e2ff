"""How often RestartAll may restart a workload: at once, then after growing waits, up to a limit. Pure.

The workload's status has the start times of its restarts in a row. They are reset after an hour in which the
workload was Allocated without a fault.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Reservation, Workload, condition
from neuron_dra.planner.plan import releasing

FIRST_WAIT = datetime.timedelta(seconds=10)
LONGEST_WAIT = datetime.timedelta(minutes=10)
FORGOTTEN_AFTER = datetime.timedelta(hours=1)
MOST_KEPT = 16
"""How many start times the status keeps. By then the waits have reached their maximum, even if the limit is larger."""


@dataclass(frozen=True, slots=True)
class NextRestart:
    """When the next restart may begin.

    `number` is its number in the row, from 1; `begins_at` is None if the limit is reached.
    """

    number: int
    begins_at: datetime.datetime | None


def recent_restarts(workload: Workload, now: datetime.datetime) -> tuple[str, ...]:
    """Return when the restarts in a row began, RFC 3339, the oldest first; none if they have been reset."""
    begun_at = tuple(str(moment) for moment in workload.status.get("restartedAt") or ())
    until = reset_at(workload)
    return () if until is not None and now >= until else begun_at


def reset_at(workload: Workload) -> datetime.datetime | None:
    """Return when the restarts are reset if no fault occurs; None without restarts, or while there is a fault."""
    if not workload.status.get("restartedAt"):
        return None
    ready, degraded = _condition(workload, "Ready"), _condition(workload, "Degraded")
    if ready is None or degraded is None or (ready[0], degraded[0]) != ("True", "False"):
        return None
    return max(ready[1], degraded[1]) + FORGOTTEN_AFTER


def next_restart(workload: Workload, now: datetime.datetime, limit: int) -> NextRestart:
    """Return when the next restart may begin: the first at once, each later one after twice the wait.

    The wait starts when the workload was Allocated again, or else at the last restart. `limit` is the number of
    restarts in a row.
    """
    begun = recent_restarts(workload, now)
    number = len(begun) + 1
    if len(begun) >= limit:
        return NextRestart(number, None)
    if not begun:
        return NextRestart(number, now)
    wait_start = decode.time(begun[-1])
    ready = _condition(workload, "Ready")
    if ready is not None and ready[0] == "True":
        wait_start = max(wait_start, ready[1])
    return NextRestart(number, wait_start + min(FIRST_WAIT * 2 ** (len(begun) - 1), LONGEST_WAIT))


def _condition(workload: Workload, condition_type: str) -> tuple[str, datetime.datetime] | None:
    """Return status and last transition time of a workload's condition; None without it."""
    stored = condition(workload.status, condition_type)
    return (str(stored.get("status")), decode.time(stored.get("lastTransitionTime"))) if stored else None


def outlook(view: View, bound: list[Reservation]) -> tuple[str, str]:
    """Return why a restart that is due does not begin, as `Strategy.outlook`; empty while one goes on."""
    return reason_to_wait(view, bound) if view.workload.restarting is None else ("", "")


def reason_to_wait(view: View, bound: list[Reservation]) -> tuple[str, str]:
    """Return why RestartAll does not begin now, as a reason and a message; both empty if it does.

    The reason is empty, too, unless it outranks the faults.
    """
    upcoming = next_restart(view.workload, view.now, view.limits.restart_limit)
    if upcoming.begins_at is None:
        return Reason.RESTART_LIMIT_EXCEEDED, (
            f"RestartAll has restarted the workload {upcoming.number - 1} times in a row and stops: "
            "nothing is evicted; repair or delete the nodes, or delete the workload and create it again; the count "
            "starts again after an hour in which it is Allocated without a fault"
        )
    if upcoming.begins_at > view.now:
        view.sight.look_again(upcoming.begins_at)
        return "", f"RestartAll begins restart {upcoming.number} in a row at {objects.time(upcoming.begins_at)}"
    unreachable = releasing.pods_on_dead_nodes(view.sight, bound)
    if unreachable is not None:
        return "", f"RestartAll begins when pods can be evicted, if the fault lasts until then; {unreachable[1]}"
    return "", ""
