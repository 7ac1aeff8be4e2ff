"""What a claim gets on this node, decided from its allocation, the hardware, and the devices that claims hold.

The decision is pure: `prepare` passes in what it read, and commits the result. The scheduler has already allocated the
devices; this module checks that the node still has them, that no other claim holds them, and that the node offers the
requested configuration. A ClaimError is shown in the pod's Events by the kubelet, which retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from neuron_dra.core import busy, cdi, config, linked, names, notice, tenants, visible_cores
from neuron_dra.core import members as partitions
from neuron_dra.core import reservation as reservations
from neuron_dra.core.catalogue import Platform
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.facts import RUNTIME_MODES, Unread, group_sizes
from neuron_dra.core.members import Members
from neuron_dra.core.metadata import MetadataSource, added
from neuron_dra.core.reservation import NodeReservation
from neuron_dra.core.topology import NeuronDevice, Node
from neuron_dra.errors import ClaimError, DeviceInUse


def decide(
    claim: Claim,
    *,
    node_name: str,
    node: Node,
    held: Iterable[PreparedClaim],
    device_files: cdi.DeviceFiles,
    reservation: NodeReservation | None = None,
    unhealthy: Callable[[AllocatedDevice], str] = lambda allocated: "",
    prepared_at: str = "",
    metadata: MetadataSource | None = None,
    notices: str = "",
) -> PreparedClaim:
    """Return the prepared claim for `claim`: its devices, their CDI edits and environment.

    `held` are the claims that are already prepared; `claim` itself may be among them. `unhealthy` returns why a device
    must not be prepared, or ""; not for adminAccess. `prepared_at`: RFC 3339. `metadata` adds its files, `notices`
    (a path on the host) the folder in which a claim of a workload gets notices.

    Raises ClaimError, which names the field, device or other claim that is the cause, and DeviceInUse if another claim
    holds one of the devices.
    """
    if not claim.devices:
        raise ClaimError(f"claim {claim.ref} has no device of {names.DRIVER} in its allocation")
    if why := reservations.why_refused(claim, reservation, node_name):
        raise ClaimError(why)
    other_claims = [prepared for prepared in held if prepared.ref.uid != claim.ref.uid]
    taken = _held_ids(other_claims)
    devices_by_name = {device.name: device for device in node.devices}
    agreed: dict[tuple[str, bool], tuple[tuple[str, ...], str]] = {}  # by request
    parts: list[tuple[AllocatedDevice, Members]] = []
    seen: set[int] = set()
    for allocated in claim.devices:
        _refuse_other_pools(claim.ref, allocated, node_name)
        members = _physical(claim.ref, allocated.device, node, devices_by_name)
        if not taken.isdisjoint(members.ids):
            _refuse_overlap(claim.ref, allocated, members, other_claims)
        if not allocated.admin_access:
            _refuse_unhealthy(claim.ref, unhealthy(allocated))
        if not seen.isdisjoint(members.ids):
            _refuse_twice(claim.ref, allocated, members, parts)
        seen.update(members.ids)
        key = (allocated.request, allocated.admin_access)
        if key not in agreed:
            agreed[key] = _agreed(claim, allocated, node, reservation)
        parts.append((allocated, members))
    _refuse_another_count(claim, seen)
    visible_by_request = _visible_cores(claim, parts, node)
    devices = []
    for allocated, members in parts:
        variables, _ = agreed[allocated.request, allocated.admin_access]
        env = (*variables, *visible_by_request.get(allocated.request, ()))
        devices.append(_prepared(claim.ref, allocated, members, env, device_files))
    workload = next((bound_to for _, bound_to in agreed.values() if bound_to), "")
    of_pod = claim.of_its_pod
    prepared = PreparedClaim(claim.ref, tuple(devices), prepared_at, claim.pod, workload=workload, of_its_pod=of_pod)
    with_notices = notice.added(prepared, notices)
    if metadata:
        return added(with_notices, claim, node, reservation, metadata)
    return with_notices


def _held_ids(claims: Iterable[PreparedClaim]) -> set[int]:
    """Return the Neuron devices that these claims hold; a claim with adminAccess holds none."""
    held_ids: set[int] = set()
    for claim in claims:
        for device in claim.devices:
            if not device.admin_access:
                held_ids.update(device.device_ids)
    return held_ids


def refuse_new_allocation(prepared: PreparedClaim, claim: Claim) -> None:
    """Raise ClaimError if `claim` was allocated anew after it was prepared: its devices are not those of `prepared`.

    This happens when the pod of a claim is deleted by force and the next pod gets the claim before the kubelet has
    unprepared it. The earlier pod's containers may still run.
    """
    prepared_keys = []
    for device in prepared.devices:
        prepared_keys.append((device.request, device.pool, device.device, device.admin_access, device.share_id or ""))
    prepared_keys.sort()
    allocated_keys = []
    for allocated in claim.devices:
        allocated_keys.append(
            (allocated.base_request, allocated.pool, allocated.device, allocated.admin_access, allocated.share_id or "")
        )
    allocated_keys.sort()
    if prepared_keys == allocated_keys:
        return
    for_pod = f" for pod {claim.ref.namespace}/{prepared.pod}" if prepared.pod else ""
    pod = "the pod that uses it"
    if claim.pod:
        pod = f"pod {claim.ref.namespace}/{claim.pod}"
    raise ClaimError(
        f"claim {claim.ref} was allocated again before it was unprepared: {_listed(prepared_keys)} of it are "
        f"prepared{for_pod}, and {_listed(allocated_keys) if allocated_keys else 'no device'} is allocated now; "
        f"delete {pod}, and the claim is prepared for the next one. "
        "Until then the devices of both allocations stay held"
    )


def _listed(devices: Iterable[tuple[str, str, str, bool, str]]) -> str:
    return ", ".join(f"{device} ({request})" for request, _, device, _, _ in devices)


def _refuse_other_pools(ref: ClaimRef, allocated: AllocatedDevice, node_name: str) -> None:
    if allocated.pool != node_name:
        raise ClaimError(
            f"claim {ref}: device {allocated.device} is of pool {allocated.pool}, and this node is {node_name}; "
            "delete the pod so that its claim is allocated again"
        )


def _refuse_unhealthy(ref: ClaimRef, why: str) -> None:
    if why:
        raise ClaimError(f"claim {ref}: {why}")


def _refuse_another_count(claim: Claim, ids: set[int]) -> None:
    """Raise ClaimError if the claim's annotation requires another number of devices than `ids`.

    Without it, `allocationMode: All` on Kubernetes 1.34 and 1.35 means 15 while one of 16 devices is unhealthy.
    """
    if claim.device_count and claim.device_count != str(len(ids)):
        raise ClaimError(
            f"claim {claim.ref} has {len(ids)} Neuron devices, and its annotation {names.COUNT_ANNOTATION} requires "
            f"{claim.device_count}: a device of this node is missing or unhealthy, or the annotation is wrong; delete "
            "the pod so that its claim is allocated again"
        )


def _prepared(
    ref: ClaimRef, allocated: AllocatedDevice, members: Members, env: tuple[str, ...], device_files: cdi.DeviceFiles
) -> PreparedDevice:
    """Return one allocated device as prepared; `env` is the environment of its request, as NAME=value."""
    return PreparedDevice(
        request=allocated.base_request,
        pool=allocated.pool,
        device=allocated.device,
        device_ids=members.ids,
        cdi_ids=(cdi.device_id(ref.uid, allocated.device, allocated.share_id),),
        edits=cdi.container_edits(members.ids, env, device_files),
        admin_access=allocated.admin_access,
        share_id=allocated.share_id,
        cores=members.cores,
    )


def _physical(ref: ClaimRef, device_name: str, node: Node, devices_by_name: Mapping[str, NeuronDevice]) -> Members:
    """Return the Neuron devices behind a published name, and its cores; `devices_by_name` are the node's devices.

    A whole node has all devices that are present now. Raises ClaimError if a single device, or a member of a set, is
    missing or has no file in /dev: unlike a node, a set must be complete.
    """
    if device_name == names.NODE_DEVICE:
        ids = tuple(device.device_id for device in node.devices if device.device_file is not False)
        if not ids:
            raise ClaimError(f"claim {ref}: {device_name} has no Neuron device left; check the kernel driver")
        return Members(ids)
    members = partitions.of(device_name, node.spec)
    if members is None:
        device_names = [device_name]
    else:
        device_names = [f"{names.DEVICE_PREFIX}{device_id}" for device_id in members.ids]
    devices = [devices_by_name[name] for name in device_names if name in devices_by_name]
    if len(devices) < len(device_names):
        raise ClaimError(
            f"claim {ref}: {device_name} is allocated, but the node has no such device (it has "
            f"{', '.join(devices_by_name) or 'none'}); delete the pod so that it gets another device",
        )
    for device in devices:
        if device.device_file is False:
            raise ClaimError(
                f"claim {ref}: {device_name} is allocated, but /dev/neuron{device.device_id} is missing on the "
                "node; check the kernel driver, or delete the pod so that it gets another device",
            )
    return members or Members(tuple(device.device_id for device in devices))


def _refuse_overlap(
    ref: ClaimRef, allocated: AllocatedDevice, members: Members, other_claims: list[PreparedClaim]
) -> None:
    """Raise DeviceInUse if another claim holds a part of `members`: the last guard against a device in two claims.

    Claims with adminAccess do not count, nor do two shares of the same device, nor core partitions without a common
    core.
    """
    if allocated.admin_access:
        return
    requested_ids = set(members.ids)
    for other in other_claims:
        for device in other.devices:
            if device.admin_access or (allocated.share_id and device.share_id):
                continue
            common = requested_ids & set(device.device_ids)
            if common and not _apart(members, Members(device.device_ids, device.cores)):
                raise DeviceInUse(
                    f"claim {ref}: {allocated.device} is in use: neuron{min(common)} is held by "
                    f"{_holder(other.ref, ref)} until that claim is unprepared",
                    other.ref.uid,
                )


def _holder(holder: ClaimRef, reader: ClaimRef) -> str:
    """Return the claim that has a device, for the Event on the pod of another one."""
    if not holder.namespace:
        return f"claim {holder} (UID {holder.uid})"  # only its UID is known
    return f"{tenants.shown('claim', holder.namespace, holder.name, reader=reader.namespace)} (UID {holder.uid})"


def _refuse_twice(
    ref: ClaimRef, allocated: AllocatedDevice, members: Members, earlier: Iterable[tuple[AllocatedDevice, Members]]
) -> None:
    """Raise ClaimError if an earlier result of the same claim has a part of `members`, other than the same device."""
    if allocated.admin_access:
        return
    for other, others in earlier:
        if other.admin_access or other.device == allocated.device or set(members.ids).isdisjoint(others.ids):
            continue
        if not _apart(members, others):
            raise ClaimError(
                f"claim {ref}: {allocated.device} and {other.device} are allocated together, but have a device in "
                "common; delete the pod so that its claim is allocated again"
            )


def _apart(first: Members, second: Members) -> bool:
    """Return True if both are core partitions and have no core in common."""
    return first.cores is not None and second.cores is not None and not first.cores.overlaps(second.cores)


def core_environment(claim: Claim, node: Node) -> dict[str, tuple[str, ...]]:
    """Return the variables that `decide` sets because of the cores in an allocation, by request. Raises ClaimError."""
    devices_by_name = {device.name: device for device in node.devices}
    parts = []
    for allocated in claim.devices:
        parts.append((allocated, _physical(claim.ref, allocated.device, node, devices_by_name)))
    return _visible_cores(claim, parts, node)


def _visible_cores(
    claim: Claim, parts: list[tuple[AllocatedDevice, Members]], node: Node
) -> dict[str, tuple[str, ...]]:
    """Return the variables that limit a container to its cores, by request. Raises ClaimError if there can be none.

    They fix the size of logical cores too, if the type has several: the numbers of the cores assume it, and with
    another size they would be those of another container's cores.
    """
    spec = node.spec
    if spec is None or all(members.cores is None for _, members in parts):
        return {}
    scale = {}
    pinned: dict[str, tuple[str, ...]] = {}
    for allocated, _ in parts:
        neuron_settings = config.effective(claim.configs, allocated.request).neuron
        if neuron_settings:
            scale[allocated.request] = spec.lnc_default // neuron_settings.logical_neuron_core
        else:
            scale[allocated.request] = 1
        if spec.lnc_allowed and not neuron_settings:
            pinned[allocated.request] = core_size(spec.lnc_default)
        else:
            pinned[allocated.request] = ()
    links = linked.of_type(spec) | linked.up_now(node)
    variable_by_request = visible_cores.by_request(claim, parts, partitions.cores_each(spec), scale, links)
    return {request: (*pinned[request], variable) for request, variable in variable_by_request.items()}


def _agreed(
    claim: Claim, allocated: AllocatedDevice, node: Node, reservation: NodeReservation | None
) -> tuple[tuple[str, ...], str]:
    """Return the environment of a request, and the name of its workload if the node is bound to that, or "".

    All devices of a request share the result. adminAccess skips the check of the group's size. Raises ClaimError.
    """
    settings = config.effective(claim.configs, allocated.request)
    env = environment(settings, node)
    if reservation is None or not reservation.names(settings.ultraserver, claim.ref):
        return env, ""
    if not allocated.admin_access:
        _check_size(settings.ultraserver, reservation)
    return env + reservations.environment(reservation), reservation.workload


def environment(settings: config.Settings, node: Node) -> tuple[str, ...]:
    """Return the environment, as NAME=value, of a container that gets a device of `node` with `settings`.

    A NeuronConfig sets the logical core size under both of the runtime's names. An UltraServerConfig sets mode, server
    id and node id; Trn3 UltraServer nodes get the mode even without one.

    Raises ClaimError if the node does not offer a setting. Sources: Neuron SDK, logical-neuroncore-config, and AWS's
    UltraServer init script.
    """
    env: list[str] = []
    if settings.neuron is not None:
        value = settings.neuron.logical_neuron_core
        _check_lnc(value, node)
        env += core_size(value)
    if settings.ultraserver is not None:
        env += ultraserver_environment(settings.ultraserver.nodes, node)
    elif node.spec is not None and node.spec.platform in (Platform.PDS, Platform.MAX):
        env.append(f"NEURON_RT_ULTRASERVER_MODE={names.RUNTIME_MODE_SINGLE}")
    return tuple(env)


def core_size(value: int) -> tuple[str, str]:
    """Return the size of logical cores, in physical ones, under both of the runtime's names."""
    return f"NEURON_LOGICAL_NC_CONFIG={value}", f"NEURON_RT_VIRTUAL_CORE_SIZE={value}"


def _check_size(settings: config.UltraServerSettings | None, reservation: NodeReservation) -> None:
    """Raise ClaimError if the claim's group size differs from the reservation's: the ranks would not fit the group."""
    if settings is not None and reservation.place is not None and settings.nodes != reservation.place.node_count:
        raise ClaimError(
            f"error applying config: ultraserverMode {settings.nodes} differs from the topologySize "
            f"{reservation.place.node_count} of workload {reservation.namespace}/{reservation.workload}; use the "
            "ResourceClaimTemplate that the UltraServer operator made for it, unchanged"
        )


def _check_lnc(value: int, node: Node) -> None:
    """Raise ClaimError if the node's instance type does not offer this logical core size."""
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


def ultraserver_environment(nodes: Literal[1, 2, 4], node: Node) -> tuple[str, ...]:
    """Return the runtime's UltraServer variables, as NAME=value, for a group of `nodes` nodes.

    The mode is the first of RUNTIME_MODES that the node's `ultraserver_mode` lists; the ids are those of the group, as
    AWS's init script chooses them.

    Raises ClaimError if the node's `ultraserver_mode` does not offer such a group, reads busy or is empty.
    """
    facts = node.ultraserver
    if node.spec is None or node.spec.platform is Platform.STANDARD:
        raise ClaimError(
            f"error applying config: ultraserverMode {nodes} requests an UltraServer, but instance type "
            f"{node.instance_type_name} is not part of one; remove the UltraServerConfig from the claim"
        )
    messages = {finding.kind: finding.message for finding in node.findings}
    if why := busy.why_not_offered(messages, facts):
        raise ClaimError(f"error applying config: ultraserverMode {nodes}: {why}")
    offered = () if isinstance(facts.modes, Unread) else facts.modes
    mode = next((mode for mode in RUNTIME_MODES[nodes] if mode in offered), None)
    if mode is None:
        sizes = group_sizes(offered)
        raise ClaimError(
            f"error applying config: ultraserverMode {nodes} is not offered by this node (ultraserver_mode reads "
            f"{','.join(map(str, offered))}); use {' or '.join(map(str, sizes))}"
        )
    server_id, node_id = _identity(nodes, node)
    return (
        f"NEURON_RT_ULTRASERVER_MODE={mode}",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={server_id}",
        f"NEURON_RT_ULTRASERVER_NODE_ID={node_id}",
    )


def _identity(nodes: int, node: Node) -> tuple[str, int]:
    """Return server id and node id as AWS's UltraServer init script chooses them.

    A reservation id or node id from firmware (Trn3) wins over the elected ids (Trn2). Defaults for unknown ones, as in
    the script: a server id of zeros, and -1 for the node.
    """
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
