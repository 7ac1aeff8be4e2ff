"""Which nodes and UltraServers a change of some objects may show in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from neuron_dra.ask.read.snapshot import Key
from neuron_dra.ask.read.views import EventSubject, UltraServerView
from neuron_dra.ask.world import users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator


@dataclass(frozen=True, slots=True)
class Touched:
    """Names of nodes, ids of UltraServers, and the kinds that have changed; `is_whole`: that may be all of them."""

    nodes: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    is_whole: bool = False


EVERYTHING = Touched(is_whole=True)


def by(before: World, after: World, keys: Set[Key]) -> Touched:
    """Return what the objects with these keys have to do with, as they were and as they are."""
    kinds = frozenset(kind for kind, _, _ in keys)
    if "DeviceTaintRule" in kinds:
        return EVERYTHING
    nodes: set[str] = set()
    servers: set[str] = set()
    for world in (before, after):
        for key in keys:
            changed_object = world.snapshot.objects.get(key)
            if changed_object is not None:
                nodes.update(_nodes(world, key[0], changed_object))
                servers.update(_servers(key[0], changed_object))
    # A slice, or a pool, that names no node may be any node's.
    if "" in nodes:
        return EVERYTHING
    return Touched(frozenset(nodes), frozenset(servers), kinds)


def _nodes(world: World, kind: str, changed_object: Wire) -> Iterator[str]:
    """Yield the names of the nodes that an object has to do with; empty for any node."""
    if kind == "Node":
        yield changed_object["metadata"]["name"]
    elif kind == "ResourceSlice":
        yield changed_object["spec"].get("nodeName") or ""
    elif kind == "NeuronUltraServer" and UltraServerView.of(changed_object).is_spare:
        yield from UltraServerView.of(changed_object).nodes
    elif kind == "ResourceClaim":
        yield from _of_claim(world, changed_object)
    elif kind == "Event":
        about = EventSubject.of(changed_object).involved_object
        if about.kind == "Node":
            yield about.name
    elif kind == "Pod":
        yield from _of_pod(world, changed_object)


def _of_pod(world: World, pod: Wire) -> Iterator[str]:
    """Yield the names of the nodes about which a pod shows something apart from its claims."""
    node_name = pod["spec"].get("nodeName") or ""
    if node_name and world.events.get(("Node", "", node_name)):
        yield node_name  # an Event about the node may be over when this pod is gone
    if group := users.group_of(pod):
        # The pods of a PodGroup are named as the holders of its claims.
        for claim in world.snapshot.all("ResourceClaim"):
            if group in users.groups(claim):
                yield from _of_claim(world, claim)


def _of_claim(world: World, claim: Wire) -> Iterator[str]:
    """Yield the names of the nodes on which a claim has devices."""
    for driver, pool in {(device.driver, device.pool) for device in allocator.devices_in_use([claim])}:
        yield from world.inventory.homes(driver, pool)


def _servers(kind: str, changed_object: Wire) -> Iterator[str]:
    if kind == "NeuronUltraServer":
        yield str((changed_object.get("status") or {}).get("ultraserverId") or changed_object["metadata"]["name"])
