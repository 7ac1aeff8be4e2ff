"""A workload's next step: the first rule that applies. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.plan import (
    block_end,
    expiry,
    isolation,
    obstacles,
    pod_start,
    recovery,
    releasing,
    rendezvous,
    restart_all,
    revocation,
    statuses,
)
from controller.plan.allocation import allocate
from controller.plan.view import Step, View

Rule = Callable[[View], Step | None]

RULES: Final[tuple[Rule, ...]] = (
    releasing.release,
    expiry.ended,
    revocation.revoked,
    obstacles.failed,
    obstacles.invalid,
    obstacles.not_to_be_read,
)
"""The rules before faults and allocation, which always have a step."""
WITHOUT_FINALIZER: Final = RULES[:5]
"""These leave the workload's finalizers as they are, or remove ours."""


def next_step(view: View) -> Step:
    """Return the next step of a workload; an error becomes its condition and changes nothing else."""
    if view.unrestored is not None:
        return isolation.of_workload(view, isolation.named(view.unrestored), view.unrestored)
    if view.workload.problem and not view.workload.deleting:  # a release needs nothing of the spec
        return isolation.of_workload(view, view.workload.problem)
    try:
        step = _first(view)
        then = view.having(step.held)
        step = statuses.with_status(then, step)
        step = replace(step, held=block_end.told(then))
        return step.seeing(pod_start.look_at(then), rendezvous.meeting(then))
    except Exception as err:
        return isolation.of_workload(view, isolation.named(err), err)


def _first(view: View) -> Step:
    """Return the step of the first rule that applies."""
    for rule in RULES:
        step = rule(view)
        if step is not None:
            return step if rule in WITHOUT_FINALIZER else statuses.with_finalizer(view, step)
    return statuses.with_finalizer(view, _about_faults(view))


def _about_faults(view: View) -> Step:
    """Return the step of a workload that may have faults: what its strategy does about them, else allocation."""
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
