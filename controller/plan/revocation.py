"""The release of what a workload's queue does not allow any more. Pure."""

from __future__ import annotations

from controller.plan import releasing
from controller.plan.actions import Verdict
from controller.plan.reasons import Reason
from controller.plan.states import State
from controller.plan.view import Step, View, join_texts


def revoked(view: View) -> Step | None:
    """Return the next step of the release; None if the queue allows what there is, or nothing is left.

    The quota is given back only when all nodes are free: until then others would get it a second time.
    """
    found = view.sight.known.admissions.get(view.workload.uid)
    templates = releasing.templates_of(view)
    if found is None or not found.revoked or not (view.held or templates):
        return None
    made = releasing.release_reservations(view.sight, view.workload.uid, view.held, view.held.all)
    reason, message = made.waiting or (Reason.RELEASING, "the reservation is being released")
    verdict = Verdict(State.DEALLOCATING, reason, join_texts(found.message, message))
    return Step(verdict, made.held, (*releasing.delete_templates(view, templates), *made.evictions))
