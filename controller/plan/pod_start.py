"""What the pods of a workload show: that they cannot be scheduled to its nodes, or that groups have no network. Pure.

A reservation keeps Neuron devices. CPU, memory and EFA interfaces of a reserved node are anybody's: when other pods
take them, the job cannot start although its workload is Allocated. Only the scheduler's words in the pods say so.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

from controller.observe import decode
from controller.observe.model import (
    Starting,
    Wire,
    Workload,
    condition,
    shortened,
)
from controller.plan.context import PlanningContext
from neuron_dra.core.ultraserver import Phase

PATIENCE: Final = datetime.timedelta(minutes=1)
"""A pod is unschedulable for so long before it counts: the scheduler may not have seen the newest slices."""
SCHEDULERS_WORDS: Final = 300
"""So many characters of the scheduler's message are repeated."""


def look_at(context: PlanningContext, workload: Workload) -> Starting | None:
    """Return what is to be read of a workload's pods; None while nothing is, or in an outage."""
    holdings, uses = context.holdings, context.snapshot.uses
    bound = [one.allocation for one in holdings.live(workload.uid).values() if one.allocation.phase is Phase.BOUND]
    if not bound or workload.deleting or workload.restarting or context.outage is not None:
        return None
    nodes = [name for allocation in bound for name in allocation.nodes]
    idle = tuple(sorted(name for name in nodes if name not in holdings.in_use and holdings.is_ready(name)))
    pod = None
    if workload.count > 1:
        own = (use for name in nodes for use in uses(name) if use.workload_uid == workload.uid)
        pod = next((name for use in own for name, _ in use.pods), None)
    if not (idle or pod):
        return None
    return Starting(workload.namespace, workload.name, workload.uid, workload.template_name, workload.count, idle, pod)


def unschedulable(pods: Iterable[Wire], starting: Starting, now: datetime.datetime) -> str:
    """Say that pods of the workload cannot be scheduled although nodes of it are idle; empty if that is not so."""
    found = {pod["metadata"]["name"]: said for pod in pods if (said := _refusal(pod, starting.template, now))}
    if not found:
        return ""
    first = min(found)
    return (
        f"{len(found)} pod{'s' if len(found) > 1 else ''} cannot be scheduled although reserved nodes are idle "
        f"({shortened(starting.idle)}): other pods may have taken the CPU, memory or EFA interfaces there; "
        f"{starting.namespace}/{first}: {found[first]}"
    )


def _refusal(pod: Wire, template: str, now: datetime.datetime) -> str:
    """What the scheduler says of a pod that it cannot place; empty for others, and for pods of other templates."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    asked = [each.get("resourceClaimTemplateName") for each in spec.get("resourceClaims") or []]
    if template not in asked or spec.get("nodeName") or meta.get("deletionTimestamp"):
        return ""
    said = condition(status, "PodScheduled")
    if (said.get("status"), said.get("reason")) != ("False", "Unschedulable"):
        return ""  # one with scheduling gates waits for somebody else
    if decode.time(said.get("lastTransitionTime") or meta.get("creationTimestamp")) + PATIENCE > now:
        return ""
    return str(said.get("message") or "unschedulable")[:SCHEDULERS_WORDS]


def lacks_network(pod: Wire, template: str) -> bool:
    """The pod has no claim besides that of the workload, and no container asks for EFA as an extended resource."""
    spec = pod.get("spec") or {}
    if any(each.get("resourceClaimTemplateName") != template for each in spec.get("resourceClaims") or []):
        return False
    asked = [((each.get("resources") or {}).get("limits") or {}).keys() for each in spec.get("containers") or []]
    return not any("efa" in str(name) for names in asked for name in names)


def network_advice(starting: Starting) -> str:
    """Say that groups of the workload have no network between them."""
    return (
        f"serverCount is {starting.count}, and pod {starting.namespace}/{starting.pod} has no claim for EFA "
        "interfaces: ranks in different groups cannot reach each other over EFA; add a claim with deviceClassName "
        "efa.networking.k8s.aws to the pods, as in deploy/examples/ultraservers/my-training-job.yaml"
    )
