"""Who uses a claim: the pods and PodGroups that it is reserved for, and whether they are still there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuron_dra.ask.read import manifests
from neuron_dra.ask.read.claim_views import ClaimUsers, ClaimView, ConsumerView
from neuron_dra.ask.read.pod_views import PodPlace, PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import OwnerView
from neuron_dra.ask.render import words
from neuron_dra.core.wire import Wire


def holders(snapshot: Snapshot, claim: Wire) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the pods that a claim is reserved for, and those of its PodGroups."""
    claim_users = ClaimUsers.of(claim)
    return _pods(snapshot, claim_users), claim_users.groups


def groups(claim: Wire) -> tuple[str, ...]:
    """Return the names of the PodGroups that a claim is reserved for."""
    return ClaimUsers.of(claim).groups


def pods(snapshot: Snapshot, claim: Wire) -> tuple[str, ...]:
    """Return the names of the pods that a claim is reserved for, those of its PodGroups among them."""
    return _pods(snapshot, ClaimUsers.of(claim))


def _pods(snapshot: Snapshot, claim_users: ClaimUsers) -> tuple[str, ...]:
    named = [consumer.name for consumer in claim_users.consumers("pods")]
    if claim_users.groups:
        named += sorted(_members(snapshot, claim_users.metadata.namespace, claim_users.groups), key=words.natural)
    return tuple(dict.fromkeys(named))


def _members(snapshot: Snapshot, namespace: str, group_names: Sequence[str]) -> Iterator[str]:
    for pod in snapshot.all("Pod"):
        pod_place = PodPlace.of(pod)
        if pod_place.metadata.namespace == namespace and pod_place.group in group_names:
            yield pod_place.metadata.name


def group_of(pod: Wire) -> str:
    """Return the PodGroup of a pod; empty if it has none."""
    return PodPlace.of(pod).group


def naming(snapshot: Snapshot, claim: Wire) -> Iterator[Wire]:
    """Yield the pods that have not ended and that name a claim, though it may not be reserved for them."""
    meta = ClaimUsers.of(claim).metadata
    for pod in snapshot.all("Pod"):
        pod_place = PodPlace.of(pod)
        if pod_place.metadata.namespace != meta.namespace or pod_place.has_ended:
            continue
        if meta.name in PodView.of(pod).claim_names:
            yield pod


def leftover(snapshot: Snapshot, claim: Wire) -> str:
    """Return why a claim with devices should have been released, as in "for pod p, which has ended"; else empty.

    All pods that it is reserved for, or that own it, must be seen to be gone or to have ended. A claim of no pod at all
    is nobody's leftover: it keeps its devices until it is deleted.
    """
    claim_users = ClaimUsers.of(claim)
    if "Pod" in snapshot.left_out or claim_users.consumers("podgroups") or not claim_users.is_allocated:
        return ""
    consumers: Sequence[ConsumerView | OwnerView] = claim_users.consumers("pods") or claim_users.metadata.owners("Pod")
    texts = [_gone(snapshot, claim_users.metadata.namespace, consumer) for consumer in consumers]
    if not texts or not all(texts):
        return ""
    return f"for pod {consumers[0].name}, which {texts[0]}"


def _gone(snapshot: Snapshot, namespace: str, consumer: ConsumerView | OwnerView) -> str:
    """Return how a pod is known to use its claims no longer; empty if it may use them."""
    pod = snapshot.get("Pod", consumer.name, namespace)
    if pod is None:
        return "no longer exists"
    pod_place = PodPlace.of(pod)
    if pod_place.metadata.uid.startswith(manifests.SIMULATED):
        return ""  # the pod of a manifest hides the stored one, which may run
    if consumer.uid and pod_place.metadata.uid and pod_place.metadata.uid != consumer.uid:
        return "no longer exists"
    if pod_place.has_ended:
        return "has ended"
    return ""


def classes(snapshot: Snapshot) -> Iterator[str]:
    """Yield the DeviceClass of each request of the stored claims and templates."""
    claims = list(snapshot.all("ResourceClaim"))
    for template in snapshot.all("ResourceClaimTemplate"):
        claims.append({"metadata": template["metadata"], "spec": template["spec"].get("spec") or {}})
    for claim in claims:
        for request in ClaimView.of(claim).requests:
            for _, alternative in request.named_alternatives:
                yield alternative.device_class_name
