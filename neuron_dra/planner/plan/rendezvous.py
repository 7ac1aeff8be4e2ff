"""Where the Service of each workload should point: to the pod with rank 0. Pure.

The controller finds this pod without a watch of pods: it is in reservedFor of the claim on the first node of group 0.
"""

from __future__ import annotations

from typing import Any, Final

from neuron_dra.core import rendezvous
from neuron_dra.core.ownership import ObjectIdentity, controller_of
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed.model import API_VERSION, GROUP, WORKLOAD_KIND, Meeting
from neuron_dra.planner.plan import claim_pods

MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
OF_SERVICE: Final = "kubernetes.io/service-name"
IPV4: Final = "IPv4"
IPV6: Final = "IPv6"
FAMILIES: Final = (IPV4, IPV6)


def meeting(view: View) -> Meeting | None:
    """Return which pod has rank 0 of a workload.

    None if nothing is reserved for it, if it is being deleted, or as long as the pods of a PodGroup were not read: a
    new leader would take the address of a running pod away.
    """
    workload, first_group = view.workload, view.held.live().get(0)
    if first_group is None or workload.deleting:
        return None
    node = first_group.allocation.nodes[0]
    own_uses = [use for use in view.sight.uses([node]) if use.is_of(first_group.allocation)]
    pods = sorted(pod for use in own_uses for pod in claim_pods.of(view.sight, use))
    if not all(claim_pods.are_known(view.sight, use) for use in own_uses):
        return None
    pod, ready = pods[0] if pods else None, view.sight.is_ready(node)
    return Meeting(workload.namespace, workload.name, workload.uid, workload.rendezvous, pod, node_ready=ready)


def service(meeting: Meeting) -> dict[str, Any]:
    """Return the headless Service of a workload, without a selector: its EndpointSlice is the controller's."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": rendezvous.service_name(meeting.name),
            "namespace": meeting.namespace,
            "labels": objects.MANAGED,
            "ownerReferences": [_owner(API_VERSION, "NeuronUltraServerWorkload", meeting.name, meeting.uid)],
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True},
    }


def family_of(address: str) -> str:
    """Return the address family, as `addressType` of an EndpointSlice."""
    return IPV6 if ":" in address else IPV4


def slice_name(service: str, family: str) -> str:
    """Return the name of a Service's EndpointSlice for one address family: `addressType` cannot change."""
    return f"{service}-{family.lower()}"


def slice_names(service: str) -> tuple[str, ...]:
    """Return every name that an EndpointSlice of a Service may have; the last is that of earlier releases."""
    return (*(slice_name(service, family) for family in FAMILIES), service)


def endpoint_slice(service: Wire, pod: Wire | None) -> dict[str, Any] | None:
    """Return the EndpointSlice of a Service with the address of `pod`; None if there is no address.

    Its family is that of status.podIP, the pod's main address.
    """
    address = pod_address(pod)
    if pod is None or not address:
        return None
    meta, family = service["metadata"], family_of(address)
    target = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    endpoint = {"addresses": [address], "conditions": {"ready": True}, "targetRef": {"kind": "Pod", **target}}
    node = (pod.get("spec") or {}).get("nodeName")
    if node:
        endpoint["nodeName"] = node
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(meta["name"], family),
            "namespace": meta["namespace"],
            "labels": {**objects.MANAGED, MANAGED_BY: objects.MANAGER, OF_SERVICE: meta["name"]},
            "ownerReferences": [_owner("v1", "Service", meta["name"], meta["uid"])],
        },
        "addressType": family,
        "endpoints": [endpoint],
    }


def pod_address(pod: Wire | None) -> str:
    """Return the address of a pod, of its node with hostNetwork; empty if it has none yet, or has ended."""
    status = (pod or {}).get("status") or {}
    return "" if status.get("phase") in claim_pods.ENDED else str(status.get("podIP") or "")


def is_the_workloads(service: Wire, meeting: Meeting) -> bool:
    """Return True if the workload controls the Service."""
    return ObjectIdentity(GROUP, WORKLOAD_KIND, meeting.namespace, meeting.name, meeting.uid).controls(service)


def is_the_services(endpoint_slice: Wire, service: Wire) -> bool:
    """Return True if the Service controls the EndpointSlice."""
    meta = service["metadata"]
    return ObjectIdentity("", "Service", meta["namespace"], meta["name"], meta["uid"]).controls(endpoint_slice)


def was_a_workloads(item: Wire) -> bool:
    """Return True if a workload controls `item`: the garbage collector deletes it once the workload is gone."""
    owner = controller_of(item)
    return owner is not None and (owner.group, owner.kind) == (GROUP, WORKLOAD_KIND)


def was_a_services(item: Wire) -> bool:
    """Return True if a Service controls `item`: one of that name is gone, and the garbage collector deletes `item`."""
    owner = controller_of(item)
    return owner is not None and (owner.group, owner.kind) == ("", "Service")


def _owner(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
