"""Why a pod's claims do not exist: a missing template or claim, a quota, or a controller that did not create them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.read import views
from neuron_dra.ask.read.views import ConditionView, QuotaView, WorkloadView
from neuron_dra.ask.render.findings import Facts
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import quantity

ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
CLAIMS_QUOTA: Final = "count/resourceclaims.resource.k8s.io"
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
            if each.claim is not None and each.claim["metadata"].get("deletionTimestamp"):
                return ClaimProblem("ClaimDeleted", each)
            if each.claim is not None and each.template_name and not _owned(each.claim, pod):
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
    return any("source" in each for each in pod["spec"].get("resourceClaims") or () if each["name"] == entry)


def _admin_refused(world: World, pod: Wire, claim: PodClaim) -> bool:
    """Return True if the namespace is known to lack the label that adminAccess needs."""
    namespace = world.snapshot.get("Namespace", pod["metadata"].get("namespace") or "")
    if namespace is None or (namespace["metadata"].get("labels") or {}).get(ADMIN_LABEL) == "true":
        return False
    requests = (((claim.claim or {}).get("spec") or {}).get("devices") or {}).get("requests") or ()
    return any((each.get("exactly") or {}).get("adminAccess") for each in requests)


def _owned(claim: Wire, pod: Wire) -> bool:
    """Return False if the claim is seen to belong to another pod: one of this name, but another UID."""
    uid = pod["metadata"].get("uid")
    owners = [each for each in claim["metadata"].get("ownerReferences") or () if each.get("kind") == "Pod"]
    return not uid or not owners or any(owner.get("uid") == uid for owner in owners)


def _quota(world: World, claim: PodClaim, pod: Wire) -> ClaimProblem | None:
    namespace = pod["metadata"].get("namespace") or ""
    wanted = _counted(claim.claim or {})
    for item in world.snapshot.all("ResourceQuota"):
        quota = views.of(QuotaView, item)
        if quota.metadata.namespace != namespace:
            continue
        hard, used = quota.spec.hard, quota.status.used
        for resource, amount in wanted.items():
            if resource in hard and _number(used.get(resource)) + amount > _number(hard[resource]):
                return ClaimProblem("QuotaExceeded", claim, item, resource)
    return None


def _counted(claim: Wire) -> Mapping[str, int]:
    """Return what a new claim counts for in a ResourceQuota: the claim, and devices by DeviceClass at most."""
    found: Counter[str] = Counter({CLAIMS_QUOTA: 1})
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        most: dict[str, int] = {}
        for each in request.get("firstAvailable") or [request.get("exactly") or {}]:
            number = int(each.get("count") or 1) if each.get("allocationMode") != "All" else 32
            name = f"{each.get('deviceClassName')}{CLASS_QUOTA}"
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
    seen = views.of(QuotaView, quota)
    return {
        "quota": quota,
        "namespace": seen.metadata.namespace,
        "name": seen.metadata.name,
        "resource": found.resource,
        "hard": _number(seen.spec.hard.get(found.resource)),
        "used": _number(seen.status.used.get(found.resource)),
        "more": _counted(found.claim.claim or {})[found.resource],
    }


def workload_of(world: World, pod: Wire, claim: PodClaim) -> WorkloadView | None:
    """Return the NeuronUltraServerWorkload that makes the claim's template, or None."""
    namespace = pod["metadata"].get("namespace") or ""
    for item in world.snapshot.all("NeuronUltraServerWorkload"):
        workload = views.of(WorkloadView, item)
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
