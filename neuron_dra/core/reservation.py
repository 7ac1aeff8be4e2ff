"""Who may start on a reserved node: pure, from the claim and the allocation that holds the node.

A reserved node is closed. Every claim but administrators' access is refused there, unless it carries namespace, name
and UID of the workload to which the node is bound; that is what the workload's ResourceClaimTemplate puts into it.
A claim for reserved devices that names no workload starts nowhere: it was not made of such a template.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_dra.core import config, names
from neuron_dra.core.claims import Claim, ClaimRef
from neuron_dra.core.ultraserver import Allocation, Phase, Tag


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node stands in its workload; ranks begin at 0. None where the NeuronUltraServer does not say."""

    rank: int
    node_count: int  # nodes of this slot
    world_size: int | None  # nodes of all slots
    rank0_node: str | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """The workload that holds this node. `place` is None while only the node's own tag tells of it."""

    namespace: str
    workload: str
    workload_uid: str
    phase: Phase = Phase.BOUND
    place: Place | None = None

    @classmethod
    def of(cls, allocation: Allocation, node_name: str) -> Reservation:
        """Return the reservation of a node by an allocation that names it."""
        place = Place(allocation.rank(node_name), allocation.node_count, allocation.world_size, allocation.rank0_node)
        return cls(
            allocation.workload_namespace,
            allocation.workload_name,
            allocation.workload_uid,
            allocation.phase,
            place,
        )

    @classmethod
    def remembered(cls, tag: Tag) -> Reservation:
        """Return the reservation that a node's tag tells of."""
        return cls(tag.workload_namespace, tag.workload_name, tag.workload_uid, tag.phase)

    def names(self, wanted: config.UltraServerSettings | None, ref: ClaimRef) -> bool:
        """Tell whether a claim with this configuration is one of the workload.

        Templates of AWS's operator name the workload without its UID.
        """
        return wanted is not None and (ref.namespace, wanted.workload_id, wanted.workload_uid or self.workload_uid) == (
            self.namespace,
            self.workload,
            self.workload_uid,
        )


def why_refused(claim: Claim, reservation: Reservation | None, node_name: str) -> str:
    """Return why `claim` may not start on the node, or nothing if it may."""
    for request in dict.fromkeys(device.request for device in claim.devices if not device.admin_access):
        wanted = config.effective(claim.configs, request).ultraserver
        reserved_class = any(
            device.device_class == names.WORKLOAD_CLASS for device in claim.devices if device.request == request
        )
        why = _why_refused(claim.ref, wanted, reservation, node_name, reserved_class=reserved_class)
        if why:
            return f"claim {claim.ref}: {why}"
    return ""


def _why_refused(
    ref: ClaimRef,
    wanted: config.UltraServerSettings | None,
    reservation: Reservation | None,
    node_name: str,
    *,
    reserved_class: bool,
) -> str:
    named = wanted is not None and (wanted.workload_id, wanted.workload_uid) != (None, None)
    if reservation is None:
        if wanted is not None and named:
            return _not_reserved(ref, wanted)
        return _NOT_OF_A_WORKLOAD if reserved_class else ""
    holder = f"{reservation.namespace}/{reservation.workload}"
    if reservation.names(wanted, ref):
        return _not_yet(holder, reservation, node_name)
    closed = f"node {node_name} is reserved for NeuronUltraServerWorkload {holder}"
    if wanted is None or not named:
        return (
            f"{closed}, and this claim belongs to no workload; use the ResourceClaimTemplate of that workload in "
            f"namespace {reservation.namespace}, or delete the pod so that it is placed on a node that is not reserved"
        )
    if (wanted.workload_id, wanted.workload_uid) == (reservation.workload, reservation.workload_uid):
        return (
            f"{closed}, and a ResourceClaimTemplate copied into namespace {ref.namespace} does not count; run the pod "
            f"in namespace {reservation.namespace}"
        )
    if (ref.namespace, wanted.workload_id) == (reservation.namespace, reservation.workload):
        return (
            f"{closed} with UID {reservation.workload_uid}, and this claim names the UID "
            f"{wanted.workload_uid}: the workload was created anew, or the claim was not made by its "
            "ResourceClaimTemplate; delete the pod so that it gets a claim from the present one"
        )
    return (
        f"{closed}, and this claim names workload {ref.namespace}/{wanted.workload_id or '(none)'} (UID "
        f"{wanted.workload_uid or '(none)'}); delete the pod so that it is placed on a node of its own workload"
    )


_NOT_OF_A_WORKLOAD = (
    f"DeviceClass {names.WORKLOAD_CLASS} has the devices that are reserved for a NeuronUltraServerWorkload, and this "
    f"claim belongs to none; use deviceClassName {names.DRIVER}, or the ResourceClaimTemplate of a workload"
)


def _not_reserved(ref: ClaimRef, wanted: config.UltraServerSettings) -> str:
    return (
        f"error applying config: workloadId {wanted.workload_id!r} (workloadUid {wanted.workload_uid!r}) names a "
        f"NeuronUltraServerWorkload of namespace {ref.namespace}, but this node is not reserved for it; use the "
        "ResourceClaimTemplate that the UltraServer operator made for that workload, and no other selector"
    )


def _not_yet(holder: str, reservation: Reservation, node_name: str) -> str:
    """Why the workload's own claim has to wait."""
    if reservation.phase is Phase.PENDING:
        return (
            f"node {node_name} is reserved for NeuronUltraServerWorkload {holder}, but not bound to it yet (phase "
            "Pending): not every node of it has answered; the kubelet tries again"
        )
    if reservation.phase is Phase.DRAINING:
        return (
            f"node {node_name} is being taken back from NeuronUltraServerWorkload {holder} (phase Draining); delete "
            "the pod so that it is placed on a node that the workload keeps"
        )
    if reservation.place is None:
        return (
            f"node {node_name} is bound to NeuronUltraServerWorkload {holder}, but its NeuronUltraServer cannot be "
            "read now, so the rank is not known; the kubelet tries again"
        )
    return ""


def environment(reservation: Reservation) -> tuple[str, ...]:
    """Return NAME=value for what only the operator knows: the rank of this node, the size, and where rank 0 is."""
    place = reservation.place
    if place is None:
        return ()
    return (
        f"NEURON_GLOBAL_TOPOID={place.rank}",
        *(() if place.world_size is None else (f"NEURON_DRA_WORLD_SIZE={place.world_size}",)),
        *(() if place.rank0_node is None else (f"NEURON_DRA_RANK0_NODE={place.rank0_node}",)),
    )
