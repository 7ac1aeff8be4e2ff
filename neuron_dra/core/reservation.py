"""Which claims may start on a reserved node, decided from the claim and the reservation.

A reserved node rejects every claim without adminAccess, unless the claim has the namespace, name and UID of the
workload to which the node is bound; the workload's ResourceClaimTemplate sets them. A claim for reserved devices that
names no workload is rejected everywhere, because it was not made from such a template.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_dra.core import config, names, tenants
from neuron_dra.core.claims import Claim, ClaimRef
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.ultraserver import WORKLOAD_KIND, Allocation, Phase, Tag


@dataclass(frozen=True, slots=True)
class Place:
    """The node's place in its workload; None means that the NeuronUltraServer has no value.

    - `rank`: the number of this node among all nodes of the workload, from 0; NEURON_GLOBAL_TOPOID.
    - `node_count`: nodes in this slot: 1, 2 or 4.
    - `world_size`: nodes in all slots; NEURON_DRA_WORLD_SIZE.
    - `rank0_node`: name of the Node with rank 0; NEURON_DRA_RANK0_NODE.
    - `rendezvous`: address of the pod with rank 0.
    """

    rank: int
    node_count: int  # nodes in this slot
    world_size: int | None  # nodes in all slots
    rank0_node: str | None
    rendezvous: Rendezvous | None = None


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """The workload for which this node is reserved.

    - `namespace`, `workload`, `workload_uid`: the NeuronUltraServerWorkload.
    - `phase`: of the allocation; pods start only while it is Bound.
    - `place`: None while only the node's own tag is known, because its NeuronUltraServer cannot be read.
    """

    namespace: str
    workload: str
    workload_uid: str
    phase: Phase = Phase.BOUND
    place: Place | None = None

    @classmethod
    def of(cls, allocation: Allocation, node_name: str) -> NodeReservation:
        """Return the reservation of the node `node_name` by `allocation`, which must list it."""
        place = Place(
            allocation.rank(node_name),
            allocation.node_count,
            allocation.world_size,
            allocation.rank0_node,
            allocation.rendezvous,
        )
        return cls(
            allocation.workload_namespace,
            allocation.workload_name,
            allocation.workload_uid,
            allocation.phase,
            place,
        )

    @classmethod
    def remembered(cls, tag: Tag) -> NodeReservation:
        """Return the reservation that a node's tag describes; it has no place, so claims wait for the object."""
        return cls(tag.workload_namespace, tag.workload_name, tag.workload_uid, tag.phase)

    def names(self, settings: config.UltraServerSettings | None, ref: ClaimRef) -> bool:
        """Return True if the claim `ref` with the configuration `settings` belongs to the workload.

        A configuration without a UID belongs to it too: templates of AWS's operator name the workload without one.
        """
        if settings is None:
            return False
        named_uid = settings.workload_uid or self.workload_uid
        named = (ref.namespace, settings.workload_id, named_uid)
        return named == (self.namespace, self.workload, self.workload_uid)


def is_of(claim: Claim, tag: Tag) -> bool:
    """Return True if a request of the claim, other than those with adminAccess, belongs to the workload of the tag."""
    reservation = NodeReservation.remembered(tag)
    requests = {device.request for device in claim.devices if not device.admin_access}
    return any(
        reservation.names(config.effective(claim.configs, request).ultraserver, claim.ref) for request in requests
    )


def why_refused(claim: Claim, reservation: NodeReservation | None, node_name: str) -> str:
    """Return why `claim` is rejected on the node, for `kubectl describe pod`, or an empty string.

    Requests with adminAccess are never rejected. On a node that is not reserved (`reservation` None) a claim is
    rejected if it names a workload, or uses the DeviceClass of reserved devices.
    """
    for request in dict.fromkeys(device.request for device in claim.devices if not device.admin_access):
        settings = config.effective(claim.configs, request).ultraserver
        reserved_class = any(
            device.device_class == names.WORKLOAD_CLASS for device in claim.devices if device.request == request
        )
        why = _why_refused(claim.ref, settings, reservation, node_name, reserved_class=reserved_class)
        if why:
            return f"claim {claim.ref}: {why}"
    return ""


def _why_refused(
    ref: ClaimRef,
    settings: config.UltraServerSettings | None,
    reservation: NodeReservation | None,
    node_name: str,
    *,
    reserved_class: bool,
) -> str:
    """Return why the claim `ref` is rejected for one request's configuration, or an empty string.

    `reserved_class` means that the request uses the DeviceClass of reserved devices.
    """
    named = settings is not None and (settings.workload_id, settings.workload_uid) != (None, None)
    if reservation is None:
        if settings is not None and named:
            return _not_reserved(ref, settings)
        if reserved_class:
            return _NOT_OF_A_WORKLOAD
        return ""
    holder = tenants.shown(WORKLOAD_KIND, reservation.namespace, reservation.workload, reader=ref.namespace)
    is_other_tenants = reservation.namespace != ref.namespace
    if reservation.names(settings, ref):
        return _not_yet(holder, reservation, node_name)
    reserved = f"node {node_name} is reserved for {holder}"
    if settings is None or not named:
        own = "" if is_other_tenants else "use the ResourceClaimTemplate of that workload, or "
        return (
            f"{reserved}, and this claim belongs to no workload; {own}delete the pod so that it is placed on a node "
            "that is not reserved"
        )
    if (settings.workload_id, settings.workload_uid) == (reservation.workload, reservation.workload_uid):
        return (
            f"{reserved}, and a copy of its ResourceClaimTemplate in namespace {ref.namespace} is not valid; run the "
            "pod in the namespace of that workload"
        )
    if (ref.namespace, settings.workload_id) == (reservation.namespace, reservation.workload):
        return (
            f"{reserved} with UID {reservation.workload_uid}, and this claim names the UID "
            f"{settings.workload_uid}: the workload was recreated, or the claim was not made from its "
            "ResourceClaimTemplate; delete the pod so that it gets a claim from the current one"
        )
    return (
        f"{reserved}, and this claim names workload {ref.namespace}/{settings.workload_id or '(none)'} (UID "
        f"{settings.workload_uid or '(none)'}); delete the pod so that it is placed on a node of its own workload"
    )


_NOT_OF_A_WORKLOAD = (
    f"DeviceClass {names.WORKLOAD_CLASS} selects devices that are reserved for a NeuronUltraServerWorkload, and this "
    f"claim belongs to no workload; use deviceClassName {names.DRIVER}, or the ResourceClaimTemplate of a workload"
)


def _not_reserved(ref: ClaimRef, settings: config.UltraServerSettings) -> str:
    """Return the message for a claim that names a workload on a node that is not reserved."""
    return (
        f"error applying config: workloadId {settings.workload_id!r} (workloadUid {settings.workload_uid!r}) names a "
        f"NeuronUltraServerWorkload of namespace {ref.namespace}, but this node is not reserved for it; use the "
        "ResourceClaimTemplate that the UltraServer controller made for that workload, and no other selector"
    )


def _not_yet(holder: str, reservation: NodeReservation, node_name: str) -> str:
    """Return why a claim of the workload itself has to wait, or an empty string."""
    if reservation.phase is Phase.PENDING:
        return (
            f"node {node_name} is reserved for {holder}, but not bound to it yet (phase "
            "Pending): not every node of the workload has its tag; the kubelet tries again"
        )
    if reservation.phase is Phase.DRAINING:
        return (
            f"node {node_name} is being released by {holder} (phase Draining); delete "
            "the pod so that it is placed on a node that the workload keeps"
        )
    if reservation.place is None:
        return (
            f"node {node_name} is bound to {holder}, but its NeuronUltraServer cannot be "
            "read now, so the rank is unknown; the kubelet tries again"
        )
    return ""


def environment(reservation: NodeReservation) -> tuple[str, ...]:
    """Return the environment, as NAME=value, that the reservation adds.

    The variables are rank, world size, and Node and address of rank 0; a value that the NeuronUltraServer lacks adds
    none.
    """
    place = reservation.place
    if place is None:
        return ()
    return (
        f"NEURON_GLOBAL_TOPOID={place.rank}",
        *(() if place.world_size is None else (f"NEURON_DRA_WORLD_SIZE={place.world_size}",)),
        *(() if place.rank0_node is None else (f"NEURON_DRA_RANK0_NODE={place.rank0_node}",)),
        *(() if place.rendezvous is None else place.rendezvous.environment()),
    )
