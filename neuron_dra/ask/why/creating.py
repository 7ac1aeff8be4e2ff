"""Why a pod's claims do not exist: a missing template or claim, a quota, or a controller that did not create them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import ConditionView, MetaView, QuotaView, WorkloadView
from neuron_dra.ask.render.findings import Facts
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import quantity

ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
CLAIMS_QUOTA: Final = "count/resourceclaims.resource.k8s.io"
MOST_OF_A_CLAIM: Final = 32
"""Devices that a request for all counts for: the most that a claim can have."""
CLASS_QUOTA: Final = ".deviceclass.resource.k8s.io/devices"


@dataclass(frozen=True, slots=True)
class ClaimProblem:
    """What keeps one claim of a pod from being used. `code` is that of the finding."""

    code: str
    claim: PodClaim
    quota: Wire | None = None
    resource: str = ""


def problem(world: World, pod: Wire) -> ClaimProblem | None:
    """Return the first problem with the claims of a pod, or None. A claim that is yet to be created is none."""
    for pod_claim in world.claims_of(pod):
        if not (pod_claim.claim_name or pod_claim.template_name) and _has_source(pod, pod_claim.entry):
            return ClaimProblem("ClaimSourceRemoved", pod_claim)
        if not pod_claim.exists and _admin_refused(world, pod, pod_claim):
            return ClaimProblem("AdminAccessRefused", pod_claim)
        if pod_claim.exists:
            if pod_claim.seen.metadata.deletion_timestamp:
                return ClaimProblem("ClaimDeleted", pod_claim)
            if pod_claim.template_name and not _owned(pod_claim, pod):
                return ClaimProblem("ClaimOfAnother", pod_claim)
        elif pod_claim.template_name and pod_claim.template is None:
            return ClaimProblem("TemplateMissing", pod_claim)
        elif pod_claim.claim is None or (pod_claim.claim_name and pod_claim.template_name):
            return ClaimProblem("ClaimMissing", pod_claim)
        elif (over := _quota(world, pod_claim, pod)) is not None:
            return over
    return None


def _has_source(pod: Wire, entry: str) -> bool:
    """Return True if a pod names its claim as before Kubernetes 1.31."""
    claim_entries = [claim_entry for claim_entry in PodView.of(pod).spec.resource_claims if claim_entry.name == entry]
    return any(claim_entry.source is not None for claim_entry in claim_entries)


def _admin_refused(world: World, pod: Wire, claim: PodClaim) -> bool:
    """Return True if the namespace is known to lack the label that adminAccess needs."""
    namespace = world.snapshot.get("Namespace", PodView.of(pod).metadata.namespace)
    if namespace is None or MetaView.of(namespace["metadata"]).labels.get(ADMIN_LABEL) == "true":
        return False
    return any(request.exactly is not None and request.exactly.admin_access for request in claim.seen.requests)


def _owned(claim: PodClaim, pod: Wire) -> bool:
    """Return False if the claim is seen to belong to another pod: one of this name, but another UID."""
    uid = PodView.of(pod).metadata.uid
    owners = claim.seen.metadata.owners("Pod")
    return not uid or not owners or uid in [owner.uid for owner in owners]


def _quota(world: World, claim: PodClaim, pod: Wire) -> ClaimProblem | None:
    namespace = PodView.of(pod).metadata.namespace
    amounts = _counted(claim.seen)
    for raw_quota in world.snapshot.all("ResourceQuota"):
        quota = QuotaView.of(raw_quota)
        if quota.metadata.namespace != namespace or is_uncounted(quota):
            continue
        hard, used = quota.spec.hard, quota.status.used
        for resource, amount in amounts.items():
            if resource in hard and _number(used.get(resource)) + amount > _number(hard[resource]):
                return ClaimProblem("QuotaExceeded", claim, raw_quota, resource)
    return None


def is_uncounted(quota: QuotaView) -> bool:
    """Return True for a stored quota without a status: no controller counts for it, and nothing enforces it.

    A quota of a manifest has no status yet, and counts.
    """
    return bool(quota.metadata.creation_timestamp) and not quota.status.hard


def _counted(claim: ClaimView) -> Mapping[str, int]:
    """Return what a new claim counts for in a ResourceQuota: the claim, and devices by DeviceClass at most."""
    amounts: Counter[str] = Counter({CLAIMS_QUOTA: 1})
    for request in claim.requests:
        most: dict[str, int] = {}
        for alternative in request.alternatives:
            number = MOST_OF_A_CLAIM if alternative.wants_all else alternative.number
            name = f"{alternative.device_class_name}{CLASS_QUOTA}"
            most[name] = max(most.get(name, 0), number)
        amounts.update(most)
    return amounts


def _number(text: object) -> int:
    try:
        return int(quantity.parse(str(text or 0)).value)
    except ValueError:
        return 0


def quota_needed(claim_problem: ClaimProblem, quota: Wire) -> dict[str, Any]:
    """Return the quota, what it allows of its resource, what is used, and what the claim adds."""
    quota_view = QuotaView.of(quota)
    return {
        "quota": quota,
        "namespace": quota_view.metadata.namespace,
        "name": quota_view.metadata.name,
        "resource": claim_problem.resource,
        "hard": _number(quota_view.spec.hard.get(claim_problem.resource)),
        "used": _number(quota_view.status.used.get(claim_problem.resource)),
        "more": _counted(claim_problem.claim.seen)[claim_problem.resource],
    }


def workload_of(world: World, pod: Wire, claim: PodClaim) -> WorkloadView | None:
    """Return the NeuronUltraServerWorkload that makes the claim's template, or None."""
    namespace = PodView.of(pod).metadata.namespace
    for raw_workload in world.snapshot.all("NeuronUltraServerWorkload"):
        workload = WorkloadView.of(raw_workload)
        if workload.metadata.namespace == namespace and workload.template_name == claim.template_name:
            return workload
    return None


def state_of(workload: WorkloadView) -> dict[str, Any]:
    """Return what a NeuronUltraServerWorkload that has no template or no nodes yet says of itself."""
    ready = workload.status.condition("Ready") or ConditionView()
    conditions = Facts()
    conditions.add("reason", ready.reason)
    conditions.add("message", ready.message)
    state = workload.status.state or "not handled yet: does the UltraServer controller run?"
    name = f"{workload.metadata.namespace}/{workload.metadata.name}"
    return {"workload": name, "state": state, "conditions": conditions.done()}
