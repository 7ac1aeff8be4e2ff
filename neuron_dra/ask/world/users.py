"""Who uses a claim: the pods and PodGroups that it is reserved for, and whether they are still there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.core.wire import Wire

ENDED: Final = ("Succeeded", "Failed")
"""Phases of pods whose claims kube-controller-manager releases."""


def entries(claim: Wire, resource: str) -> list[Wire]:
    """Return the consumers of a kind, `pods` or `podgroups`, that a claim is reserved for."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return [each for each in reserved if each.get("resource") == resource]


def groups(claim: Wire) -> tuple[str, ...]:
    """Return the names of the PodGroups that a claim is reserved for."""
    return tuple(each["name"] for each in entries(claim, "podgroups"))


def pods(snapshot: Snapshot, claim: Wire) -> tuple[str, ...]:
    """Return the names of the pods that a claim is reserved for, those of its PodGroups among them."""
    named = [each["name"] for each in entries(claim, "pods")]
    wanted, namespace = groups(claim), claim["metadata"].get("namespace") or ""
    if wanted:
        named += sorted(
            pod["metadata"]["name"]
            for pod in snapshot.all("Pod")
            if (pod["metadata"].get("namespace") or "") == namespace and group_of(pod) in wanted
        )
    return tuple(dict.fromkeys(named))


def group_of(pod: Wire) -> str:
    """Return the PodGroup of a pod; empty if it has none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def naming(snapshot: Snapshot, claim: Wire) -> Iterator[Wire]:
    """Yield the pods that have not ended and that name a claim, though it may not be reserved for them."""
    namespace, name = claim["metadata"].get("namespace") or "", claim["metadata"]["name"]
    for pod in snapshot.all("Pod"):
        if (pod["metadata"].get("namespace") or "") != namespace or _phase(pod) in ENDED:
            continue
        status = pod.get("status") or {}
        made = [each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()]
        made.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
        made += [each.get("resourceClaimName") for each in pod["spec"].get("resourceClaims") or ()]
        if name in made:
            yield pod


def leftover(snapshot: Snapshot, claim: Wire) -> str:
    """Return why a claim with devices should have been released, as in "for pod p, which has ended"; else empty.

    All pods that it is reserved for, or that own it, must be seen to be gone or to have ended. A claim of no pod at all
    is nobody's leftover: it keeps its devices until it is deleted.
    """
    if "Pod" in snapshot.left_out or groups(claim) or not (claim.get("status") or {}).get("allocation"):
        return ""
    owners = [each for each in claim["metadata"].get("ownerReferences") or () if each.get("kind") == "Pod"]
    consumers = entries(claim, "pods") or owners
    texts = [_gone(snapshot, claim, each) for each in consumers]
    if not texts or not all(texts):
        return ""
    return f"for pod {consumers[0]['name']}, which {texts[0]}"


def _gone(snapshot: Snapshot, claim: Wire, consumer: Wire) -> str:
    """Return how a pod is known to use its claims no longer; empty if it may use them."""
    pod = snapshot.get("Pod", str(consumer.get("name")), claim["metadata"].get("namespace") or "")
    uid = consumer.get("uid")
    if pod is None or (uid and pod["metadata"].get("uid") and pod["metadata"]["uid"] != uid):
        return "does not exist any more"
    return "has ended" if _phase(pod) in ENDED else ""


def _phase(pod: Wire) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
