"""Finds out why pods of an Allocated workload do not start: unschedulable, or no network between groups. Pure.

A reservation covers Neuron devices only. If other pods use up the CPU, memory or EFA interfaces of a reserved node, the
job cannot start although its workload is Allocated. Only the condition PodScheduled of the pods shows that.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final

from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.wire import Wire
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Starting, scheduling_refusal, shortened

PATIENCE: Final = datetime.timedelta(minutes=1)
"""The time for which a pod must be unschedulable: the scheduler may not have seen the newest slices."""
MESSAGE_QUOTED: Final = 300
"""The number of quoted characters of the scheduler's message."""


def look_at(view: View) -> Starting | None:
    """Return what to read of a workload's pods; None if nothing, or in an outage.

    Pods are read only if a Bound node is idle: that is rare, because a job that runs uses all its nodes. With several
    groups one running pod is read too, to check that it has an EFA claim.
    """
    workload, sight = view.workload, view.sight
    bound = [
        reservation.allocation
        for reservation in view.held.live().values()
        if reservation.allocation.phase is Phase.BOUND
    ]
    if not bound or workload.deleting or workload.restarting or sight.outage is not None:
        return None
    nodes = [node_name for allocation in bound for node_name in allocation.nodes]
    idle = tuple(
        sorted(node_name for node_name in nodes if node_name not in sight.index.in_use and sight.is_ready(node_name))
    )
    used = (use for allocation in bound for use in sight.own_uses(allocation)) if workload.count > 1 else ()
    pod = next((pod_name for use in used for pod_name, _ in use.pods), None)
    if not (idle or pod):
        return None
    return Starting(workload.namespace, workload.name, workload.uid, workload.template_name, workload.count, idle, pod)


def unschedulable(pods: Iterable[Wire], starting: Starting, now: datetime.datetime) -> str:
    """Return a message if pods of the workload cannot be scheduled although its nodes are idle; else empty.

    `pods` are objects of the API server. Only pods that use the workload's template count, and only if they have been
    unschedulable for PATIENCE. The message quotes the scheduler's message about the first pod by name.
    """
    messages_by_pod = {pod["metadata"]["name"]: message for pod, message in refused(pods, starting, now)}
    if not messages_by_pod:
        return ""
    first_pod = min(messages_by_pod)
    how_many = "1 pod" if len(messages_by_pod) == 1 else f"{len(messages_by_pod)} pods"
    return (
        f"{how_many} cannot be scheduled although reserved nodes are idle "
        f"({shortened(starting.idle)}): other pods may have taken the CPU, memory or EFA interfaces there; "
        f"{starting.namespace}/{first_pod}: {messages_by_pod[first_pod]}"
    )


def refused(pods: Iterable[Wire], starting: Starting, now: datetime.datetime) -> list[tuple[Wire, str]]:
    """Return the pods of the template that have been unschedulable for PATIENCE, each with the scheduler's message."""
    refused_pods = []
    for pod in pods:
        message = _refusal(pod, starting.template, now)
        if message:
            refused_pods.append((pod, message))
    return refused_pods


def claims_of(pod: Wire, template: str) -> list[str]:
    """Return the names of a pod's claims that were made from this template."""
    requested_names = set()
    for pod_claim in (pod.get("spec") or {}).get("resourceClaims") or []:
        if pod_claim.get("resourceClaimTemplateName") == template:
            requested_names.add(pod_claim.get("name"))
    claim_names = []
    for claim_status in (pod.get("status") or {}).get("resourceClaimStatuses") or []:
        if claim_status.get("name") in requested_names and claim_status.get("resourceClaimName"):
            claim_names.append(str(claim_status["resourceClaimName"]))
    return claim_names


def is_of_former(claim: Wire, starting: Starting) -> bool:
    """Return True if a claim waits for the devices of an earlier workload with this name.

    No device can satisfy it: it names a UID, which never comes back. This happens to pods that existed while their
    workload was replaced, such as those of a job that was suspended for a moment.
    """
    workload_name, workload_uid = decode.workload_named((claim.get("spec") or {}).get("devices") or {})
    is_allocated = bool((claim.get("status") or {}).get("allocation"))
    return not is_allocated and workload_name == starting.name and workload_uid not in (None, starting.uid)


def former_message(starting: Starting) -> str:
    """Return the message of the Event about the eviction of such a pod."""
    return (
        f"evicted because its claim is for an earlier NeuronUltraServerWorkload {starting.namespace}/{starting.name}, "
        "which is gone: no device can satisfy it; the pod that takes its place gets a claim of the present one"
    )


def _refusal(pod: Wire, template: str, now: datetime.datetime) -> str:
    """Return the scheduler's message about a pod of this template that it cannot schedule; else empty."""
    meta, spec, scheduled = pod.get("metadata") or {}, pod.get("spec") or {}, scheduling_refusal(pod)
    template_names = [pod_claim.get("resourceClaimTemplateName") for pod_claim in spec.get("resourceClaims") or []]
    if template not in template_names or not scheduled:
        return ""
    if decode.time(scheduled.get("lastTransitionTime") or meta.get("creationTimestamp")) + PATIENCE > now:
        return ""
    return str(scheduled.get("message") or "unschedulable")[:MESSAGE_QUOTED]


def lacks_network(pod: Wire, template: str) -> bool:
    """Return True if the pod has no other claim, and no container requests EFA as an extended resource.

    Another claim may be for EFA interfaces: its driver decides that, so it is not an error.
    """
    spec = pod.get("spec") or {}
    if any(pod_claim.get("resourceClaimTemplateName") != template for pod_claim in spec.get("resourceClaims") or []):
        return False
    limited_resources = [
        ((container.get("resources") or {}).get("limits") or {}).keys() for container in spec.get("containers") or []
    ]
    return not any("efa" in str(resource_name) for names in limited_resources for resource_name in names)


def network_advice(starting: Starting) -> str:
    """Return the message of a workload whose groups have no network between them."""
    return (
        f"serverCount is {starting.count}, and pod {starting.namespace}/{starting.pod} has no claim for EFA "
        "interfaces: ranks in different groups cannot reach each other over EFA; add a claim with deviceClassName "
        "efa.networking.k8s.aws to the pods, as in deploy/examples/ultraservers/my-training-job.yaml"
    )
