"""Which pods use a claim. Pure.

A claim is usually reserved for pods, and names them. It may be reserved for a PodGroup instead, as one consumer for all
pods of the group, which Kubernetes removes only when the PodGroup is deleted. Then the pods must be found: those of the
group, in the claim's namespace, on the claim's node. `apply/claim_pods` reads them while a plan asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.observed.model import ClaimUse, Pods
from neuron_dra.planner.observed.projections import Pod

ENDED: Final = ("Succeeded", "Failed")


def of(sight: Sight, use: ClaimUse) -> Pods:
    """Return name and UID of the pods that use a claim, and note that those must be read that it does not name."""
    if not use.others:
        return use.pods
    sight.shared.append(use)
    return (*use.pods, *sight.known.shared_by.get(use.ref, ()))


def are_known(sight: Sight, use: ClaimUse) -> bool:
    """Return False if the claim does not name its pods, and nobody has read them yet."""
    return not use.others or use.ref in sight.known.shared_by


def users(use: ClaimUse, pods: Iterable[Pod]) -> Pods:
    """Return which of these pods, all on the claim's nodes, use a claim that is reserved for something else.

    They name the claim, or they name claims and are of a PodGroup that it is reserved for. Pods that have ended hold
    nothing.
    """
    pod_groups = {consumer.name for consumer in use.others if consumer.is_pod_group}
    using_pods = []
    for pod in pods:
        if pod.metadata.namespace != use.namespace or (pod.status is not None and pod.status.phase in ENDED):
            continue
        if use.name in pod.claims or (_group(pod) in pod_groups and _has_claims(pod)):
            using_pods.append((pod.metadata.name, pod.metadata.uid))
    return tuple(sorted(using_pods))


def _group(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group if pod.spec is not None else None
    return group.pod_group_name if group is not None else None


def _has_claims(pod: Pod) -> bool:
    return pod.spec is not None and bool(pod.spec.resource_claims)
