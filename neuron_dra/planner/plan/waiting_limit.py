"""How many workloads of a namespace may wait for nodes. Pure.

A waiting workload costs the controller 8 KiB, most of it for the decision that the next plan takes over. Without a
limit one tenant could end the process. Workloads beyond the limit are not decided; they keep their place by priority
and age.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action, Verdict, WriteWorkloadStatus
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.observed.model import Admission, Workload, condition

HAD_NODES: Final = frozenset({"groups", "restarts", "restarting", "restartedAt", "migrations"})
"""Fields of a status that only a workload has which got nodes before."""


def beyond(
    workloads: Sequence[Workload],
    index: FleetIndex,
    holdings: Holdings,
    admissions: Mapping[str, Admission],
    limit: int,
) -> dict[str, list[Workload]]:
    """Return the workloads that are beyond the limit of their namespace, by namespace.

    - `workloads`: in the order in which they are planned. The first of each namespace are within the limit.
    """
    numbers = Counter(workload.namespace for workload in workloads)
    crowded = {namespace for namespace, number in numbers.items() if number > limit}
    if not crowded:
        return {}
    waiting: dict[str, list[Workload]] = {namespace: [] for namespace in crowded}
    for workload in workloads:
        if workload.namespace in crowded and _only_waits(workload, index, holdings, admissions):
            waiting[workload.namespace].append(workload)
    return {namespace: all_waiting[limit:] for namespace, all_waiting in waiting.items() if len(all_waiting) > limit}


def _only_waits(workload: Workload, index: FleetIndex, holdings: Holdings, admissions: Mapping[str, Admission]) -> bool:
    """Return True if the workload has nothing that the controller must keep, release or give back."""
    if workload.state != State.PENDING or workload.deleting or workload.problem or workload.target is not None:
        return False
    if holdings.of(workload.uid) or holdings.withheld(workload.uid) or not HAD_NODES.isdisjoint(workload.status):
        return False
    admission = admissions.get(workload.uid)
    has_quota = admission is not None and admission.groups > 0
    return not has_quota and not index.templates_of(workload.identity)


def verdict(namespace: str, number: int, limit: int) -> Verdict:
    """Return the verdict about every workload of a namespace beyond the limit; `number` of its workloads wait."""
    text = (
        f"{_limit_text(namespace, limit)}, and {number} waited when this was written: the controller looks for nodes "
        "for this one when earlier ones have left; delete workloads that are not needed, or have the limit raised"
    )
    return Verdict(State.PENDING, Reason.TOO_MANY_WAITING, text)


def _limit_text(namespace: str, limit: int) -> str:
    """Return the part of the message that does not change while other workloads come and go."""
    return f"namespace {namespace} may keep {limit} workloads waiting (--max-waiting-workloads)"


def status_write(workload: Workload, verdict: Verdict, limit: int, now: datetime.datetime) -> list[Action]:
    """Return the write of the workload's status; none if it says so already.

    Its one condition is all that the status has, because each of these objects stays in memory. The count in its
    message stays as it was: otherwise each workload that comes or goes would change thousands of objects.
    """
    ready = condition(workload.status, "Ready")
    is_said = ready.get("reason") == verdict.reason
    if is_said and str(ready.get("message")).startswith(_limit_text(workload.namespace, limit)):
        return []
    waiting_condition = objects.new_condition(
        workload.status, "Ready", False, verdict.reason, verdict.message, now, workload.generation
    )
    status: dict[str, Any] = {
        "state": str(verdict.state),
        "observedGeneration": workload.generation,
        "conditions": [waiting_condition],
    }
    return [WriteWorkloadStatus.of(workload, status, warning=True, owners=frozenset({workload.uid}))]
