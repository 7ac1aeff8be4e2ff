"""What `validate` checks in pods and their namespaces: fields that the API server or the kubelet would refuse. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.manifests import NODE_NAME
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot, named
from neuron_dra.ask.read.views import MetaView
from neuron_dra.ask.validate.specs import ClaimSpec, ManifestProblem
from neuron_dra.ask.why.creating import ADMIN_LABEL
from neuron_dra.ask.world import demand
from neuron_dra.core import releases
from neuron_dra.core.wire import Wire

HOST: Final = "kubernetes.io/hostname"
MODES: Final = ("ExactCount", "All")
SERVED: Final = {
    "DeviceTaintRule": ("v1", "v1beta2", "v1alpha3"),
    "": ("v1", "v1beta2", "v1beta1"),
}
"""The versions of resource.k8s.io by kind; those of all other kinds are under the empty text."""


def of_pod(where: str, pod: Wire) -> Iterator[ManifestProblem]:
    """Yield what is wrong with a pod's claims and its node."""
    pod_view = PodView.of(pod)
    for index, pod_claim in enumerate(pod_view.spec.resource_claims):
        if pod_claim.source is not None:
            text = (
                f"spec.resourceClaims[{index}].source was removed in Kubernetes 1.31: write resourceClaimName or "
                "resourceClaimTemplateName in its place, beside name (neuron-dra migrate does)"
            )
            yield ManifestProblem(where, "ClaimSourceRemoved", text)
    node = pod_view.metadata.annotations.get(NODE_NAME)
    if node and demand.wants_devices(pod):
        text = (
            f"spec.nodeName is {node}: the scheduler does not see such a pod, and nothing allocates its claims; "
            f"write nodeSelector: {HOST}: {node}"
        )
        yield ManifestProblem(where, "SchedulerBypassed", text)


def numbers(where: str, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Yield modes and numbers of requests that the API server rejects."""
    for name, alternative in spec.alternatives():
        mode, count = alternative.allocation_mode or "ExactCount", alternative.count
        if mode not in MODES:
            yield ManifestProblem(
                where, "RequestRejected", f"request {name}: allocationMode: {mode}: write ExactCount or All"
            )
        elif mode == "All" and count is not None:
            yield ManifestProblem(
                where, "RequestRejected", f"request {name}: allocationMode: All has no count: {count}"
            )
        elif count is not None and count < 1:
            yield ManifestProblem(where, "RequestRejected", f"request {name}: count: {count}: write a number from 1 on")


def admin_access(objects: Snapshot, where: str, namespace: str, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Yield adminAccess in a namespace that is known to lack the label for it."""
    raw_namespace = objects.get("Namespace", namespace)
    if raw_namespace is None or MetaView.of(raw_namespace["metadata"]).labels.get(ADMIN_LABEL) == "true":
        return
    for name, alternative in spec.alternatives():
        if alternative.admin_access:
            text = (
                f"request {name}: the API server rejects adminAccess in namespace {namespace}, whose label "
                f"{ADMIN_LABEL}=true is missing"
            )
            yield ManifestProblem(where, "AdminAccessRefused", text)


def versions(items: Iterable[Wire]) -> Iterator[ManifestProblem]:
    """Yield objects of versions of resource.k8s.io that no supported API server has."""
    for raw_object in items:
        group, slash, version = str(raw_object.get("apiVersion", "")).partition("/")
        served = SERVED.get(str(raw_object["kind"]), SERVED[""])
        if slash and group == "resource.k8s.io" and version not in served:
            text = f"apiVersion: {group}/{version} is not served by Kubernetes 1.34 and later: write {group}/v1"
            yield ManifestProblem(f"{raw_object['kind']} {raw_object['metadata']['name']}", "VersionUnknown", text)


def shared(pods: Sequence[Wire]) -> Iterator[ManifestProblem]:
    """Yield claims that several pods share, though these must be on several nodes: a claim has devices of one node."""
    by_owner = _users_of_claims(pods, lambda meta: str(meta.annotations.get("owner")))
    for (owner, claim), users in by_owner.items():
        if len(users) > 1 and _apart(users[0]):
            text = (
                f"its {len(users)} pods may not share a node, and share the claim {claim}, whose devices are of one "
                "node: only one of them can run; write resourceClaimTemplateName, so that each pod gets a claim"
            )
            yield ManifestProblem(owner or named(users[0]), "SharedClaimOneNode", text)


def unprepared(objects: Snapshot, pods: Sequence[Wire], version: tuple[int, int] | None) -> Iterator[ManifestProblem]:
    """Yield claims that several pods share, where the kubelet may unprepare one that a pod still uses.

    A claim that the manifests do not have counts as one for Neuron devices.
    """
    fault = releases.numbered(releases.UNPREPARES_SHARED)
    if version is not None and not fault.is_in((*version, releases.NEWEST_PATCH)):
        return
    users = _users_of_claims(pods, lambda meta: meta.namespace)
    for (namespace, name), sharing in users.items():
        claim = objects.get("ResourceClaim", name, namespace)
        claim_view = ClaimView.of(claim)
        is_concerned = claim is None or demand.is_ours(objects, claim_view) or demand.has_interfaces(claim_view)
        if len(sharing) > 1 and is_concerned:
            owner = str(PodView.of(sharing[0]).metadata.annotations.get("owner") or named(sharing[0]))
            text = (
                f"{len(sharing)} pods share the claim {name}. In kubelets before {fault.fixed_text}, {fault.breaks}: "
                f"kubernetes/kubernetes#{fault.issue}. Write resourceClaimTemplateName, so that each pod gets a claim; "
                "put programs that share devices into one pod; or upgrade the kubelets"
            )
            yield ManifestProblem(owner, "SharedClaimUnprepared", text, warning=True)


def _users_of_claims(pods: Iterable[Wire], group: Callable[[MetaView], str]) -> Mapping[tuple[str, str], list[Wire]]:
    """Return the pods that name a claim, by the group of the pod and the name of the claim."""
    users: dict[tuple[str, str], list[Wire]] = defaultdict(list)
    for pod in pods:
        pod_view = PodView.of(pod)
        for pod_claim in pod_view.spec.resource_claims:
            if pod_claim.resource_claim_name:
                users[group(pod_view.metadata), pod_claim.resource_claim_name].append(pod)
    return users


def _apart(pod: Wire) -> bool:
    """Return True if pods like this one may not share a node."""
    pod_view = PodView.of(pod)
    apart = pod_view.spec.affinity.pod_anti_affinity
    for term in apart.required if apart is not None else ():
        match_labels = term.label_selector.match_labels
        same = all(pod_view.metadata.labels.get(key) == value for key, value in match_labels.items())
        if term.topology_key == HOST and match_labels and same:
            return True
    return False
