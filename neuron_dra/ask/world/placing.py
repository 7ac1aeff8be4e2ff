"""What a pod that was placed leaves in the cluster. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.claim_views import RawClaimStatus
from neuron_dra.ask.read.pod_views import PodView, RawPodStatus
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate.scheduler import Placement


def placed_objects(world: World, pod: Wire, outcome: Placement) -> list[Wire]:
    """Return the pod with its node, and its claims with their allocations."""
    meta = PodView.of(pod).metadata
    user = {"resource": "pods", "name": meta.name, "uid": meta.uid}
    new_claim_statuses: list[Wire] = []
    more: Obj = {}
    objects: list[Wire] = []
    for pod_claim in world.claims_of(pod):
        if pod_claim.claim is None:
            continue
        name = pod_claim.claim["metadata"]["name"]
        status = RawClaimStatus.of(pod_claim.claim.get("status"))
        allocation = outcome.allocations.get(name) or status.allocation
        reserved = [*status.reserved_for, user]
        objects.append({**pod_claim.claim, "status": {"allocation": allocation, "reservedFor": reserved}})
        if not pod_claim.exists and pod_claim.entry != FROM_LIMITS:
            new_claim_statuses.append({"name": pod_claim.entry, "resourceClaimName": name})
        elif not pod_claim.exists:
            more = {"extendedResourceClaimStatus": {"resourceClaimName": name}}
    before = pod.get("status") or {}
    names = [*RawPodStatus.of(before).resource_claim_statuses, *new_claim_statuses]
    placed = {**before, **more, "resourceClaimStatuses": names}
    objects.append({**pod, "spec": {**pod["spec"], "nodeName": outcome.node}, "status": placed})
    return objects
