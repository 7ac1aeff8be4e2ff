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
    for each in world.claims_of(pod):
        if not (each.claim_name or each.template_name) and _has_source(pod, each.entry):
            return ClaimProblem("ClaimSourceRemoved", each)
        if not each.exists and _admin_refused(world, pod, each):
            return ClaimProblem("AdminAccessRefused", each)
        if each.exists:
            if each.seen.metadata.deletion_timestamp:
                return ClaimProblem("ClaimDeleted", each)
            if each.template_name and not _owned(each, pod):
                return ClaimProblem("ClaimOfAnother", each)
        elif each.template_name and each.template is None:
            return ClaimProblem("TemplateMissing", each)
        elif each.claim is None or (each.claim_name and each.template_name):
            return ClaimProblem("ClaimMissing", each)
        elif (over := _quota(world, each, pod)) is not None:
            return over
    return None


def _has_source(pod: Wire, entry: str) -> bool:
    """Return True if a pod names its claim as before Kubernetes 1.31."""
    named = [each for each in PodView.of(pod).spec.resource_claims if each.name == entry]
    return any(each.source is not None for each in named)


def _admin_refused(world: World, pod: Wire, claim: PodClaim) -> bool:
    """Return True if the namespace is known to lack the label that adminAccess needs."""
    namespace = world.snapshot.get("Namespace", PodView.of(pod).metadata.namespace)
    if namespace is None or MetaView.of(namespace["metadata"]).labels.get(ADMIN_LABEL) == "true":
        return False
    return any(each.exactly is not None and each.exactly.admin_access for each in claim.seen.requests)


def _owned(claim: PodClaim, pod: Wire) -> bool:
    """Return False if the claim is seen to belong to another pod: one of this name, but another UID."""
    uid = PodView.of(pod).metadata.uid
    owners = claim.seen.metadata.owners("Pod")
    return not uid or not owners or uid in [owner.uid for owner in owners]


def _quota(world: World, claim: PodClaim, pod: Wire) -> ClaimProblem | None:
    namespace = PodView.of(pod).metadata.namespace
    wanted = _counted(claim.seen)
    for item in world.snapshot.all("ResourceQuota"):
        quota = QuotaView.of(item)
        if quota.metadata.namespace != namespace:
            continue
        hard, used = quota.spec.hard, quota.status.used
        for resource, amount in wanted.items():
            if resource in hard and _number(used.get(resource)) + amount > _number(hard[resource]):
                return ClaimProblem("QuotaExceeded", claim, item, resource)
    return None


def _counted(claim: ClaimView) -> Mapping[str, int]:
    """Return what a new claim counts for in a ResourceQuota: the claim, and devices by DeviceClass at most."""
    found: Counter[str] = Counter({CLAIMS_QUOTA: 1})
    for request in claim.requests:
        most: dict[str, int] = {}
        for each in request.alternatives:
            number = MOST_OF_A_CLAIM if each.wants_all else each.number
            name = f"{each.device_class_name}{CLASS_QUOTA}"
            most[name] = max(most.get(name, 0), number)
        found.update(most)
    return found


def _number(text: object) -> int:
    try:
        return int(quantity.parse(str(text or 0)).value)
    except ValueError:
        return 0


def quota_needed(found: ClaimProblem, quota: Wire) -> dict[str, Any]:
    """Return the quota, what it allows of its resource, what is used, and what the claim adds."""
    seen = QuotaView.of(quota)
    return {
        "quota": quota,
        "namespace": seen.metadata.namespace,
        "name": seen.metadata.name,
        "resource": found.resource,
        "hard": _number(seen.spec.hard.get(found.resource)),
        "used": _number(seen.status.used.get(found.resource)),
        "more": _counted(found.claim.seen)[found.resource],
    }


def workload_of(world: World, pod: Wire, claim: PodClaim) -> WorkloadView | None:
    """Return the NeuronUltraServerWorkload that makes the claim's template, or None."""
    namespace = PodView.of(pod).metadata.namespace
    for item in world.snapshot.all("NeuronUltraServerWorkload"):
        workload = WorkloadView.of(item)
        template = workload.spec.resource_claim_template.name
        if workload.metadata.namespace == namespace and template and template == claim.template_name:
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
