"""PodDisruptionBudgets, as the Eviction API applies them to one pod. Pure.

Source: pkg/registry/core/pod/storage/eviction.go. Pods that have ended or wait are always evicted. With several
budgets for a pod the API server rejects its eviction. A budget that its controller has not seen yet allows nothing.
"""

from __future__ import annotations

import msgspec

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import BudgetView
from neuron_dra.ask.world import unseen
from neuron_dra.core import labels
from neuron_dra.core.wire import Wire


def objection(snapshot: Snapshot, pod: Wire) -> str:
    """Return why the pod may not be evicted now; empty if it may."""
    pod_view = PodView.of(pod)
    if pod_view.has_ended or pod_view.status.phase == "Pending" or pod_view.metadata.deletion_timestamp:
        return ""
    if why := unseen.kinds(snapshot).get("PodDisruptionBudget"):
        return f"its PodDisruptionBudgets are unknown ({why})"
    budgets = [BudgetView.of(raw_budget) for raw_budget in snapshot.all("PodDisruptionBudget")]
    in_namespace = [budget for budget in budgets if budget.metadata.namespace == pod_view.metadata.namespace]
    selecting = [budget for budget in in_namespace if _selects(budget, pod_view)]
    if len(selecting) > 1:
        return f"PodDisruptionBudgets {' and '.join(budget.metadata.name for budget in selecting[:2])} both select it"
    if not selecting or not _blocks(selecting[0], pod_view):
        return ""
    return f"PodDisruptionBudget {selecting[0].metadata.name} allows no disruption now"


def _selects(budget: BudgetView, pod: PodView) -> bool:
    """Return True if the budget is about the pod: an empty selector selects all of the namespace."""
    try:
        return labels.of_object(msgspec.to_builtins(budget.spec.selector))(pod.metadata.labels)
    except ValueError:
        return True  # an operator of a later Kubernetes


def _blocks(budget: BudgetView, pod: PodView) -> bool:
    spec, status = budget.spec, budget.status
    if not pod.is_ready:
        if spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return False
        if status.current_healthy >= status.desired_healthy > 0:
            return False
    late = status.observed_generation < budget.metadata.generation
    return late or status.disruptions_allowed < 1
