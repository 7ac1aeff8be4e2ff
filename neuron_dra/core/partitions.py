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

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.devices import Attribute, Device
from neuron_dra.core.topology import NeuronDevice, Node

DEVICES_AT_MOST: Final = 256
"""The most devices that a node publishes; a size that would exceed it is left out completely."""

COUNTERS_PER_SET: Final = 32
COUNTER_SETS_PER_SLICE: Final = 8

SET_PREFIX: Final = "neuron-set-"
CORES_PREFIX: Final = "neuron-cores-"
SET: Final = "neuron_set"
CORES: Final = "neuron_cores"
DEVICES_COUNTERS: Final = "devices"

CORES_FIRST: Final = (9,)
SETS_FIRST: Final = (2, 3, 4, 6, 8, 12)
"""Sizes that are published first if not all of them fit."""

GROUPS: Final = (4, 8, 16)
"""Set sizes on a torus or a switch, in devices: rows, pairs of rows, all."""


@dataclass(frozen=True, slots=True)
class CounterSet:
    """A named set of counters, or the part of one that a device consumes."""

    name: str
    counters: Mapping[str, int]

    def to_wire(self, name_field: str = "name") -> dict[str, Any]:
        """Return it in the form of resource.k8s.io/v1; `name_field` is counterSet for consumed counters."""
        return {name_field: self.name, "counters": {name: {"value": str(n)} for name, n in self.counters.items()}}


@dataclass(frozen=True, slots=True)
class Partition:
    """A device as published and the counters that it consumes; `cores` are its logical cores, numbered in the node."""

    device: Device
    cores: frozenset[int]
    consumes: tuple[CounterSet, ...]

    def to_wire(self) -> dict[str, Any]:
        """Return the device in the form of resource.k8s.io/v1."""
        return {**self.device.to_wire(), "consumesCounters": [each.to_wire("counterSet") for each in self.consumes]}


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Everything that a node publishes, in the order in which the scheduler should use it, and the counters.

    `left_out` are the sizes, such as `cores 3` or `set 5`, that did not fit below the limit of devices.
    """

    partitions: tuple[Partition, ...]
    counters: tuple[CounterSet, ...]
    left_out: tuple[str, ...] = ()


def partitioned(node: Node, published: Sequence[Device], at_most: int = DEVICES_AT_MOST) -> Partitioned | None:
    """Return what `node` publishes with connected sets and core partitions beside its devices.

    `published` are its devices; one that represents several Neuron devices is a whole node. `at_most` limits the number
    of devices. Returns None if nothing can be divided: the instance type is unknown, or the devices do not all have the
    same known number of cores.
    """
    present = [device for device in node.devices if device.node_present]
    if node.spec is None or not present or len({device.core_count for device in present}) != 1:
        return None
    each = present[0].core_count // node.spec.lnc_default
    if each == 0:
        return None
    made = _Maker(node, node.spec, present, each)
    kept = [made.whole(device) for device in published]
    left_out = []
    for name, of_size in made.sizes():
        if not of_size:
            continue
        if len(kept) + len(of_size) > at_most:
            left_out.append(name)
        else:
            kept += of_size
    return Partitioned(tuple(sorted(kept, key=_use_order)), made.counters(), tuple(left_out))


def _use_order(one: Partition) -> tuple[int, int]:
    """Sort small partitions first, by their first core, so that small allocations gather at one end of the node."""
    return len(one.cores), min(one.cores)


class _Maker:
    """Makes the partitions of one node; `each` is the number of logical cores of a device."""

    def __init__(self, node: Node, spec: InstanceType, present: Sequence[NeuronDevice], each: int) -> None:
        self._spec = spec
        self._by_id = {device.device_id: device for device in present}
        self._ids = sorted(self._by_id)
        self._each = each
        self._common = _common_attributes(node)

    def counters(self) -> tuple[CounterSet, ...]:
        """Return all counter sets."""
        sets: dict[str, dict[str, int]] = {}
        for device_id in self._ids:
            name = self._cores_set(device_id)
            sets.setdefault(name, {}).update({self._core_counter(core): 1 for core in self._cores_of(device_id)})
        devices = {self._device_counter(device_id): self._each for device_id in self._ids}
        return (
            CounterSet(DEVICES_COUNTERS, devices),
            *(CounterSet(name, sets[name]) for name in sorted(sets, key=_last)),
        )

    def whole(self, device: Device) -> Partition:
        """Return a published device, single or whole node, with its counters and sizes."""
        ids = tuple(each for each in device.device_ids if each in self._by_id)
        return self._of_devices(device, ids)

    def sizes(self) -> Iterator[tuple[str, list[Partition]]]:
        """Yield every size with all its partitions, the most requested sizes first."""
        sets = {size: [self._set(ids) for ids in found] for size, found in self._sets().items()}
        ranges = {number: self._ranges(number) for number in self._range_sizes()}
        for number in range(1, self._each):
            yield (
                f"cores {number}",
                [self._part(device_id, number, n) for device_id in self._ids for n in self._starts(number)],
            )
        first = [("cores", number) for number in CORES_FIRST] + [
            ("set", size) for size in (*SETS_FIRST, len(self._ids))
        ]
        rest = [("set", size) for size in sorted(sets)] + [("cores", number) for number in sorted(ranges)]
        for kind, size in dict.fromkeys((*first, *rest)):
            yield f"{kind} {size}", (sets if kind == "set" else ranges).get(size, [])

    # Sets of whole devices

    def _sets(self) -> dict[int, list[tuple[int, ...]]]:
        """Return the connected sets by size, each as device ids in the order of the links."""
        total = len(self._ids)
        if total < 2 or total != self._spec.device_count:
            return {}  # a device is missing, so the links are not those of the type
        if self._spec.shape in ("ring", "line"):
            found = {size: list(self._arcs(size)) for size in range(2, total)}
        else:
            found = {size: list(self._blocks(size)) for size in GROUPS if size < total}
        return {**{size: sets for size, sets in found.items() if sets}, total: [tuple(self._ids)]}

    def _arcs(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of `size` consecutive devices of a ring or line whose links are all up."""
        for first in self._ids:
            ids = tuple((first + step) % len(self._ids) for step in range(size))
            if all(self._linked(one, other) for one, other in itertools.pairwise(ids)):
                yield ids

    def _blocks(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of `size` devices with consecutive ids: the groups of a torus."""
        for first in range(0, len(self._ids), size):
            yield tuple(range(first, first + size))

    def _linked(self, one: int, other: int) -> bool:
        return other in self._by_id[one].connected

    def _set(self, ids: tuple[int, ...]) -> Partition:
        """Return the device for a connected set, named after its size and first device."""
        name = f"{SET_PREFIX}{len(ids)}-{ids[0]}"
        attributes = {**self._common, "deviceId": Attribute("int", ids[0]), "resourceType": Attribute("string", SET)}
        return self._of_devices(Device(name, ids, attributes), ids)

    def _of_devices(self, device: Device, ids: tuple[int, ...]) -> Partition:
        """Return `device` as a partition that consumes all cores of the devices `ids`."""
        cores = frozenset(core for device_id in ids for core in self._cores_of(device_id))
        sized = replace(device, attributes={**device.attributes, **_sizes(len(ids), len(cores))})
        used = CounterSet(DEVICES_COUNTERS, {self._device_counter(device_id): self._each for device_id in sorted(ids)})
        return Partition(sized, cores, (used,))

    # Parts of devices, and ranges of cores

    def _starts(self, number: int) -> range:
        return range(self._each - number + 1)

    def _part(self, device_id: int, number: int, start: int) -> Partition:
        """Return the partition of `number` cores inside one device, from its core `start` on."""
        return self._cores(range(device_id * self._each + start, device_id * self._each + start + number))

    def _range_sizes(self) -> Iterable[int]:
        """Return the numbers of cores that end inside a device, which only a range can have; rings and lines only."""
        if self._spec.shape not in ("ring", "line") or not self._sets():
            return ()
        total = len(self._ids) * self._each
        return [number for number in range(self._each + 1, total) if number % self._each]

    def _ranges(self, number: int) -> list[Partition]:
        """Return the ranges that start at a device and do not wrap past the last: visible cores must increase."""
        found = []
        span = -(-number // self._each)
        for first in self._ids[: len(self._ids) - span + 1]:
            ids = range(first, first + span)
            if all(self._linked(one, one + 1) for one in ids[:-1]):
                found.append(self._cores(range(first * self._each, first * self._each + number)))
        return found

    def _cores(self, cores: range) -> Partition:
        """Return the partition of a range of logical cores, numbered in the node.

        It consumes the number of its cores in `devices`, and the single cores of a device that it covers only partly.
        """
        each = self._each
        ids = tuple(range(cores.start // each, (cores.stop - 1) // each + 1))
        used = {
            self._device_counter(device_id): len([core for core in self._cores_of(device_id) if core in cores])
            for device_id in ids
        }
        consumes = [CounterSet(DEVICES_COUNTERS, used)]
        partly = [device_id for device_id in ids if used[self._device_counter(device_id)] < each]
        if partly:  # at most one, because a range starts at a device's first core
            [last] = partly
            single = {self._core_counter(core): 1 for core in self._cores_of(last) if core in cores}
            consumes.append(CounterSet(self._cores_set(last), single))
        attributes = {
            **self._common,
            "deviceId": Attribute("int", ids[0]),
            "resourceType": Attribute("string", CORES),
            "cores": Attribute("int", len(cores)),
            "firstCore": Attribute("int", cores.start),
        }
        device = Device(f"{CORES_PREFIX}{len(cores)}-{cores.start}", ids, attributes)
        return Partition(device, frozenset(cores), tuple(consumes))

    # Names

    def _cores_of(self, device_id: int) -> range:
        return range(device_id * self._each, (device_id + 1) * self._each)

    def _cores_set(self, device_id: int) -> str:
        """Return the name of the counter set with the cores of a device."""
        return f"cores-{device_id // (COUNTERS_PER_SET // self._each)}"

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
    return {"instanceType": Attribute("string", node.instance_type_name)} if node.instance_type_name else {}
