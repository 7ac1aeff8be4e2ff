"""What a pod that was placed leaves in the cluster. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.claim_views import RawClaimStatus
from neuron_dra.ask.read.pod_views import PodView, RawPodStatus
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate.scheduler import Placement


def placed_objects(world: World, pod: Wire, outcome: Placement) -> list[Wire]:
    """Return the pod with its node, and its claims with their allocations."""
    meta = PodView.of(pod).metadata
    user = {"resource": "pods", "name": meta.name, "uid": meta.uid}
    made: list[Wire] = []
    more: Obj = {}
    objects: list[Wire] = []
    for each in world.claims_of(pod):
        if each.claim is None:
            continue
        name = each.claim["metadata"]["name"]
        status = RawClaimStatus.of(each.claim.get("status"))
        allocation = outcome.allocations.get(name) or status.allocation
        reserved = [*status.reserved_for, user]
        objects.append({**each.claim, "status": {"allocation": allocation, "reservedFor": reserved}})
        if not each.exists and each.entry != "limits":
            made.append({"name": each.entry, "resourceClaimName": name})
        elif not each.exists:
            more = {"extendedResourceClaimStatus": {"resourceClaimName": name}}
    before = pod.get("status") or {}
    names = [*RawPodStatus.of(before).resource_claim_statuses, *made]
    placed = {**before, **more, "resourceClaimStatuses": names}
    objects.append({**pod, "spec": {**pod["spec"], "nodeName": outcome.node}, "status": placed})
    return objects
