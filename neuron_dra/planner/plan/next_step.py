"""A workload's next step: the first rule that applies. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from neuron_dra.planner.decisions.actions import SetFinalizers, Verdict
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.view import Step, View, join_texts
from neuron_dra.planner.observed.model import EXPIRED, FINALIZER, IN_USE, condition, shortened
from neuron_dra.planner.plan import (
    block_end,
    isolation,
    pod_start,
    recovery,
    releasing,
    rendezvous,
    restart_all,
    statuses,
)
from neuron_dra.planner.plan.allocation import allocate

RELEASING: Final = (Reason.RELEASING, "the reservation is being released")
"""Reason and message of a release that waits for nothing but its writes."""


def next_step(view: View) -> Step:
    """Return the next step of a workload; an error becomes its condition and changes nothing else."""
    if view.unrestored is not None:
        return isolation.of_workload(view, isolation.named(view.unrestored), view.unrestored)
    if view.workload.problem and not view.workload.deleting:  # a release needs nothing of the spec
        return isolation.of_workload(view, view.workload.problem)
    try:
        step = _decided(view)
        view_after = view.having(step.held)
        step = replace(step, held=block_end.told(view_after))
        return step.seeing(pod_start.look_at(view_after), rendezvous.meeting(view_after))
    except Exception as err:
        return isolation.of_workload(view, isolation.named(err), err)


def _decided(view: View) -> Step:
    """Return the step of the first rule that applies, with the workload's finalizer or its status."""
    workload = view.workload
    steps = (rule(view) for rule in RULES)
    step = next((rule_step for rule_step in steps if rule_step is not None), None)
    if step is None:
        step = not_to_be_read(view) or _with_nodes(view)
        if FINALIZER not in workload.finalizers:
            # Nothing is reserved before the finalizer is stored: a status of a NeuronUltraServer is one write for all
            # of its workloads, and must not wait for the write of one. The next plan also writes the status.
            return Step(step.verdict, view.held, (SetFinalizers.of(workload, (*workload.finalizers, FINALIZER)),))
    return statuses.with_status(view.having(step.held), step)


def _with_nodes(view: View) -> Step:
    """Return the step of a workload that gets and keeps nodes: what its strategy does about faults, else allocation."""
    view = recovery.noted(view)
    broken = recovery.faulty_slots(view)
    step = restart_all.restart(view, broken)
    if step is None and broken and view.workload.restarting is None:
        step = view.strategy.instead(view)
    if step is not None:
        return step
    withdrawn = restart_all.is_withdrawn(view, broken)
    # A restart that waits keeps the slots until then.
    return allocate(view, broken if view.strategy.replaces else set(), withdrawn=withdrawn)


# -- the rules before faults and allocation ----------------------------------------------------------------------------


def deleted(view: View) -> Step | None:
    """Release what a deleted workload has.

    The last step removes the workload's finalizer, after which the API server deletes it.
    """
    workload = view.workload
    if not workload.deleting:
        return None
    release = releasing.release_all(view, final=True)
    if FINALIZER not in workload.finalizers:
        return Step(None, release.held, release.actions)
    if view.held or view.own_templates:
        return Step(Verdict(State.DEALLOCATING, *(release.waiting or RELEASING)), release.held, release.actions)
    if view.unreadable:
        return Step(
            Verdict(State.DEALLOCATING, Reason.UNREADABLE_RESERVATION, view.unreadable), release.held, release.actions
        )
    other_finalizers = tuple(finalizer for finalizer in workload.finalizers if finalizer != FINALIZER)
    return Step(None, release.held, (*release.actions, SetFinalizers.of(workload, other_finalizers)))


def expired(view: View) -> Step | None:
    """Release what nobody has used for spec.ttlSecondsUnused; nothing is reserved any more."""
    if not view.has_expired:
        return None
    message = str(condition(view.workload.status, IN_USE).get("message") or "")
    release = releasing.release_all(view)
    if view.held or view.own_templates:
        verdict = Verdict(State.DEALLOCATING, *(release.waiting or (Reason.RELEASING, message)))
    else:
        verdict = Verdict(State.FAILED, EXPIRED, message)
    return Step(verdict, release.held, release.actions)


def revoked(view: View) -> Step | None:
    """Release what the workload's queue does not allow any more.

    The quota is given back only when all nodes are free: until then others would get it a second time.
    """
    admission = view.admission
    if admission is None or not admission.revoked or not (view.held or view.own_templates):
        return None
    release = releasing.release_all(view)
    reason, message = release.waiting or RELEASING
    return Step(
        Verdict(State.DEALLOCATING, reason, join_texts(admission.message, message)), release.held, release.actions
    )


def failed(view: View) -> Step | None:
    """Release what a workload has that a user must correct and that has not run; it is Failed when all is released."""
    problem = view.problem
    if problem is None or view.has_run or view.workload.restarting:
        return None
    release = releasing.release_reservations(view.sight, view.workload.uid, view.held, view.held.all)
    if not release.held:
        return Step(Verdict(State.FAILED, *problem), release.held, release.actions)
    reason, message = release.waiting or RELEASING
    return Step(Verdict(State.DEALLOCATING, reason, join_texts(message, problem[1])), release.held, release.actions)


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
    if not view.withheld:
        return None
    text = (
        "the NeuronUltraServer with reservations of this workload was deleted, and the nodes that show them publish "
        f"nothing: {shortened(tuple(view.withheld))}; they stay closed, and nothing is reserved or released, until "
        "they publish again; to give them up, delete their Nodes"
    )
    return Step(Verdict(state, Reason.RESERVATION_NOT_SEEN, text), view.held)


Rule = Callable[[View], Step | None]

RULES: Final[tuple[Rule, ...]] = (deleted, expired, revoked, failed, invalid)
"""The rules that need no finalizer: they leave the workload's as they are, or remove ours."""
