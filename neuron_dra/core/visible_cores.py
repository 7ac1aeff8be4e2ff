"""NEURON_RT_VISIBLE_CORES: the cores that a container may use if it has only some cores of its devices.

The runtime counts the logical cores of the devices that the container sees, from 0, and requires them to be contiguous
(Neuron SDK, nrt-developer-guide). A container has one environment, so the value covers all that it gets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from neuron_dra.core import linked
from neuron_dra.core.claims import AllocatedDevice, Claim
from neuron_dra.core.members import Members
from neuron_dra.errors import ClaimError

VARIABLE = "NEURON_RT_VISIBLE_CORES"

_CONTAINER = re.compile(r"(container-\d+)-request-\d+", re.ASCII)
"""The requests of a claim that the scheduler makes for extended resources (Kubernetes 1.36)."""

Parts = Sequence[tuple[AllocatedDevice, Members]]


def by_request(
    claim: Claim, parts: Parts, cores_per_device: int, scale: Mapping[str, int], links: Collection[linked.Pair]
) -> dict[str, str]:
    """Return the variable as NAME=value for each request that has a core partition, by the name in the results.

    `parts` are all devices of `claim`; a device has `cores_per_device` logical cores of the type's default size, each
    of which is `scale` logical cores of the size that the request sets. `links` are those that the node has, up or
    down. Raises ClaimError if a container's cores would not be contiguous or not linked, or if it is unknown which
    devices share a container.
    """
    if all(members.cores is None for _, members in parts):
        return {}
    groups: dict[str, list[tuple[AllocatedDevice, Members]]] = {}
    for device, members in parts:
        groups.setdefault(_container(claim, device), []).append((device, members))
    variable_by_request = {}
    for shared in groups.values():
        if any(members.cores is not None for _, members in shared):
            visible = _visible(claim, [members for _, members in shared], cores_per_device, links)
            for device, _ in shared:
                variable_by_request[device.request] = f"{VARIABLE}={_text(visible, scale[device.request])}"
    return variable_by_request


def _container(claim: Claim, device: AllocatedDevice) -> str:
    """Return what the devices of one container have in common. Raises ClaimError if that is unknown."""
    if claim.extended_resources:
        match = _CONTAINER.fullmatch(device.base_request)
        if match:
            return match[1]
    if len({allocated.base_request for allocated in claim.devices}) > 1:
        raise ClaimError(
            f"claim {claim.ref}: {device.device} is one of several requests, so it is unknown which cores its "
            "container sees; request cores in a claim with one request, or by the pod's resource limits"
        )
    return ""


def _visible(claim: Claim, shared: Sequence[Members], cores_per_device: int, links: Collection[linked.Pair]) -> range:
    """Return the cores in the container's own numbers. Raises ClaimError if they are not contiguous, or not linked."""
    ids = sorted({device_id for members in shared for device_id in members.ids})
    position = {device_id: rank for rank, device_id in enumerate(ids)}
    seen: set[int] = set()
    for members in shared:
        cores = members.cores.all if members.cores else _all_of(members.ids, cores_per_device)
        seen.update(position[core // cores_per_device] * cores_per_device + core % cores_per_device for core in cores)
    visible = sorted(seen)
    if visible[-1] - visible[0] + 1 != len(visible):
        raise ClaimError(
            f"claim {claim.ref}: a container would get the cores {', '.join(map(str, visible))} of its devices, but "
            "the Neuron runtime needs contiguous ones; request them as one number of cores, such as "
            f"cores-{len(visible)}.neuron.aws.com"
        )
    if not linked.is_connected(ids, links):
        devices = ", ".join(f"neuron{device_id}" for device_id in ids)
        raise ClaimError(
            f"claim {claim.ref}: a container would get cores of {devices}, which no links "
            "connect, but the Neuron runtime uses its cores together; request them as one number of cores, such as "
            f"cores-{len(visible)}.neuron.aws.com"
        )
    return range(visible[0], visible[-1] + 1)


def _all_of(ids: Iterable[int], cores_per_device: int) -> list[int]:
    cores = []
    for device_id in ids:
        for core in range(cores_per_device):
            cores.append(device_id * cores_per_device + core)
    return cores


def _text(visible: range, scale: int) -> str:
    first, last = visible.start * scale, visible.stop * scale - 1
    if first == last:
        return str(first)
    return f"{first}-{last}"
