"""An error in the decision about one workload is that workload's condition: its nodes stay as they are. Pure.

All other workloads are planned as if it needed nothing.
"""

from __future__ import annotations

import datetime

from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Verdict, WriteUltraServerStatus
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.view import Step, View
from neuron_dra.planner.observed.discovery import Problem
from neuron_dra.planner.observed.model import UltraServer, condition
from neuron_dra.planner.plan import statuses

REPORT = "correct the object if its fields are wrong, else report this message and the controller's log as a bug"
ADVICE = f"its nodes stay as they are, and other workloads are not affected; {REPORT}"


def of_workload(view: View, problem: str, err: Exception | None = None) -> Step:
    """Return the step of a workload that cannot be planned: its condition, and nothing else."""
    workload = view.workload
    text = f"the controller cannot plan this workload: {problem}; {ADVICE}"
    verdict = Verdict(
        workload.state, Reason.INTERNAL_ERROR, text, degraded=(Reason.INTERNAL_ERROR, text) if workload.runs else None
    )
    actions = statuses.condition(workload, Reason.INTERNAL_ERROR, text, view.now)
    return Step(verdict, view.held, tuple(actions), error=err)


def of_restoration(err: Exception) -> Problem:
    """Return the problem of a NeuronUltraServer of which a reservation could not be restored."""
    text = f"the controller cannot restore a reservation here, and keeps its nodes closed: {named(err)}; {REPORT}"
    return Problem(Reason.INTERNAL_ERROR, text)


def of_ultraserver(stored: UltraServer, err: Exception, now: datetime.datetime) -> list[WriteUltraServerStatus]:
    """Return the write of the condition of a NeuronUltraServer that cannot be planned; nothing if it has it."""
    text = f"the controller cannot handle this UltraServer, and reserves no node of it: {named(err)}; {REPORT}"
    before = condition(stored.status, "Degraded")
    if (before.get("reason"), before.get("message")) == (Reason.INTERNAL_ERROR, text):
        return []
    degraded = objects.new_condition(
        stored.status, "Degraded", True, Reason.INTERNAL_ERROR, text, now, stored.generation
    )
    other_conditions = [
        stored_condition
        for stored_condition in stored.status.get("conditions") or []
        if stored_condition.get("type") not in ("Degraded", "Spare")
    ]
    status = {**stored.status, "state": "Degraded", "conditions": [degraded, *other_conditions]}
    return [WriteUltraServerStatus(stored.name, stored.version, stored.status, status, None)]


def named(err: Exception) -> str:
    """Return an error for a message."""
    return f"{type(err).__name__}: {err}"[:400]
