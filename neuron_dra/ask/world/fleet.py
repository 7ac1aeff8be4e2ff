"""The fleet as `status` and `topology` show it: each node with its devices, their holders and their health. Pure."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from neuron_dra.ask.read.node_views import NodeHealthView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core import catalogue, health, labels, names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.ultraserver import Tag
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.counting import Counting
from neuron_dra.simulate.model import DeviceId, PoolDevice
from neuron_dra.simulate.pools import ResourcePool


class DeviceView(msgspec.Struct, frozen=True, gc=False):
    """A physical device, or a whole UltraServer node. `number` is N of /dev/neuronN, None for a whole node."""

    name: str
    number: int | None
    holders: tuple[Holder, ...]
    faults: str  # reasons why it is unhealthy, and taints
    attributes: Mapping[str, Wire]

    @property
    def groups(self) -> Mapping[str, str]:
        """The ids of its groups, by attribute."""
        id_by_attribute = {}
        for key in self.attributes:
            if "devicegroup" in key:
                id_by_attribute[key] = str(_value(self.attributes, key))
        return id_by_attribute

    @property
    def modes(self) -> list[int]:
        """The sizes of groups of nodes that its node supports; empty outside of UltraServers."""
        text = str(_value(self.attributes, "ultraserverModes") or "")
        return [int(part) for part in text.split("_") if part.isdigit()]

    @property
    def free(self) -> bool:
        """True if a claim can get it."""
        return not self.holders and not self.faults


NONE: Final = "no selected node publishes devices or has a Neuron instance type"


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """A node that publishes devices of this driver, or has a Neuron instance type."""

    name: str
    type: str
    ready: bool
    schedulable: bool
    tag: Tag | None
    devices: tuple[DeviceView, ...]
    ultraserver: str
    position: int  # in its UltraServer
    vertical: bool | None  # links of the UltraServer; None: unknown, or none
    horizontal: bool | None
    held: int  # devices that claims hold
    faulty: int  # devices that are unhealthy or tainted
    free_places: frozenset[int]  # of the devices that an ordinary claim can get now
    reported: tuple[tuple[str, str], ...] = ()  # faults in conditions of the Node: their types, and what agents say
    spare: bool = False  # only groups of workloads that must move may be reserved on it

    @property
    def spec(self) -> InstanceType | None:
        """The type's entry in the catalogue."""
        return catalogue.lookup(self.type)

    @property
    def free(self) -> int:
        """The number of devices that an ordinary claim can get now."""
        return len(self.free_places)


def nodes(world: World, selected: labels.Test = labels.EVERY) -> list[NodeView]:
    """Return the Neuron nodes with labels that are selected, by name as a person counts: node-2 before node-10."""
    node_views = []
    for node in world.nodes.values():
        if selected(world.decoded(node).labels) and (node_view := _node(world, node)) is not None:
            node_views.append(node_view)
    return sorted(node_views, key=lambda node_view: words.natural(node_view.name))


def view(world: World, name: str) -> NodeView | None:
    """Return a node by its name; None if it has no Neuron devices."""
    node = world.nodes.get(name)
    if node is None:
        return None
    return _node(world, node)


def _node(world: World, wire: Wire) -> NodeView | None:
    traits, node_status = world.decoded(wire), NodeHealthView.of(wire).status
    name, label = traits.name, str(traits.labels.get(names.INSTANCE_TYPE_LABEL) or "")
    pools = []
    for pool in world.likeness.pools(traits):
        if pool.driver == names.DRIVER:
            pools.append(pool)
    published = next((pool.devices for pool in pools if pool.devices), ())
    if not published and catalogue.lookup(label) is None:
        return None
    first = published[0].attributes if published else {}
    condition = node_status.ready
    ready = condition is None or condition.status == "True"
    vertical, horizontal = (_value(first, f"link{way}") for way in ("Vertical", "Horizontal"))
    devices = tuple(_devices(world, pools))
    tag, schedulable = world.tags.get(name), not traits.unschedulable
    free = [place for place, device in enumerate(devices) if not (device.holders or device.faults)]
    usable = ready and schedulable and tag is None
    return NodeView(
        name=name,
        type=str(_value(first, "instanceType") or label),
        ready=ready,
        schedulable=schedulable,
        tag=tag,
        devices=devices,
        ultraserver=str(_value(first, "ultraserverId") or ""),
        position=int(str(_value(first, "ultraserverNodeId") or 0)),
        vertical=vertical if isinstance(vertical, bool) else None,
        horizontal=horizontal if isinstance(horizontal, bool) else None,
        held=sum([bool(device.holders) for device in devices]),
        faulty=sum([bool(device.faults) for device in devices]),
        free_places=frozenset(free if usable else ()),
        reported=node_status.reported,
        spare=name in world.spares,
    )


def _devices(world: World, pools: Sequence[ResourcePool]) -> list[DeviceView]:
    counting = Counting([pool for pool in pools if pool.usable and pool.counters], world.in_use)
    device_views: list[DeviceView] = []
    for pool in pools:
        free = _free(world, pool)
        if free is not None:
            device_views += _with_holders(world, pool, free)
        else:
            device_views += _with_holders_and_faults(world, pool, counting)
    return device_views


def _free(world: World, pool: ResourcePool) -> Sequence[DeviceView | None] | None:
    """Return the views of a pool's devices as if they were free, None for one that is not physical.

    Equal nodes of a snapshot share them. None for a pool with counters, or with a device that may be unhealthy.
    """
    if pool.counters:
        return None
    free_views = world.free_views
    same = tuple(map(id, pool.facts))
    if same not in free_views:
        free_views[same] = None if any(map(_may_be_sick, pool.devices)) else list(map(_as_free, pool.devices))
    return free_views[same]


def _as_free(device: PoolDevice) -> DeviceView | None:
    physical, number = _numbered(device.id.device)
    if not physical:
        return None
    return DeviceView(device.id.device, number, (), "", device.attributes)


def _with_holders(world: World, pool: ResourcePool, free: Sequence[DeviceView | None]) -> list[DeviceView]:
    """Return the devices of a pool with those who hold them."""
    held_by = world.holders
    holders = [held_by.get(device.id) for device in pool.devices]
    return [
        free_view
        if holder is None
        else DeviceView(free_view.name, free_view.number, (holder,), "", free_view.attributes)
        for free_view, holder in zip(free, holders, strict=True)
        if free_view is not None
    ]


def _with_holders_and_faults(world: World, pool: ResourcePool, counting: Counting) -> Iterator[DeviceView]:
    """Yield the devices of a pool with those who hold them, or the counters that they need, and their faults."""
    held_by = world.holders
    users = _users(world, pool.devices) if pool.counters else {}
    for device in pool.devices:
        physical, number = _numbered(device.id.device)
        if not physical:
            continue
        holder = held_by.get(device.id)
        holders: tuple[Holder, ...] = (holder,) if holder else ()
        if not holder and device.consumes and pool.usable and not counting.allows(device):
            holder_by_id: dict[int, Holder] = {}
            for key in device.consumes:
                holder_by_id.update((id(held_by[user]), held_by[user]) for user in users.get(key, ()))
            holders = tuple(holder_by_id.values())
        faults = _faults(device) if _may_be_sick(device) else ""
        yield DeviceView(device.id.device, number, holders, faults, device.attributes)


def _may_be_sick(device: PoolDevice) -> bool:
    return bool(device.taints) or health.ATTRIBUTE in device.attributes


@functools.lru_cache(maxsize=4096)
def _numbered(name: str) -> tuple[bool, int | None]:
    """Return whether a device is a physical one, by its name, and its number."""
    number = name.removeprefix(names.DEVICE_PREFIX)
    physical = not name.startswith((names.SET_PREFIX, names.CORES_PREFIX))
    return physical, int(number) if number.isdigit() else None


def _users(world: World, devices: Iterable[PoolDevice]) -> Mapping[tuple[str, str], list[DeviceId]]:
    """Return the devices in use by the counters that they consume."""
    devices_by_counter: dict[tuple[str, str], list[DeviceId]] = defaultdict(list)
    for device in devices:
        if device.id in world.holders:
            for key in device.consumes:
                devices_by_counter[key].append(device.id)
    return devices_by_counter


def _faults(device: PoolDevice) -> str:
    reasons = str(_value(device.attributes, health.ATTRIBUTE) or "")
    blocking = []
    for taint in device.taints:
        if taint.effect in ("NoSchedule", "NoExecute"):
            blocking.append(taint)
    return reasons or ", ".join(dict.fromkeys(taint.key for taint in blocking))


def _value(attributes: Mapping[str, Wire], name: str) -> object:
    published = attributes.get(name)
    if not published:
        return None
    return next((value for value in published.values() if value is not None), None)


def missing(node: NodeView) -> list[str]:
    """Return the devices of a node's instance type that it does not publish; none if it publishes none, or a whole."""
    numbers = {device.number for device in node.devices}
    if node.spec is None or not numbers or None in numbers:
        return []
    return [f"{names.DEVICE_PREFIX}{number}" for number in range(node.spec.device_count) if number not in numbers]


def ultraservers(node_views: Iterable[NodeView]) -> dict[str, list[NodeView]]:
    """Return the nodes of each UltraServer, by its id and the nodes' positions."""
    groups: dict[str, list[NodeView]] = defaultdict(list)
    for node in node_views:
        if node.ultraserver:
            groups[node.ultraserver].append(node)
    ordered = {}
    for key in sorted(groups, key=words.natural):
        ordered[key] = sorted(groups[key], key=lambda node: node.position)
    return ordered


def waiting(world: World) -> list[Wire]:
    """Return the pods without a node that request Neuron devices, the oldest first."""
    waiting_pods = []
    for pod, pod_place in world.placed_pods:
        if pod_place.spec.node_name or pod_place.status.phase not in ("", "Pending"):
            continue
        if wants_devices(pod):
            waiting_pods.append(pod)
    return sorted(waiting_pods, key=_created)


def wants_devices(pod: Wire) -> bool:
    """Return True if a pod has claims, or limits of the device plugin or of a DeviceClass, whether or not it exists."""
    if PodView.of(pod).spec.resource_claims:
        return True
    containers = str((pod["spec"].get("containers"), pod["spec"].get("initContainers")))
    return "aws.amazon.com/neuron" in containers or demand.IMPLICIT in containers


def _created(pod: Wire) -> str:
    return str(PodView.of(pod).metadata.creation_timestamp or "")
