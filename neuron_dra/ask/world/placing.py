"""What a pod that was placed leaves in the cluster. Pure."""

from __future__ import annotations

from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.scheduler import Placement


def placed_objects(world: World, pod: Wire, outcome: Placement) -> list[Wire]:
    """Return the pod with its node, and its claims with their allocations."""
    status = dict(pod.get("status") or {})
    made = list(status.get("resourceClaimStatuses") or ())
    objects: list[Wire] = []
    for each in world.claims_of(pod):
        if each.claim is None:
            continue
        name = each.claim["metadata"]["name"]
        allocation = outcome.allocations.get(name) or (each.claim.get("status") or {}).get("allocation")
        users = [*((each.claim.get("status") or {}).get("reservedFor") or ())]
        users.append({"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"].get("uid") or ""})
        objects.append({**each.claim, "status": {"allocation": allocation, "reservedFor": users}})
        if not each.exists and each.entry != "limits":
            made.append({"name": each.entry, "resourceClaimName": name})
        elif not each.exists:
            status["extendedResourceClaimStatus"] = {"resourceClaimName": name}
    status = {**status, "resourceClaimStatuses": made}
    objects.append({**pod, "spec": {**pod["spec"], "nodeName": outcome.node}, "status": status})
    return objects
