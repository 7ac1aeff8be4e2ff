"""What a pod demands: its claims, existing or as they would be created. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read import node_views
from neuron_dra.ask.read.claim_views import AlternativeView, ClaimTemplateView, ClaimView, DeviceClassView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.world import drivers, extended
from neuron_dra.core import dra_driver, efa, names
from neuron_dra.core.wire import Obj, Wire

PLUGIN_LIMITS: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice")
IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
FROM_LIMITS: Final = "limits"
"""The entry of the claim that the scheduler creates for the limits of a pod."""
A_SLIP: Final = 0.9
"""Names of ten characters resemble each other more than this if one character is wrong, missing or added."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a pod.

    - `entry`: the name in the pod's spec.resourceClaims; FROM_LIMITS for a claim that limits lead to.
    - `claim`: the object, or the one that would be created; None if that cannot be known.
    - `exists`: True if the object is in the snapshot.
    - `template`: the template that it is created from, if any; `template_name` also if the template is missing.
    """

    entry: str
    claim: Wire | None
    exists: bool
    template: Wire | None = None
    template_name: str = ""
    claim_name: str = ""

    @property
    def seen(self) -> ClaimView:
        """The claim's fields; all are absent if the claim is not known."""
        return ClaimView.of(self.claim)


def claims_of(snapshot: Snapshot, pod: Wire) -> list[PodClaim]:
    """Return the claims of a pod in its order."""
    pod_view = PodView.of(pod)
    namespace = pod_view.metadata.namespace
    claim_statuses = pod_view.status.resource_claim_statuses
    claim_name_by_entry = {claim_status.name: claim_status.resource_claim_name for claim_status in claim_statuses}
    pod_claims = []
    for entry in pod_view.spec.resource_claims:
        template_name = entry.resource_claim_template_name
        if template_name:
            template = snapshot.get("ResourceClaimTemplate", template_name, namespace)
        else:
            template = None
        name = entry.resource_claim_name or claim_name_by_entry.get(entry.name, "")
        claim = snapshot.get("ResourceClaim", name, namespace) if name else None
        exists = claim is not None
        if claim is None and template is not None:
            claim = from_template(template, f"{pod_view.metadata.name}-{entry.name}", namespace)
        pod_claims.append(PodClaim(entry.name, claim, exists, template, template_name, name))
    from_limits = _from_limits(snapshot, pod)
    if from_limits is not None:
        pod_claims.append(from_limits)
    return pod_claims


def wants_devices(pod: Wire) -> bool:
    """Return True if a pod has claims, or limits that a DeviceClass serves."""
    return bool(PodView.of(pod).spec.resource_claims) or any(name.startswith(IMPLICIT) for name in limits(pod))


def names_all_claims(pod: Wire) -> bool:
    """Return whether containers name all claims of a pod; reads few fields, for all pods of a cluster."""
    spec = pod["spec"]
    entries = {entry.get("name") for entry in spec.get("resourceClaims") or ()}
    if not entries:
        return True
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            for use in (container.get("resources") or {}).get("claims") or ():
                entries.discard(use.get("name"))
    return not entries


def is_ours(snapshot: Snapshot, claim: ClaimView) -> bool:
    """Return whether a claim has Neuron devices, or requests some by a DeviceClass that selects them by the driver."""
    if claim.is_allocated:
        return any(result.driver == names.DRIVER for result in claim.results)
    for request in claim.requests:
        for alternative in request.alternatives:
            if alternative.device_class_name.endswith(names.DRIVER) or _selects_ours(snapshot, alternative):
                return True
    return False


def has_interfaces(claim: ClaimView) -> bool:
    """Return whether a claim has EFA interfaces, or requests some by their DeviceClass."""
    if claim.is_allocated:
        return any(result.driver == dra_driver.EFA.name for result in claim.results)
    return any(
        alternative.device_class_name == efa.CLASS for request in claim.requests for alternative in request.alternatives
    )


def _selects_ours(snapshot: Snapshot, alternative: AlternativeView) -> bool:
    device_class = DeviceClassView.of(snapshot.get("DeviceClass", alternative.device_class_name))
    selectors = [selector.cel.expression for selector in (*device_class.spec.selectors, *alternative.selectors)]
    return any(names.DRIVER in selector for selector in selectors) and not drivers.foreign(selectors)


def may_mean(snapshot: Snapshot, named: Mapping[str, str], near: str) -> bool:
    """Return whether a pod that names an absent object, by kind, namespace and name, may mean the one called `near`.

    A claim for other devices is meant only if the name has a slip: who writes neuron-claim does not mean efa-claim.
    """
    template = snapshot.get(named["kind"], near, named["namespace"])
    if template is None or named["kind"] != "ResourceClaimTemplate":
        return template is not None
    claim = ClaimView.of(from_template(template, near, named["namespace"]))
    return is_ours(snapshot, claim) or words.likeness(named["name"], near) > A_SLIP


def from_template(template: Wire, name: str, namespace: str) -> Obj:
    """Return the claim that a template makes for a pod."""
    inner = template["spec"]  # as it is: the allocator decodes it
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {**ClaimTemplateView.of(template).spec.metadata, "name": name, "namespace": namespace},
        "spec": inner["spec"],
    }


def limits(pod: Wire) -> Mapping[str, int]:
    """Return the sum of the extended resources that the containers of a pod request, by resource."""
    amount_by_resource: dict[str, int] = {}
    spec = PodView.of(pod).spec
    for container in (*spec.containers, *spec.init_containers):
        resources = container.resources
        for name, amount in {**resources.requests, **resources.limits}.items():
            if "/" in name and str(amount).isdigit():
                amount_by_resource[name] = amount_by_resource.get(name, 0) + int(amount)
    return amount_by_resource


def class_of(snapshot: Snapshot, resource: str) -> str:
    """Return the DeviceClass that serves an extended resource; empty if a device plugin does, or nothing."""
    if resource.startswith(IMPLICIT):
        return resource.removeprefix(IMPLICIT)
    for raw_class in snapshot.all("DeviceClass"):
        class_view = DeviceClassView.of(raw_class)
        if class_view.spec.extended_resource_name == resource:
            return class_view.metadata.name
    return ""


def _from_limits(snapshot: Snapshot, pod: Wire) -> PodClaim | None:
    """Return the claim that the scheduler makes for limits that DeviceClasses serve (Kubernetes 1.36)."""
    requests = extended.requests(pod, lambda resource: class_of(snapshot, resource))
    if not requests:
        return None
    pod_view = PodView.of(pod)
    namespace, name = pod_view.metadata.namespace, pod_view.status.extended_resource_claim_status.resource_claim_name
    existing = snapshot.get("ResourceClaim", name, namespace) if name else None
    implied_claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name or f"{pod_view.metadata.name}-extended-resources", "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
    }
    return PodClaim(FROM_LIMITS, existing or implied_claim, existing is not None, claim_name=name)


def unserved(snapshot: Snapshot, pod: Wire) -> str:
    """Return a resource of the Neuron device plugin that a pod requests, and no node and no DeviceClass serves."""
    for name in limits(pod):
        is_plugin_limit = name in PLUGIN_LIMITS and not class_of(snapshot, name)
        if is_plugin_limit and not any(node_views.offers(node, name) for node in snapshot.all("Node")):
            return name
    return ""


def left_behind(snapshot: Snapshot, resource: str) -> list[str]:
    """Return the nodes on which a device plugin that ended offered a resource: the kubelet leaves 0 of it behind."""
    nodes = []
    for node in snapshot.all("Node"):
        if resource in node_views.allocatable(node):
            nodes.append(node)
    return [node["metadata"]["name"] for node in nodes if not node_views.offers(node, resource)]
