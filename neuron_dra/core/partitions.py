"""Connected sets of devices, and parts of devices, published as devices that exclude each other through counters.

A pod that requests three connected devices gets one device `neuron-set-3-<first>`; one that requests nine cores gets
`neuron-cores-9-<first>`. Shared counters let the scheduler keep them, the single devices and the whole node apart
(Kubernetes 1.36 and later, KEP-4815). The counter set `devices` has a counter for each device, with its number of
logical cores; the sets `cores-K` have a counter for each core. A whole device consumes all its cores in `devices`. A
part of a device consumes its number of cores there, and the cores themselves in one `cores-K`. So no device needs more
than two counter sets and 32 counters, the most that one device may consume.

Sizes are those of AWS's device plugin and scheduler extension: cores are logical cores at the type's default LNC.
Sources: docs of the Neuron scheduler extension; kubernetes/api@v0.37 resource/v1/types.go (limits).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.core import limits, linked, members, names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.counters import CounterSet
from neuron_dra.core.devices import Attribute, Device, numa_node
from neuron_dra.core.topology import Node

DEVICES_AT_MOST: Final = 256
"""The most devices that a node publishes; a size that would exceed it is left out completely."""

DEVICES_AT_MOST_INF1: Final = 511
"""The same for Inf1: on inf1.24xlarge every number of devices, and every number of cores up to 15, fits."""

COUNTERS_PER_SET: Final = 32
COUNTER_SETS_PER_SLICE: Final = 8

SET: Final = "neuron_set"
CORES: Final = "neuron_cores"
DEVICES_COUNTERS: Final = "devices"

CORES_FIRST: Final = (9,)
SETS_FIRST: Final = (2, 3, 4, 6, 8, 12)
"""Sizes that are published first if not all of them fit."""

GROUPS: Final = (4, 8, 16)
"""Set sizes on a torus or a switch, in devices: rows, pairs of rows, all."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A device as published with what it consumes; `cores` are its logical cores, numbered in the node."""

    device: Device
    cores: frozenset[int]


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Everything that a node publishes, in the order in which the scheduler should use it, and the counters.

    `position` is the place of each name among all that the instance type can publish, so that a device that comes or
    goes moves no other one. `left_out` are the sizes, such as `cores-3` or `connected-5`, that did not fit below the
    limit of devices.
    """

    partitions: tuple[Partition, ...]
    counters: tuple[CounterSet, ...]
    position: Mapping[str, int]
    left_out: tuple[str, ...] = ()


def partitioned(
    node: Node,
    published: Sequence[Device],
    at_most: int | None = None,
    sizes: Sequence[str] = (),
    links: Collection[linked.Pair] | None = None,
    *,
    parts: bool = False,
) -> Partitioned | None:
    """Return what `node` publishes with connected sets and core partitions beside its devices.

    `published` are its devices; one that represents several Neuron devices is a whole node. `at_most` limits the number
    of devices, by default to that of the type. `sizes`, such as `connected-4`, are the sizes that are wanted, the most
    important ones first; if it is empty, all are. `links` are those that are up; without it, those of this reading.
    `parts` divides a node that is published as one device too: sets and cores beside it, and sets of one in place of
    single devices. Returns None if nothing can be divided, because the instance type is unknown.
    """
    if node.spec is None:
        return None
    shown = []
    for device in published:
        if device.name == names.NODE_DEVICE or _is_of(device, node.spec):
            shown.append(device)
    at_most = devices_at_most(node.spec) if at_most is None else at_most
    up = linked.up_now(node) if links is None else links
    with_node = any(device.name == names.NODE_DEVICE for device in shown)
    is_whole = [device.name for device in shown] == [names.NODE_DEVICE]
    maker = _Maker(node, node.spec, up, with_node=with_node, with_ones=is_whole)
    kept = [maker.whole(device) for device in shown]
    if is_whole and not parts:
        return Partitioned(tuple(kept), maker.counters(), {names.NODE_DEVICE: 0})
    # A slot for each device that the type can publish, present or not, so that each keeps its position.
    slots: dict[str, tuple[int, int, str]] = {}
    for partition in maker.undivided(with_singles=not is_whole):
        slots[partition.device.name] = _use_order(partition)
    left_out = []
    for size_name, of_size in maker.sizes(sizes):
        if len(slots) + len(of_size) > at_most:
            left_out.append(size_name)
            continue
        for partition in of_size:
            slots[partition.device.name] = _use_order(partition)
            if maker.serves(partition):
                kept.append(partition)
    in_use_order = sorted(slots, key=lambda device_name: slots[device_name])
    position = {device_name: rank for rank, device_name in enumerate(in_use_order)}
    kept.sort(key=lambda partition: position[partition.device.name])
    return Partitioned(tuple(kept), maker.counters(), position, tuple(left_out))


def devices_at_most(spec: InstanceType | None) -> int:
    """Return the most devices that a node of a type publishes."""
    if spec is not None and spec.generation == "inf1":
        return DEVICES_AT_MOST_INF1
    return DEVICES_AT_MOST


def named(node: Node, name: str) -> Device | None:
    """Return a connected set, a core partition or the counters of a device by its name, whatever is published now.

    A claim that was allocated earlier may have it. Returns None for names that the instance type cannot have.
    """
    if node.spec is None:
        return None
    maker = _Maker(node, node.spec, linked.of_type(node.spec), with_node=False)
    behind = members.of(name, node.spec)
    if behind is not None:
        return (maker.set_of(behind.ids) if behind.cores is None else maker.cores_of(behind.cores.all)).device
    if name == names.NODE_DEVICE:
        return maker.whole(Device(name, maker.ids)).device
    suffix = name.removeprefix(names.DEVICE_PREFIX)
    if name.startswith(names.DEVICE_PREFIX) and suffix.isdecimal() and int(suffix) in maker.ids:
        return maker.whole(Device(name, (int(suffix),))).device
    return None


def _is_of(device: Device, spec: InstanceType) -> bool:
    """Return True if a single device is one that the type has; others have no counters, and are left out."""
    return len(device.device_ids) == 1 and device.device_ids[0] < spec.device_count


def _use_order(partition: Partition) -> tuple[int, int, str]:
    """Sort small partitions first, by their first core, so that small allocations gather at one end of the node."""
    return len(partition.cores), min(partition.cores), partition.device.name


class _Maker:
    """Makes the partitions of one node, as if all devices of its type were there.

    `links` are those that are up. With `with_node`, the whole node is published as one device, so a set of all devices
    is not; `with_ones`, sets of one device are published in place of the devices.
    """

    def __init__(
        self,
        node: Node,
        spec: InstanceType,
        links: Collection[linked.Pair],
        *,
        with_node: bool,
        with_ones: bool = False,
    ) -> None:
        self._node = node
        self._spec = spec
        self._with_ones = with_ones
        self._links = links
        self._with_node = with_node
        self._usable = {
            device.device_id: device for device in node.devices if device.core_count == spec.cores_per_device
        }
        self.ids = tuple(range(spec.device_count))
        self._cores_per_device = members.cores_each(spec)
        self._common = _common_attributes(node)

    def counters(self) -> tuple[CounterSet, ...]:
        """Return all counter sets."""
        sets: dict[str, dict[str, int]] = {}
        for device_id in self.ids:
            name = self._cores_set(device_id)
            sets.setdefault(name, {}).update({self._core_counter(core): 1 for core in self._cores_of(device_id)})
        devices = {self._device_counter(device_id): self._cores_per_device for device_id in self.ids}
        return (
            CounterSet(DEVICES_COUNTERS, devices),
            *(CounterSet(name, sets[name]) for name in sorted(sets, key=_last)),
        )

    def undivided(self, *, with_singles: bool) -> Iterator[Partition]:
        """Yield what the type publishes without sets and parts: single devices, the whole node, or both."""
        if with_singles:
            for device_id in self.ids:
                yield self.whole(Device(f"{names.DEVICE_PREFIX}{device_id}", (device_id,)))
        if self._with_node:
            yield self.whole(Device(names.NODE_DEVICE, self.ids))

    def whole(self, device: Device) -> Partition:
        """Return a published device, single or whole node, with its counters and sizes."""
        return self._of_devices(device, self.ids if device.name == names.NODE_DEVICE else device.device_ids)

    def serves(self, partition: Partition) -> bool:
        """Return True if all devices of a partition can be used, and links between them connect them all."""
        ids = partition.device.device_ids
        return all(device_id in self._usable for device_id in ids) and linked.is_connected(ids, self._links)

    def sizes(self, wanted_sizes: Sequence[str] = ()) -> Iterator[tuple[str, list[Partition]]]:
        """Yield each size with all its partitions, in the order of `wanted_sizes`, or the most requested ones first."""
        partitions_by_size: dict[str, list[Partition]] = {}
        for size, sets in self._sets().items():
            partitions_by_size[f"connected-{size}"] = [self.set_of(ids) for ids in sets]
        parts = {f"cores-{number}": self._parts(number) for number in range(1, self._cores_per_device)}
        partitions_by_size |= parts
        for number in self._range_sizes():
            partitions_by_size[f"cores-{number}"] = self._ranges(number)
        ones = ["connected-1"] if self._with_ones else []  # in place of single devices
        if wanted_sizes:
            order = [*ones, *wanted_sizes]
        else:
            popular_cores = [f"cores-{number}" for number in CORES_FIRST]
            popular_sets = [f"connected-{size}" for size in (*SETS_FIRST, len(self.ids))]
            order = [*ones, *parts, *popular_cores, *popular_sets, *partitions_by_size]
        for size_name in dict.fromkeys(order):
            if partitions_by_size.get(size_name):
                yield size_name, partitions_by_size[size_name]

    # Sets of whole devices

    def _sets(self) -> dict[int, list[tuple[int, ...]]]:
        """Return the connected sets by size, each as device ids in the order of the links."""
        total = len(self.ids)
        if total < 2:
            return {}
        if self._spec.shape in ("ring", "line"):
            sets_by_size: dict[int, list[tuple[int, ...]]] = {}
            for size in range(2, total):
                sets_by_size[size] = list(self._arcs(size))
        else:
            sets_by_size = {size: list(self._blocks(size)) for size in GROUPS if size < total}
        if self._with_ones:
            sets_by_size[1] = [(device_id,) for device_id in self.ids]
        if not self._with_node:
            sets_by_size[total] = [self.ids]
        return dict(sorted(sets_by_size.items()))

    def _arcs(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of `size` consecutive devices; those of a ring wrap."""
        total = len(self.ids)
        for first in self.ids if self._spec.shape == "ring" else self.ids[: total - size + 1]:
            yield tuple((first + step) % total for step in range(size))

    def _blocks(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of `size` devices with consecutive ids: the groups of a torus."""
        for first in range(0, len(self.ids), size):
            yield tuple(range(first, first + size))

    def set_of(self, ids: tuple[int, ...]) -> Partition:
        """Return the device for a connected set, named after its size and first device."""
        name = f"{names.SET_PREFIX}{len(ids)}-{ids[0]}"
        attributes = {
            **self._common,
            "deviceId": Attribute("int", ids[0]),
            "resourceType": Attribute("string", SET),
            **numa_node(self._node, ids),
        }
        return self._of_devices(Device(name, ids, attributes), ids)

    def _of_devices(self, device: Device, ids: Sequence[int]) -> Partition:
        """Return `device` as a partition that consumes all cores of the devices `ids`.

        It has their sizes, which the classes of sets select, only if links connect them.
        """
        core_numbers: list[int] = []
        for device_id in ids:
            core_numbers += self._cores_of(device_id)
        cores = frozenset(core_numbers)
        used = CounterSet(
            DEVICES_COUNTERS, {self._device_counter(device_id): self._cores_per_device for device_id in sorted(ids)}
        )
        attributes = dict(device.attributes)
        if linked.is_connected(ids, self._links):  # a whole node may be published though a part of it is cut off
            attributes |= _sizes(len(ids), len(cores))
        if len(attributes) + len(device.capacity) > limits.ROOM:
            attributes.pop(names.NUMA_NODE, None)  # a device of a Trn2 UltraServer, which has all attributes there are
        return Partition(replace(device, attributes=attributes, consumes=(used,)), cores)

    # Parts of devices, and ranges of cores

    def _parts(self, number: int) -> list[Partition]:
        """Return the partitions of `number` consecutive cores inside one device, for each device."""
        partitions = []
        for device_id in self.ids:
            cores = self._cores_of(device_id)
            for first in range(cores.start, cores.stop - number + 1):
                partitions.append(self.cores_of(range(first, first + number)))
        return partitions

    def _range_sizes(self) -> Collection[int]:
        """Return the numbers of cores that end inside a device, which only a range can have; rings and lines only."""
        total = len(self.ids) * self._cores_per_device
        if self._spec.shape not in ("ring", "line") or len(self.ids) < 2:
            return ()
        return [number for number in range(self._cores_per_device + 1, total) if number % self._cores_per_device]

    def _ranges(self, number: int) -> list[Partition]:
        """Return the ranges that start at a device and do not wrap past the last: visible cores must increase."""
        span = -(-number // self._cores_per_device)
        starts = self.ids[: len(self.ids) - span + 1]
        partitions = []
        for first in starts:
            partitions.append(
                self.cores_of(range(first * self._cores_per_device, first * self._cores_per_device + number))
            )
        return partitions

    def cores_of(self, cores: range) -> Partition:
        """Return the partition of a range of logical cores, numbered in the node.

        It consumes the number of its cores in `devices`, and the single cores of a device that it covers only partly.
        """
        per_device = self._cores_per_device
        ids = tuple(range(cores.start // per_device, (cores.stop - 1) // per_device + 1))
        used: dict[str, int] = {}
        single: dict[str, int] = {}
        last_partly = None  # at most one as published, because a range starts at a device's first core
        for device_id in ids:
            covered_cores = [core for core in self._cores_of(device_id) if core in cores]
            used[self._device_counter(device_id)] = len(covered_cores)
            if len(covered_cores) < per_device:
                last_partly = device_id
                single.update((self._core_counter(core), 1) for core in covered_cores)
        consumes = [CounterSet(DEVICES_COUNTERS, used)]
        if last_partly is not None:
            consumes.append(CounterSet(self._cores_set(last_partly), single))
        attributes = {
            **self._common,
            "deviceId": Attribute("int", ids[0]),
            "resourceType": Attribute("string", CORES),
            "cores": Attribute("int", len(cores)),
            **numa_node(self._node, ids),
        }
        device = Device(f"{names.CORES_PREFIX}{len(cores)}-{cores.start}", ids, attributes, consumes=tuple(consumes))
        return Partition(device, frozenset(cores))

    # Names

    def _cores_of(self, device_id: int) -> range:
        return range(device_id * self._cores_per_device, (device_id + 1) * self._cores_per_device)

    def _cores_set(self, device_id: int) -> str:
        """Return the name of the counter set with the cores of a device."""
        return f"cores-{device_id // (COUNTERS_PER_SET // self._cores_per_device)}"

    @staticmethod
    def _device_counter(device_id: int) -> str:
        return f"device-{device_id}"

    @staticmethod
    def _core_counter(core: int) -> str:
        return f"core-{core}"


def _last(name: str) -> int:
    return int(name.rpartition("-")[2])


def _sizes(devices: int, cores: int) -> dict[str, Attribute]:
    return {"connectedDevices": Attribute("int", devices), "cores": Attribute("int", cores)}


def _common_attributes(node: Node) -> dict[str, Attribute]:
    if node.instance_type_name:
        return {"instanceType": Attribute("string", node.instance_type_name)}
    return {}
