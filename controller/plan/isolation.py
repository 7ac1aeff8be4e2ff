"""An error in the decision about one workload is that workload's condition: its nodes stay as they are. Pure.

All other workloads are planned as if it needed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.observe.discovery import Problem
from controller.observe.model import Reservation, UltraServer, Workload, condition
from controller.plan import objects
from controller.plan.actions import Action, Verdict, WriteUltraServerStatus
from controller.plan.context import PlanningContext

REASON = "InternalError"
REPORT = "correct the object if its fields are wrong, else report this message and the controller's log as a bug"
ADVICE = f"its nodes stay as they are, and other workloads are not affected; {REPORT}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a plan has decided before it decides about one workload."""

    workload: Workload
    lengths: tuple[int, ...]
    held: tuple[Reservation, ...] | None

    @classmethod
    def of(cls, context: PlanningContext, workload: Workload) -> Mark:
        """Return the mark of a context."""
        held = tuple(context.holdings.of(workload.uid)) if context.holdings.has_changed(workload.uid) else None
        return cls(workload, tuple(map(len, _actions(context))), held)

    def undo(self, context: PlanningContext) -> None:
        """Take back what was decided since."""
        for actions, length in zip(_actions(context), self.lengths, strict=True):
            del actions[length:]
        if context.holdings.has_changed(self.workload.uid):
            stored = context.index.held(self.workload.uid)
            context.holdings.put_back(self.workload.uid, stored if self.held is None else self.held)


def of_workload(context: PlanningContext, workload: Workload, problem: str) -> Verdict:
    """Return the verdict for a workload that cannot be planned, and plan the write of its condition."""
    text = f"the controller cannot plan this workload: {problem}; {ADVICE}"
    context.explain(workload, REASON, text)
    return Verdict(workload.state, REASON, text, degraded=(REASON, text) if workload.runs else None)


def of_restoration(err: Exception) -> Problem:
    """Return the problem of a NeuronUltraServer of which a reservation could not be restored."""
    text = f"the controller cannot restore a reservation here, and keeps its nodes closed: {named(err)}; {REPORT}"
    return Problem(REASON, text)


def of_ultraserver(context: PlanningContext, stored: UltraServer, err: Exception) -> list[WriteUltraServerStatus]:
    """Return the write of the condition of a NeuronUltraServer that cannot be planned; nothing if it has it."""
    text = f"the controller cannot handle this UltraServer, and reserves no node of it: {named(err)}; {REPORT}"
    before = condition(stored.status, "Degraded")
    if (before.get("reason"), before.get("message")) == (REASON, text):
        return []
    made = objects.new_condition(stored.status, "Degraded", True, REASON, text, context.now, stored.generation)
    others = [each for each in stored.status.get("conditions") or [] if each.get("type") != "Degraded"]
    status = {**stored.status, "state": "Degraded", "conditions": [made, *others]}
    return [WriteUltraServerStatus(stored.name, stored.version, stored.status, status, None)]


def named(err: Exception) -> str:
    """Return an error for a message."""
    return f"{type(err).__name__}: {err}"[:400]


def _actions(context: PlanningContext) -> Sequence[list[Action]]:
    return context.before, context.after, context.statuses, context.last
