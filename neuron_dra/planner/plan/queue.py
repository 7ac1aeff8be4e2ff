"""The order of workloads: by priority, then first come, first served; how long a waiting one may block others. Pure.

A workload of higher priority is planned earlier, so one of lower priority never holds it back. Reserved nodes stay with
those that have them.

Each workload may hold others back for a time. A tenant that makes new requests for the whole fleet again and again
would do so for ever. So a namespace has a *turn*: it lasts for `starvation_limit`, whichever of its workloads hold
others back. After that none of them does, until those that waited then had their turn, and for at least as long again.
Deleted objects show nothing of the past: the loop keeps the turns between plans, and a new leader begins without them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from neuron_dra.core import tenants
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.view import TurnKey, View
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Template, Turn, Workload, condition

Order = tuple[bool, bool, bool, int, datetime.datetime, str]


def ordered(
    workloads: Iterable[Workload], holdings: Holdings, priorities: Mapping[str, int], now: datetime.datetime
) -> tuple[list[Workload], dict[str, Exception]]:
    """Return the workloads in the order in which they are planned, and the errors about single ones, which come last.

    Those that release come first, then complete ones, then by priority, then first come, first served, and tests last.
    A workload that grows queues from the time of its request to grow. The value of a class that does not exist is 0.
    """
    keyed: list[tuple[Order, Workload]] = []
    with_errors: list[Workload] = []
    errors: dict[str, Exception] = {}
    for workload in workloads:
        try:
            keyed.append((_order(workload, holdings.of(workload.uid), priorities, now), workload))
        except Exception as err:
            errors[workload.ref] = err
            with_errors.append(workload)
    return [workload for _, workload in sorted(keyed, key=lambda pair: pair[0])] + with_errors, errors


def _order(workload: Workload, reservations: Held, priorities: Mapping[str, int], now: datetime.datetime) -> Order:
    grows = bool(reservations.bound) and reservations.opened < workload.count
    settled = bool(reservations) and not grows
    since = waits_since(workload, now) if grows else workload.created
    tests = workload.target is not None and not settled
    rank = -priorities.get(workload.priority_class, 0)
    return not workload.deleting, not settled, tests, rank, since, workload.ref


def template_names(
    workloads: Iterable[Workload], templates: Mapping[tuple[str, str], Template], holdings: Holdings
) -> dict[tuple[str, str], Workload]:
    """Return which workload gets each template name that several request, by namespace and name.

    It is the one whose template exists, else one with Bound nodes, else the oldest. A name that one workload requests
    is not in the result.
    """
    asking: dict[tuple[str, str], list[Workload]] = {}
    for workload in workloads:
        asking.setdefault((workload.namespace, workload.template_name), []).append(workload)

    def claim(workload: Workload) -> tuple[bool, bool, bool, datetime.datetime, str]:
        """Return the sort key: the workload with the best claim to its template's name is the smallest."""
        template = templates.get((workload.namespace, workload.template_name))
        has_it = template is not None and template.is_of(workload)
        return not has_it, not holdings.of(workload.uid).bound, workload.deleting, workload.created, workload.ref

    return {
        template_key: min(candidates, key=claim) for template_key, candidates in asking.items() if len(candidates) > 1
    }


def waits_since(workload: Workload, now: datetime.datetime) -> datetime.datetime:
    """Return the time since which the workload has not been Ready, from its status; `now` for one that is Ready."""
    ready = condition(workload.status, "Ready")
    if ready.get("status") == "True":
        return now
    return max(workload.created, decode.time(ready.get("lastTransitionTime")))


def goes_first(view: View) -> Workload | None:
    """Return the starving workload of the same type that goes first.

    None without one, or if this workload has waited for it for `starvation_limit`.
    """
    until = waits_since(view.workload, view.now) + view.limits.starvation_limit
    if view.starving is None or view.now >= until:
        return None
    view.sight.look_again(until)
    return view.starving


def held_back(view: View, starving: Workload) -> tuple[placement.Shortage, tuple[TurnKey, Turn] | None]:
    """Return the shortage of a workload that must not pass a starving one, and the turn of the other's namespace.

    Workloads of one namespace use up no turn by holding back each other.
    """
    turn_key = starving.instance_type, starving.namespace
    turn = view.turns.get(turn_key)
    noted = None
    if starving.namespace != view.workload.namespace:
        began = view.now if turn is None else min(turn.began, view.now)  # the clock may have been set back
        turn = Turn(began, view.now)
        noted = turn_key, turn
    until = min(_starving_until(starving, view), _turn_until(turn, view))
    starving_text = tenants.shown("workload", starving.namespace, starving.name, reader=view.workload.namespace)
    shortage = placement.Shortage(
        Reason.WAITS_FOR_OLDER,
        f"{starving_text} has waited longer for {starving.count} x {starving.size} nodes and goes first, until "
        f"{objects.time(until)} at the latest",
    )
    return shortage, noted


def starving_until(workload: Workload, now: datetime.datetime, limits: Limits) -> datetime.datetime:
    """Return until when a starving workload holds others back."""
    return waits_since(workload, now) + limits.starvation_threshold + limits.starvation_limit


def _starving_until(workload: Workload, view: View) -> datetime.datetime:
    return starving_until(workload, view.now, view.limits)


def _turn_until(turn: Turn | None, view: View) -> datetime.datetime:
    """Return until when workloads of a namespace with this turn may hold back others."""
    return (view.now if turn is None else turn.began) + view.limits.starvation_limit


def starves(view: View) -> bool:
    """Return True if the workload has waited for long enough to hold back others of its type."""
    workload = view.workload
    begins = waits_since(workload, view.now) + view.limits.starvation_threshold
    turn = view.turns.get((workload.instance_type, workload.namespace))
    ends = min(_starving_until(workload, view), _turn_until(turn, view))
    for moment in (begins, ends):
        view.sight.look_again(moment)
    return begins <= view.now < ends
