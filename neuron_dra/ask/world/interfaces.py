"""The EFA interfaces of a node: their publisher, holders and faults, and the Neuron devices next to them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from neuron_dra.ask.read.node_views import SliceView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import fleet, selection
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core import efa, groups, health, names, slices
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.model import PoolDevice


class InterfaceView(msgspec.Struct, frozen=True, gc=False):
    """An EFA interface that a node publishes."""

    name: str
    rdma_name: str
    holder: Holder | None
    faults: str  # the reason why it is unhealthy, or its taints
    next_to: tuple[int, ...]  # numbers of the Neuron devices in the smallest device group that it shares with some

    @property
    def free(self) -> bool:
        """True if a claim can get it."""
        return self.holder is None and not self.faults


def of_node(world: World, name: str) -> tuple[InterfaceView, ...]:
    """Return the EFA interfaces of a node, by name; none if it publishes none, or does not exist."""
    node = world.nodes.get(name)
    if node is None or not any(spec.driver == EFA.name for spec in world.all_specs_of(name)):
        return ()
    published: list[PoolDevice] = []
    for pool in world.likeness.pools(world.decoded(node)):
        if pool.driver == EFA.name:
            published += [device for device in pool.devices if is_efa(device)]
    numbers_by_group = _numbers_by_group(fleet.view(world, name)) if published else {}
    interfaces = []
    for device in published:
        interfaces.append(
            InterfaceView(
                device.id.device,
                str(selection.attribute(device, EFA.name, "rdmaDevice") or ""),
                world.holders.get(device.id),
                _faults(device),
                _next_to(device, numbers_by_group),
            )
        )
    return tuple(sorted(interfaces, key=lambda interface: interface.name))


def devices_next_to(interfaces: Iterable[InterfaceView]) -> str:
    """Return the Neuron devices next to interfaces, such as "devices 0-3"; empty if none is known to be."""
    numbers: set[int] = set()
    for interface in interfaces:
        numbers.update(interface.next_to)
    return words.devices([f"{names.DEVICE_PREFIX}{number}" for number in sorted(numbers)])


def is_efa(device: PoolDevice) -> bool:
    """Return False for the other network devices that DRANET publishes."""
    return bool(selection.attribute(device, EFA.name, "pciDevice") == efa.PCI_DEVICE)


def _numbers_by_group(node: NodeView | None) -> Mapping[tuple[str, str], list[int]]:
    """Return the numbers of a node's Neuron devices, by attribute and id of the groups that they are in."""
    numbers_by_group: dict[tuple[str, str], list[int]] = defaultdict(list)
    for device in node.devices if node is not None else ():
        if device.number is not None:
            for attribute, group_id in device.groups.items():
                numbers_by_group[attribute, group_id].append(device.number)
    return numbers_by_group


def _next_to(device: PoolDevice, numbers_by_group: Mapping[tuple[str, str], list[int]]) -> tuple[int, ...]:
    for size in groups.SIZES:
        name = f"devicegroup{size}_id"
        group_id = selection.attribute(device, names.GROUP_DOMAIN, name)
        numbers = numbers_by_group.get((f"{names.GROUP_DOMAIN}/{name}", str(group_id)))
        if numbers:
            return tuple(sorted(numbers))
    return ()


def _faults(device: PoolDevice) -> str:
    reason = selection.attribute(device, names.DRIVER, health.ATTRIBUTE)
    if reason:
        return str(reason)
    keys = [taint.key for taint in device.taints if taint.effect in ("NoSchedule", "NoExecute")]
    return ", ".join(dict.fromkeys(keys))


def slice_names(world: World, name: str) -> Iterator[str]:
    """Yield the names of the slices that name a node and have EFA interfaces."""
    if not any(spec.driver == EFA.name for spec in world.all_specs_of(name)):
        return
    for raw_slice in world.slices_of(name):
        slice_view = SliceView.of(raw_slice)
        if slice_view.spec.driver == EFA.name and any(map(_is_published_efa, slice_view.spec.published)):
            yield slice_view.metadata.name


def _is_published_efa(device: Wire) -> bool:
    """Return what `is_efa` does, of a device in a slice."""
    attributes = device.get("attributes") or {}
    typed_value = attributes.get(f"{EFA.name}/pciDevice") or attributes.get("pciDevice") or {}
    return bool(typed_value.get("string") == efa.PCI_DEVICE)


def is_published_here(world: World, name: str) -> bool:
    """Return True if this driver, and not DRANET, publishes EFA interfaces of a node."""
    return any(slices.is_ours(slice_name, name, EFA.name) for slice_name in slice_names(world, name))


def foreign_slices(world: World, name: str) -> list[str]:
    """Return the names of the node's slices of EFA interfaces that DRANET wrote."""
    return [slice_name for slice_name in slice_names(world, name) if not slices.is_ours(slice_name, name, EFA.name)]


def why_contested(world: World, name: str) -> str:
    """Return why claims get no EFA interface of a node that two drivers publish; empty if at most one does."""
    foreign_names = foreign_slices(world, name)
    if not foreign_names or not is_published_here(world, name):
        return ""
    return (
        "this driver and DRANET both publish its EFA interfaces, so claims get none "
        f"(ResourceSlice {foreign_names[0]} is DRANET's)"
    )
