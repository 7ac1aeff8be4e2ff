"""What keeps a workload from getting nodes, or from losing them: the rules before allocation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controller.observe.model import shortened
from controller.plan import releasing
from controller.plan.actions import Verdict
from controller.plan.reasons import Reason
from controller.plan.states import State
from controller.plan.view import Step, View, join_texts


def failed(view: View) -> Step | None:
    """Release what a workload has that a user must correct and that has not run; it is Failed when all is released."""
    problem = view.problem
    if problem is None or view.has_run or view.workload.restarting:
        return None
    made = releasing.release_reservations(view.sight, view.workload.uid, view.held, view.held.all)
    if not made.held:
        return Step(Verdict(State.FAILED, *problem), made.held, made.evictions)
    reason, message = made.waiting or (Reason.RELEASING, "the reservation is being released")
    verdict = Verdict(State.DEALLOCATING, reason, join_texts(message, problem[1]))
    return Step(verdict, made.held, made.evictions)


def invalid(view: View) -> Step | None:
    """Keep what a workload has whose spec became invalid: nothing can be planned for it."""
    problem = view.problem
    if problem is None or problem[0] != Reason.INVALID_SPEC:
        return None
    state = str(view.workload.status.get("state") or State.PARTIALLY_ALLOCATED)
    return Step(Verdict(state, *problem, problem), view.held)


def not_to_be_read(view: View) -> Step | None:
    """Keep everything while reservations of the workload cannot be read, or its nodes publish nothing."""
    state = view.workload.state
    if view.unreadable:
        return Step(Verdict(state, Reason.UNREADABLE_RESERVATION, view.unreadable), view.held)
    not_seen = _not_seen(view.withheld)
    if not_seen:
        return Step(Verdict(state, Reason.RESERVATION_NOT_SEEN, not_seen), view.held)
    return None


def _not_seen(nodes: Sequence[str]) -> str:
    """Return which nodes a workload may have that publish nothing, as a message; empty if none."""
    if not nodes:
        return ""
    return (
        "the NeuronUltraServer with reservations of this workload was deleted, and the nodes that show them publish "
        f"nothing: {shortened(tuple(nodes))}; they stay closed, and nothing is reserved or released, until they "
        "publish again; to give them up, delete their Nodes"
    )
