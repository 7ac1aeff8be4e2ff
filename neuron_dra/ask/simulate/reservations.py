"""Reserves UltraServers for the workloads of manifests, so that their pods can be placed. Pure.

The controller also weighs the network, waiting workloads and faults (`neuron-ultraserver-controller plan`). Here the
free groups with the fewest free nodes are taken first, and a workload gets all its groups or none.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.simulate.block_ends import NeededTime
from neuron_dra.ask.world import fleet
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.ultraserver import GROUPS_AT_MOST, Phase, Tag, tagged
from neuron_dra.core.wire import Obj, Wire

GROUPS: Final = ("ultraserverId", "serverId4", "reservationId")
"""Attributes that name the UltraServer of a node, the first one that is published."""
POSITIONS: Final = ("ultraserverNodeId", "nodeId4", "nodeId2")


GROUP_SIZES: Final = (1, 2, 4)
"""Values of spec.topologySize that the CRD allows."""


@dataclass(slots=True)
class ReservedObjects:
    """Objects that change: tagged slices, templates, and workloads with their conditions; and notes about them."""

    objects: list[Obj] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reserve(workloads: Iterable[Wire], snapshot: Snapshot, now: datetime.datetime) -> ReservedObjects:
    """Return the snapshot's changes after the controller has handled the workloads at `now`, in their order."""
    reserved_objects = ReservedObjects()
    world = World(snapshot, proposes=False)
    taken: set[str] = set()
    types = {node.type for node in fleet.nodes(world)}
    for workload in workloads:
        meta = workload["metadata"]
        if snapshot.get("NeuronUltraServerWorkload", meta["name"], meta.get("namespace") or "") is not None:
            continue  # the cluster has it, and its controller decides
        spec = workload.get("spec") or {}
        size, number = int(spec.get("topologySize") or 1), _number_of_groups(spec)
        name = f"NeuronUltraServerWorkload {meta['name']}"
        text = ""
        if size not in GROUP_SIZES:
            text = f"spec.topologySize is {size}: write 1, 2 or 4"
        elif not 1 <= number <= GROUPS_AT_MOST:
            text = f"spec.serverCount is {number}: write 1 to {GROUPS_AT_MOST}"
        if text:
            reserved_objects.objects.append(_waiting(workload, "InvalidSpec", text))
            reserved_objects.notes.append(f"{name}: not reserved: {text}")
            continue
        instance_type = spec.get("instanceType")
        free = list(_slots(world, instance_type, size, taken))
        needed = NeededTime.by(spec, now)
        lasting = []
        for slot in free:
            if not needed.ends_before((node.name for node in slot), snapshot, now):
                lasting.append(slot)
        slots = lasting[:number]
        groups = f"{words.count(number, 'group')} of {words.count(size, 'node')}"
        if len(slots) < number:
            text = f"{groups} wanted, and {len(free)} free"
            reason = "InsufficientCapacity"
            if len(free) >= number:
                reason = "BlockEndsTooSoon"
                text += f", {len(slots)} of them in capacity blocks that last {_how_long(needed)}"
            elif instance_type and instance_type not in types:
                text += f": there is no node of type {instance_type}"
            elif world.spares:
                text += f"; {words.count(len(world.spares), 'node')} are spares, kept for groups that must move"
            reserved_objects.objects.append(_waiting(workload, reason, text))
            reserved_objects.notes.append(f"{name}: not reserved: {text}")
            continue
        chosen: list[NodeView] = []
        for slot in slots:
            chosen += slot
        taken |= {node.name for node in chosen}
        reserved_objects.objects += _tagged(world, workload, chosen)
        whole = all(device.number is None for node in chosen for device in node.devices)
        reserved_objects.objects.append(_template(workload, size, whole=whole))
        reserved = words.listed((node.name for node in chosen), 8)
        reserved_objects.notes.append(f"{name}: {groups} reserved: {reserved}; the controller may choose others")
    return reserved_objects


def _number_of_groups(spec: Wire) -> int:
    server_count = spec.get("serverCount")
    return 1 if server_count is None else int(server_count)


def _how_long(needed: NeededTime) -> str:
    return f"{needed.duration} (spec.expectedDuration)" if needed.duration else "at all"


def _slots(world: World, instance_type: str | None, size: int, taken: set[str]) -> Iterator[Sequence[NodeView]]:
    """Yield free groups of nodes of one UltraServer, those of UltraServers with the fewest free nodes first."""
    servers: dict[str, list[NodeView]] = defaultdict(list)
    for node in fleet.nodes(world):
        if not node.devices:
            continue
        free = node.free == len(node.devices) and node.name not in taken and not node.spare
        name = _value(node, GROUPS)
        if free and (name is not None or size == 1) and instance_type in (None, "", node.type):
            servers[str(name or node.name)].append(node)
    for _, free_nodes in sorted(servers.items(), key=lambda id_and_nodes: len(id_and_nodes[1])):
        by_position = {int(str(_value(node, POSITIONS) or 0)): node for node in free_nodes}
        if size == 1:
            yield from ([node] for node in free_nodes)
        for first in range(0, 4, size) if size > 1 else ():
            slot = []
            for place in range(first, first + size):
                if place in by_position:
                    slot.append(by_position[place])
            up = all(node.vertical is not False and (size < 4 or node.horizontal is not False) for node in slot)
            if len(slot) == size and up:
                yield slot


def _value(node: NodeView, attributes: Sequence[str]) -> object:
    """Return the first of these attributes that a node publishes."""
    have: Mapping[str, Wire] = node.devices[0].attributes
    for name in attributes:
        for value in (have.get(name) or {}).values():
            if value is not None:
                return value
    return None


def _tag(workload: Wire) -> Tag:
    meta = workload["metadata"]
    return Tag(str(meta.get("namespace") or ""), meta["name"], _uid(workload), f"simulated-{meta['name']}", Phase.BOUND)


def _uid(workload: Wire) -> str:
    meta = workload["metadata"]
    return str(meta.get("uid") or f"simulated-{meta.get('namespace')}-{meta['name']}")


def _tagged(world: World, workload: Wire, nodes: Sequence[NodeView]) -> Iterator[Obj]:
    """Yield the slices of the nodes with the workload's tag."""
    tag = _tag(workload)
    for node in nodes:
        for raw_slice in world.slices_of(node.name):
            if raw_slice["spec"]["driver"] == names.DRIVER:
                devices = []
                for device in raw_slice["spec"].get("devices") or ():
                    devices.append(tagged(device, tag))
                yield {**raw_slice, "spec": {**raw_slice["spec"], "devices": devices}}


def _template(workload: Wire, size: int, *, whole: bool) -> Obj:
    """Return the ResourceClaimTemplate that the controller makes: one reserved node for each claim."""
    meta = workload["metadata"]
    attributes = f"device.attributes['{names.DRIVER}']"
    is_of_workload = f"{attributes}.workloadUid == '{_uid(workload)}'"
    selector = f"has({attributes}.workloadUid) && {is_of_workload} && {attributes}.workloadPhase == 'Bound'"
    amount: dict[str, Any] = {"allocationMode": "ExactCount", "count": 1} if whole else {"allocationMode": "All"}
    exactly = {
        "deviceClassName": names.WORKLOAD_CLASS,
        **amount,
        "selectors": [{"cel": {"expression": selector}}],
    }
    parameters = {
        "apiVersion": f"{names.DRIVER}/v1",
        "kind": "UltraServerConfig",
        "ultraserverMode": size,
        "workloadId": meta["name"],
        "workloadUid": _uid(workload),
    }
    config = [{"requests": ["node"], "opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    devices = {"requests": [{"name": "node", "exactly": exactly}], "config": config}
    name = ((workload.get("spec") or {}).get("resourceClaimTemplate") or {}).get("name") or meta["name"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": meta.get("namespace")},
        "spec": {"spec": {"devices": devices}},
    }


def _waiting(workload: Wire, reason: str, text: str) -> Obj:
    """Return a workload as it is while too few UltraServers are free, or free for long enough."""
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": text}
    named = (workload.get("spec") or {}).get("resourceClaimTemplate") or {"name": workload["metadata"]["name"]}
    spec = {**(workload.get("spec") or {}), "resourceClaimTemplate": named}
    return {**workload, "spec": spec, "status": {"state": "Pending", "conditions": [ready]}}
