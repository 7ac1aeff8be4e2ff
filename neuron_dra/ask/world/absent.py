"""Nodes whose devices are not published, or not usable, and on which a pod would fit if they were. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read.node_views import NodeTypeView, SliceSpecView, SliceView
from neuron_dra.ask.read.snapshot import Key, Snapshot, key_of
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, program, versions
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import nodes
from neuron_dra.simulate.scheduler import Placement

NODES_TRIED: Final = 3


@dataclass(frozen=True, slots=True)
class AbsentDevices:
    """A node without usable devices: what is wrong, and its slices as they would be."""

    code: str
    node: str
    text: str
    slices: list[Wire]

    def repaired(self, world: World) -> World:
        """Return the world in which the node has its devices."""
        published_keys: list[Key] = [key_of(raw_slice) for raw_slice in world.slices_of(self.node)]
        return world.after(self.slices, published_keys)


def finding(world: World, pod: Wire, lacking: Sequence[AbsentDevices]) -> Finding | None:
    """Return the finding for the first of these nodes on which the pod would fit with the devices of the node."""
    absent = [absent_devices for absent_devices in lacking if _serves(world, pod, absent_devices.node)]
    for absent_devices in absent[:NODES_TRIED]:
        if isinstance(absent_devices.repaired(world).place(pod), Placement):
            facts = Facts()
            facts.add("see", f"{program.NAME} why node/{absent_devices.node}")
            more_count = len(absent) - 1
            facts.add("also", f"{words.count(more_count, 'more node')} without usable devices" if more_count else "")
            text = f"{absent_devices.text}; with them the pod would fit there"
            return Finding(absent_devices.code, text, facts.done())
    return None


def without_devices(world: World, pod: Wire) -> list[AbsentDevices]:
    """Return the nodes that have no usable devices, or publish none."""
    return [*_unusable(world), *_silent(world, pod)]


def _serves(world: World, pod: Wire, name: str) -> bool:
    """Return True if nothing but its devices is in the way of the pod on the node."""
    node = world.nodes[name]
    if nodes.objection(pod, world.decoded(node)) or world.room.lacking(pod, node):
        return False
    return not rejected_name(world, pod, name)


def _unusable(world: World) -> Iterator[AbsentDevices]:
    """Yield the nodes with a pool of which slices are missing: usable it has the devices that are published."""
    for name, text in PublishedDevices(world).unusable.items():
        generations = []
        for raw_slice in world.slices_of(name):
            generations.append(SliceView.of(raw_slice).spec.pool.generation)
        newest = max(generations)
        pairs = zip(world.slices_of(name), generations, strict=True)
        kept = [raw_slice for raw_slice, generation in pairs if generation == newest]
        yield AbsentDevices("PoolIncomplete", name, text, [_counted(raw_slice, kept) for raw_slice in kept])


def _counted(raw_slice: Wire, kept: list[Wire]) -> Wire:
    """Return a slice that counts those of its pool as they are."""
    pool = raw_slice["spec"]["pool"]
    number = sum(pool_slice["spec"]["pool"]["name"] == pool["name"] for pool_slice in kept)
    return {**raw_slice, "spec": {**raw_slice["spec"], "pool": {**pool, "resourceSliceCount": number}}}


def _silent(world: World, pod: Wire) -> Iterator[AbsentDevices]:
    """Yield the nodes of Neuron instance types that publish nothing: healthy ones would publish all devices."""
    silent = silent_nodes(world)
    if not silent:
        return
    from neuron_dra.ask.world import imagined

    templates = [pod_claim.template for pod_claim in world.claims_of(pod) if pod_claim.template is not None]
    sizes = imagined.requested_sets(Snapshot({}).changed([pod, *templates]))
    for name, kind in silent:
        spec = catalogue.lookup(kind)
        if spec is not None:
            text = f"node {name} ({kind}) publishes no devices"
            yield AbsentDevices("NoDevicesPublished", name, text, list(imagined.healthy(name, spec, sizes)))


def silent_nodes(world: World) -> list[tuple[str, str]]:
    """Return the nodes with a Neuron instance type that publish no device of this driver, with the type."""
    names_and_types = []
    for name, node in world.nodes.items():
        kind = NodeTypeView.of(node).instance_type
        if kind and catalogue.lookup(kind) and not any(_has_devices(spec) for spec in world.specs_of(name)):
            names_and_types.append((name, kind))
    return names_and_types


def _has_devices(spec: SliceSpecView) -> bool:
    """Return True if a slice has devices, or the counters of some."""
    return bool(spec.published or spec.shared_counters)


def rejected_name(world: World, pod: Wire, node: str) -> str:
    """Return why the pod's limits that name DeviceClasses cannot be used on a node; empty if they can.

    The scheduler before Kubernetes 1.36 makes no claim for them, and kubelets before it reject the pod.
    """
    kubelet = world.node(node).status.node_info.kubelet_version
    parsed = versions.parse(kubelet)
    is_old = parsed is not None and parsed < versions.FIRST_WITH_CLASS_RESOURCES
    if world.rules.class_limits and not is_old:
        return ""
    limits = [claim for claim in world.claims_of(pod) if claim.entry == FROM_LIMITS]
    if not limits:
        return ""
    least = versions.text(versions.FIRST_WITH_CLASS_RESOURCES)
    if not world.rules.class_limits and not limits[0].exists:
        return f"limits of DeviceClasses need Kubernetes {least} or later: the scheduler makes no claim for them"
    if not is_old:
        return ""
    return f"kubelet {kubelet} of node {node} rejects resources of DeviceClasses: use {least} or later"
