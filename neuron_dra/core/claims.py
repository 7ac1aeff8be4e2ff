"""Deciding what a claim gets on this node: pure, from the allocation, the hardware and what is held already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from neuron_dra.core import cdi, config, health, names
from neuron_dra.core import reservation as reservations
from neuron_dra.core.catalogue import Platform
from neuron_dra.core.facts import Unread
from neuron_dra.core.reservation import Reservation
from neuron_dra.core.topology import NeuronDevice, Node
from neuron_dra.errors import ClaimError, DeviceInUse


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One result of an allocation that belongs to this driver."""

    request: str  # "req", or "req/sub" when an alternative of firstAvailable was taken
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    tolerations: tuple[health.Toleration, ...] = ()

    @property
    def base_request(self) -> str:
        """The request without the alternative; the kubelet knows only this one."""
        return self.request.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its allocation, as far as this driver is concerned."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[config.Entry, ...] = ()
    pod: str = ""  # the first pod that the claim is reserved for


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device as it was handed out.

    `device_ids` are the Neuron devices behind it, `edits` the CDI container edits that deliver them.
    """

    request: str
    pool: str
    device: str
    device_ids: tuple[int, ...]
    cdi_ids: tuple[str, ...]
    edits: Mapping[str, Any]
    admin_access: bool = False
    share_id: str | None = None
    extra: Mapping[str, Any] | None = None  # fields of a newer release, kept for it

    @property
    def env(self) -> tuple[str, ...]:
        """Environment of a container that gets this device, as NAME=value."""
        return tuple(self.edits.get("env", ()))


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """What the kubelet was answered, and must be answered again.

    An *adopted* claim was prepared by somebody else (the driver before us, or ourselves before a checkpoint was
    lost): it holds its devices, but there is no answer of ours to repeat.
    """

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    prepared_at: str = ""  # RFC 3339, UTC
    pod: str = ""
    adopted: bool = False
    workload: str = ""  # the NeuronUltraServerWorkload, in the claim's namespace, that the node is bound to for it
    extra: Mapping[str, Any] | None = None  # fields of a newer release, kept for it


def decide(
    claim: Claim,
    *,
    node_name: str,
    node: Node,
    held: Iterable[PreparedClaim],
    device_files: cdi.DeviceFiles,
    reservation: Reservation | None = None,
    sick: Callable[[AllocatedDevice], str] = lambda result: "",
    prepared_at: str = "",
) -> PreparedClaim:
    """Return what `claim` gets. `sick` says why a device must not be handed out, if it must not.

    Raises ClaimError, whose text names the field, the device or the holder that stands in the way.
    """
    if not claim.devices:
        raise ClaimError(f"claim {claim.ref} has no device of {names.DRIVER} in its allocation")
    why = reservations.why_refused(claim, reservation, node_name)
    if why:
        raise ClaimError(why, retryable=True)
    others = [other for other in held if other.ref.uid != claim.ref.uid]
    prepared, workload = [], ""
    for result in claim.devices:
        if result.pool != node_name:
            raise ClaimError(
                f"claim {claim.ref}: device {result.device} is of pool {result.pool}, which is not on node {node_name}"
            )
        physical = _physical(claim.ref, result.device, node)
        _refuse_overlap(claim.ref, result, physical, others)
        if not result.admin_access and (why := sick(result)):
            raise ClaimError(f"claim {claim.ref}: {why}", retryable=True)
        settings = config.effective(claim.configs, result.request)
        env = environment(settings, node)
        if reservation is not None and reservation.names(settings.ultraserver, claim.ref):
            if not result.admin_access:
                _check_size(settings.ultraserver, reservation)
            env += reservations.environment(reservation)
            workload = reservation.workload
        prepared.append(
            PreparedDevice(
                request=result.base_request,
                pool=result.pool,
                device=result.device,
                device_ids=tuple(device.device_id for device in physical),
                cdi_ids=(cdi.device_id(claim.ref.uid, result.device, result.share_id),),
                edits=cdi.container_edits([device.device_id for device in physical], env, device_files),
                admin_access=result.admin_access,
                share_id=result.share_id,
            )
        )
    return PreparedClaim(claim.ref, tuple(prepared), prepared_at, claim.pod, workload=workload)


def _physical(ref: ClaimRef, device_name: str, node: Node) -> tuple[NeuronDevice, ...]:
    if device_name == names.NODE_DEVICE:
        physical = tuple(device for device in node.devices if device.node_present)
        if not physical:
            raise ClaimError(f"claim {ref}: {device_name} has no Neuron device left; check the kernel driver")
        return physical
    suffix = device_name.removeprefix(names.DEVICE_PREFIX)
    for device in node.devices:
        if str(device.device_id) == suffix and device.name == device_name:
            if not device.node_present:
                raise ClaimError(
                    f"claim {ref}: {device_name} is allocated, but /dev/neuron{device.device_id} is missing on the "
                    "node; check the kernel driver, or delete the pod so that it gets another device",
                    retryable=True,
                )
            return (device,)
    raise ClaimError(
        f"claim {ref}: {device_name} is allocated, but the node has no such device (it has "
        f"{', '.join(device.name for device in node.devices) or 'none'}); delete the pod so that it gets another",
        retryable=True,
    )


def _refuse_overlap(
    ref: ClaimRef, result: AllocatedDevice, physical: tuple[NeuronDevice, ...], others: list[PreparedClaim]
) -> None:
    """The last line of defence against one device in two claims."""
    if result.admin_access:
        return
    wanted = {device.device_id for device in physical}
    for other in others:
        for device in other.devices:
            if device.admin_access or (result.share_id and device.share_id):
                continue
            common = wanted & set(device.device_ids)
            if common:
                raise DeviceInUse(
                    f"claim {ref}: {result.device} is in use: neuron{min(common)} is held by claim {other.ref} "
                    f"(UID {other.ref.uid}) until that one is unprepared",
                    other.ref.uid,
                )


def environment(settings: config.Settings, node: Node) -> tuple[str, ...]:
    """Return NAME=value for a container that gets a device of `node` with `settings`.

    Sources: Neuron SDK, logical-neuroncore-config and the UltraServer init script (design.md 2, neuron.md 3).
    """
    env: list[str] = []
    if settings.neuron is not None:
        value = settings.neuron.logical_neuron_core
        _check_lnc(value, node)
        env += [f"NEURON_LOGICAL_NC_CONFIG={value}", f"NEURON_RT_VIRTUAL_CORE_SIZE={value}"]
    if settings.ultraserver is not None:
        env += ultraserver_environment(settings.ultraserver.nodes, node)
    elif node.spec is not None and node.spec.platform in (Platform.PDS, Platform.MAX):
        env.append(f"NEURON_RT_ULTRASERVER_MODE={names.RUNTIME_MODE_SINGLE}")
    return tuple(env)


def _check_size(wanted: config.UltraServerSettings | None, reservation: Reservation) -> None:
    """The runtime's group and the ranks must be of the same size."""
    if wanted is not None and reservation.place is not None and wanted.nodes != reservation.place.node_count:
        raise ClaimError(
            f"error applying config: ultraserverMode {wanted.nodes} differs from the topologySize "
            f"{reservation.place.node_count} of workload {reservation.namespace}/{reservation.workload}; use the "
            "ResourceClaimTemplate that the UltraServer operator made for it, unchanged"
        )


def _check_lnc(value: int, node: Node) -> None:
    allowed = node.spec.lnc_allowed if node.spec else ()
    if not allowed:
        raise ClaimError(
            f"error applying config: LNC value is not configurable for instance type {node.instance_type_name}; "
            "remove the NeuronConfig from the claim"
        )
    if value not in allowed:
        raise ClaimError(
            f"error applying config: logicalNeuronCore {value} is not offered by instance type "
            f"{node.instance_type_name}; use one of {', '.join(map(str, allowed))}"
        )


RUNTIME_MODES: dict[int, tuple[int, ...]] = {4: (1,), 2: (3, 2), 1: (4,)}
"""Nodes wanted -> runtime modes that give them, best first (1=X4, 2=X2H, 3=X2V, 4=X1)."""


def ultraserver_environment(nodes: Literal[1, 2, 4], node: Node) -> tuple[str, ...]:
    """Return the runtime's UltraServer variables for a group of `nodes` nodes.

    Raises ClaimError when `ultraserver_mode` of the node does not offer such a group.
    """
    facts = node.ultraserver
    if node.spec is None or node.spec.platform is Platform.STANDARD:
        raise ClaimError(
            f"error applying config: ultraserverMode {nodes} asks for an UltraServer, but instance type "
            f"{node.instance_type_name} is not part of one; remove the UltraServerConfig from the claim"
        )
    if facts.modes is Unread.BUSY:
        raise ClaimError(
            f"error applying config: ultraserverMode {nodes}: the kernel driver is still joining the UltraServer "
            "(ultraserver_mode reads busy); the kubelet tries again",
            retryable=True,
        )
    offered = () if isinstance(facts.modes, Unread) else facts.modes
    mode = next((mode for mode in RUNTIME_MODES[nodes] if mode in offered), None)
    if mode is None:
        sizes = sorted(size for size, modes in RUNTIME_MODES.items() if any(m in offered for m in modes))
        raise ClaimError(
            f"error applying config: ultraserverMode {nodes} is not offered by this node (ultraserver_mode reads "
            f"{','.join(map(str, offered)) or 'nothing'}); "
            + (f"use {' or '.join(map(str, sizes))}" if sizes else "check the UltraServer's links"),
            retryable=True,
        )
    server_id, node_id = _identity(nodes, node)
    return (
        f"NEURON_RT_ULTRASERVER_MODE={mode}",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={server_id}",
        f"NEURON_RT_ULTRASERVER_NODE_ID={node_id}",
    )


def _identity(nodes: int, node: Node) -> tuple[str, int]:
    """Server and node id as AWS's init script picks them, its defaults included (neuron.md 3.2, rule 6)."""
    facts = node.ultraserver
    by_size = {2: (facts.server_id_2, facts.node_id_2), 4: (facts.server_id_4, facts.node_id_4)}
    server_id, node_id = by_size.get(nodes, (Unread.UNKNOWN, Unread.UNKNOWN))
    if not isinstance(facts.reservation_id, Unread):
        server_id = facts.reservation_id
    if not isinstance(facts.node_id, Unread):
        node_id = facts.node_id
    return (
        names.NO_SERVER_ID if isinstance(server_id, Unread) else server_id,
        -1 if isinstance(node_id, Unread) else node_id,
    )
