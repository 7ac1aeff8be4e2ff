"""What is wrong with the nodes and UltraServers of a fleet, for those who are on call. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read import node_views
from neuron_dra.ask.read.node_views import KubeletView
from neuron_dra.ask.read.views import ConditionView, UltraServerNode, UltraServerView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand, events, fleet, reported, unseen
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World
from neuron_dra.core import names, releases, runtimes
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import pools

NODE = "node"
ULTRASERVER = "UltraServer"
LINKS = ("vertical", "horizontal")
SILENT = "publishes nothing"
_NO_VIEWS: Final[Mapping[str, NodeView | None]] = {}
MISSING = "devices missing"
UNUSABLE = "its slices cannot be used"
_PLUGIN_OFFERS: Final = "a Neuron device plugin offers"


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One fault: the kind and name of what has it, what is wrong in words that equal faults share, and a detail."""

    kind: str
    name: str
    what: str
    detail: str = ""


def of_fleet(world: World, nodes: Sequence[NodeView]) -> list[FleetFault]:
    """Return the faults of the UltraServers, then those of nodes."""
    servers = by_id(world)
    fleet_faults: list[FleetFault] = []
    for name in fleet.ultraservers(nodes):
        group = members(world, name)  # with those that are not selected
        fleet_faults += of_ultraserver(name, group, servers.get(name))
    slices_seen = "ResourceSlice" not in unseen.kinds(world.snapshot)
    for node in nodes:
        fleet_faults += all_of_node(world, node, slices_seen=slices_seen)
    return fleet_faults


def all_of_node(world: World, node: NodeView, *, slices_seen: bool = True) -> list[FleetFault]:
    """Return what is wrong with a node: with its devices, its programs and its slices."""
    of_object = list(_of_object(world, node.name))
    of_devices = list(of_node(node, slices_seen=slices_seen))
    if any(fault.what == UNUSABLE for fault in of_object):
        # The slices are why it publishes nothing: one fault, not two.
        of_devices = [fault for fault in of_devices if fault.what not in (SILENT, MISSING)]
    node_faults = of_devices + of_object
    return node_faults + list(_reported(world, node.name, {fault.what for fault in node_faults}))


def members(world: World, name: str, views: Mapping[str, NodeView | None] = _NO_VIEWS) -> list[NodeView]:
    """Return the nodes that publish an UltraServer's id, by their position; `views` are those that are made already."""
    node_names = world.ultraservers.get(name, ())
    node_views = [views[node] if node in views else fleet.view(world, node) for node in node_names]
    return sorted((member for member in node_views if member is not None), key=lambda member: member.position)


def by_id(world: World) -> Mapping[str, UltraServerView]:
    """Return the NeuronUltraServers by the id that their nodes publish."""
    return {name: UltraServerView.of(raw_server) for name, raw_server in objects_by_id(world).items()}


def objects_by_id(world: World) -> Mapping[str, Wire]:
    """Return the objects of the NeuronUltraServers by the id that their nodes publish."""
    object_by_id = {}
    for raw_server in world.snapshot.all("NeuronUltraServer"):
        server = UltraServerView.of(raw_server)
        object_by_id[server.status.ultraserver_id or server.metadata.name] = raw_server
    return object_by_id


def of_ultraserver(name: str, group: Sequence[NodeView], server: UltraServerView | None) -> Iterator[FleetFault]:
    """Yield what is wrong with an UltraServer: nodes that are missing, links that are down, and its conditions."""
    size = _size(group, server)
    if len(group) < size:
        present_names = {member.name for member in group}
        listed_names = [node.node_name for node in _topology(server)]
        missing_names = [name for name in listed_names if name not in present_names]
        detail = f"{', '.join(missing_names)} is missing" if missing_names else ""
        yield FleetFault(ULTRASERVER, name, f"{len(group)} of {size} nodes", detail)
    down = []
    for way in LINKS:
        if any(getattr(member, way) is False for member in group):
            down.append(way)
    if down:
        yield FleetFault(ULTRASERVER, name, f"{' and '.join(down)} links down")
    for condition in degraded(server):
        reason = condition.reason or "Degraded"
        is_shown = (reason == "LinkDown" and bool(down)) or (reason == "NodeMissing" and len(group) < size)
        if not is_shown:
            yield FleetFault(ULTRASERVER, name, reason, condition.message)


def missing(group: Sequence[NodeView], server: UltraServerView | None) -> dict[int, str]:
    """Return the positions of an UltraServer that no node has, with the name of the node if its object has one."""
    present_positions = {member.position for member in group}
    named = {node.node_id: node.node_name for node in _topology(server)}
    missing_positions = [place for place in range(_size(group, server)) if place not in present_positions]
    short = _size(group, server) - len(group)
    return {place: named.get(place, "") for place in missing_positions[:short]}


def degraded(server: UltraServerView | None) -> list[ConditionView]:
    """Return the conditions of a NeuronUltraServer that say what is wrong with it."""
    conditions = server.status.conditions if server is not None else ()
    degraded_conditions = []
    for condition in conditions:
        if condition.type == "Degraded" and condition.status == "True":
            degraded_conditions.append(condition)
    return degraded_conditions


def _topology(server: UltraServerView | None) -> Sequence[UltraServerNode]:
    if server is not None:
        return server.spec.topology
    return ()


def _size(group: Sequence[NodeView], server: UltraServerView | None) -> int:
    """Return how many nodes an UltraServer has when it is whole, as far as its nodes or its object show it."""
    modes = []
    for member in group:
        for device in member.devices[:1]:
            modes += device.modes
    listed = len(_topology(server))
    return max([*modes, listed, len(group)])


def _of_object(world: World, name: str) -> Iterator[FleetFault]:
    """Yield what keeps a node from serving claims although it publishes devices, from its Node and its slices."""
    node = KubeletView.of(world.nodes[name])
    if why := _runtime(node.status.node_info.container_runtime_version):
        yield FleetFault(NODE, name, f"runtime {why}")
    if problem := _kubelet(node.status.node_info.kubelet_version):
        yield FleetFault(NODE, name, problem)
    offered = [resource for resource in demand.PLUGIN_LIMITS if node_views.offers(world.nodes[name], resource)]
    if offered:
        yield FleetFault(NODE, name, f"{_PLUGIN_OFFERS} {offered[0]}")
    slices = world.slices_of(name)
    disagreement = pools.disagreeing(slices) if len(slices) > 1 else []
    unusable = []
    for pool in world.likeness.pools(world.decoded(world.nodes[name])):
        if not pool.usable:
            unusable.append(pool)
    own_pools = [pool for pool in unusable if pool.driver == names.DRIVER]
    if disagreement or own_pools:
        if disagreement:
            detail = disagreement[0]
        else:
            detail = own_pools[0].invalid or "slices of its pool are missing"
        yield FleetFault(NODE, name, UNUSABLE, detail)


@functools.cache  # a fleet has a few versions
def _runtime(version: str) -> str:
    return runtimes.why_no_cdi(version)


@functools.cache
def _kubelet(version: str) -> str:
    problems = releases.kubelet_problems(version)
    if problems:
        return problems[0].text
    return ""


def _reported(world: World, name: str, shown: Collection[str]) -> Iterator[FleetFault]:
    """Yield what the driver reports of a node in Events, such as a link that is down, unless it is shown already."""
    for event in reported.of_node(world, world.nodes[name]):
        is_shown = event.reason in reported.SILENCING and SILENT in shown
        is_shown |= event.reason == reported.PLUGIN_ALIVE and any(what.startswith(_PLUGIN_OFFERS) for what in shown)
        if not is_shown:
            yield FleetFault(NODE, name, f"the driver reports {event.reason}", events.quoted(event.message))


def of_node(node: NodeView, *, slices_seen: bool = True) -> Iterator[FleetFault]:
    """Yield what is wrong with a node; without all slices, it may publish devices that were not seen."""
    if not node.ready:
        yield FleetFault(NODE, node.name, "not Ready")
    elif not node.devices and slices_seen:
        yield FleetFault(NODE, node.name, SILENT)
    missing_devices = fleet.missing(node) if slices_seen else []
    if missing_devices:
        yield FleetFault(NODE, node.name, MISSING, words.devices(missing_devices))
    for kind, text in node.reported:
        yield FleetFault(NODE, node.name, f"an agent reports {kind}", text)
    reasons = [device.faults for device in node.devices if device.faults]
    for reason in dict.fromkeys(reasons):
        sick = [device.name for device in node.devices if device.faults == reason]
        yield FleetFault(NODE, node.name, f"unhealthy: {reason}", words.devices(sick))
