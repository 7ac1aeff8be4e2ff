"""The fuzz target `sets`: what a node of any type, in any condition, publishes with connected sets (16.1)."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hack.oracle.packing import possible
from neuron_dra.core import catalogue, devices, limits, members, names, partitions, slices, topology
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, Unread
from neuron_dra.core.partitions import Partition, Partitioned
from neuron_dra.emulation.embedded_api import slice_rules
from tests.fuzz.fuzz_inputs import Bytes

POOL: Final = slices.Pool("node-a", "node-uid")
SHAPES: Final = ("devices", "both", "node")


def connected_sets(data: bytes) -> None:
    """On any hardware, only sets that it serves are published; counters say exactly what overlaps."""
    source = Bytes(data)
    spec = source.pick(_types())
    node = topology.build(_facts(source, spec), NodeLabels())
    shape, sizes = source.pick(SHAPES), _sizes(source, spec)
    published, _ = limits.check_devices(devices.published(node, driver_version="0.1.0", ultraserver_devices=shape))
    found = partitions.partitioned(node, published, sizes=sizes)
    assert found is not None
    shown = [one.device.name for one in found.partitions]
    assert len(shown) == len({*shown}) <= partitions.devices_at_most(spec) >= len(found.position)
    assert shown == sorted(shown, key=lambda name: found.position[name])
    for one in found.partitions:
        _served(one, node, spec)
    _counted(found, spec)
    _nothing_missing(found, node, spec, sizes)
    chosen = [source.pick(found.partitions) for _ in range(source.below(6))] if found.partitions else []
    for one in chosen:
        _named(one, node, spec)
    _excluded(found, chosen)
    _accepted(found)


@functools.cache
def _types() -> tuple[InstanceType, ...]:
    """Return one of each kind of types: others differ in their names and their memory."""
    every = catalogue.all_types()
    return tuple(
        {
            (of.shape, of.links, of.device_count, of.cores_per_device, of.lnc_default, of.whole_node): of
            for of in every
        }.values()
    )


def _facts(source: Bytes, spec: InstanceType) -> NodeFacts:
    """Return a node of this type of which up to eight things are wrong; links may be reported by one end only."""
    found: dict[int, DeviceFacts] = {
        i: DeviceFacts(i, spec.cores_per_device, spec.links[i] if spec.links else (), (243, i), True)
        for i in range(spec.device_count)
    }
    for _ in range(source.below(9)):
        number, other = source.below(spec.device_count + 2), source.below(spec.device_count)
        found.setdefault(number, DeviceFacts(number, spec.cores_per_device, (), (243, number), True))
        match source.below(8):
            case 0 | 1:
                _link(found, number, other, up=False)
            case 2:
                _link(found, number, other, up=True)
            case 3:
                _link(found, number, other, up=True)
                _link(found, other, number, up=True)
            case 4:
                found[number] = replace(found[number], connected=source.pick(((), Unread.BUSY)))
            case 5:
                cores = source.pick((0, 1, spec.cores_per_device * 2, Unread.BUSY))
                found[number] = replace(found[number], core_count=cores)
            case 6:
                found[number] = replace(found[number], device_file=not found[number].device_file)
            case 7:
                del found[number]
    return NodeFacts(spec.name, "2.30.2.0", tuple(found[number] for number in sorted(found)))


def _link(found: dict[int, DeviceFacts], one: int, other: int, *, up: bool) -> None:
    """Let one end report a link, or none."""
    linked = found[one].connected if one in found else Unread.BUSY
    if not isinstance(linked, Unread):
        kept = tuple(each for each in linked if each != other)
        found[one] = replace(found[one], connected=(*kept, other) if up else kept)


def _sizes(source: Bytes, spec: InstanceType) -> tuple[str, ...]:
    """Return the setting --connected-sizes: mostly empty, else some sizes, possible or not."""
    most = spec.device_count * members.cores_each(spec)
    return tuple(
        f"connected-{source.below(spec.device_count + 2)}" if source.below(2) else f"cores-{source.below(most + 2)}"
        for _ in range(max(0, source.below(8) - 4))
    )


def _is_usable(node: topology.Node, spec: InstanceType, device_id: int) -> bool:
    return any(one.device_id == device_id and one.core_count == spec.cores_per_device for one in node.devices)


def _served(one: Partition, node: topology.Node, spec: InstanceType) -> None:
    """The place is one that the type has; its devices can be used, and the links between them are up."""
    name, ids = one.device.name, one.device.device_ids
    if not members.is_partition(name):
        return
    kind, size, _ = name.removeprefix("neuron-").split("-")
    size_name = f"{'connected' if kind == 'set' else kind}-{size}"
    assert sum(1 << core for core in one.cores) in possible(spec.name, size_name), name
    assert all(_is_usable(node, spec, device_id) for device_id in ids), name
    assert _is_linked(node, spec, ids), name


def _is_linked(node: topology.Node, spec: InstanceType, ids: Collection[int]) -> bool:
    """Return True if the members reach each other over links between them that no end denies."""
    if spec.shape == "switch":
        return True
    reported = {device.device_id: device.reported for device in node.devices}
    colour = {device_id: device_id for device_id in ids}
    for one, other in itertools.permutations(ids, 2):
        here, there = reported[one], reported[other]
        denied = (here is not None and other not in here) or (there is not None and one not in there)
        known = here is not None and there is not None
        if not denied and (known or other in spec.links[one]):
            colour = {each: colour[one] if of == colour[other] else of for each, of in colour.items()}
    return len(set(colour.values())) == 1


def _counted(found: Partitioned, spec: InstanceType) -> None:
    """A device consumes each of its cores once: of a whole device in `devices`, of a part also one by one."""
    each = members.cores_each(spec)
    set_of = {name: of.name for of in found.counters if of.name != "devices" for name in of.counters}
    for one in found.partitions:
        per_device = Counter(core // each for core in one.cores)
        expected = {("devices", f"device-{i}"): n for i, n in per_device.items()}
        for core in one.cores:
            if per_device[core // each] < each:
                expected[set_of[f"core-{core}"], f"core-{core}"] = 1
        used = {(of.name, name): number for of in one.device.consumes for name, number in of.counters.items()}
        assert used == expected, one.device.name


def _named(one: Partition, node: topology.Node, spec: InstanceType) -> None:
    """The name alone leads to the same counters and members."""
    again = partitions.named(node, one.device.name)
    assert again is not None
    assert again.consumes == one.device.consumes, one.device.name
    cores: Collection[int] = _all_cores(one, spec)
    if members.is_partition(one.device.name):
        behind = members.of(one.device.name, spec)
        assert behind is not None
        assert behind.ids == one.device.device_ids, one.device.name
        cores = behind.cores.all if behind.cores else cores
    assert one.cores == frozenset(cores), one.device.name


def _all_cores(one: Partition, spec: InstanceType) -> list[int]:
    """Return all cores of the devices; the whole node also has those of missing devices."""
    each = members.cores_each(spec)
    ids = range(spec.device_count) if one.device.name == names.NODE_DEVICE else one.device.device_ids
    return [core for device_id in ids for core in range(device_id * each, (device_id + 1) * each)]


@functools.cache
def _places(instance_type: str, size: str) -> Mapping[int, frozenset[int]]:
    """Return every place of a size that the hardware has, as its cores by their bits."""
    return {
        bits: frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)
        for bits in possible(instance_type, size)
    }


def _nothing_missing(found: Partitioned, node: topology.Node, spec: InstanceType, sizes: Collection[str]) -> None:
    """Each size is published in every place that the hardware serves, or it is left out and nowhere."""
    shown = Counter(name.rpartition("-")[0] for name in (one.device.name for one in found.partitions))
    for size in found.left_out:
        assert not shown[f"neuron-{size.replace('connected', 'set')}"], size
        assert len(found.position) + len(_places(spec.name, size)) > partitions.devices_at_most(spec), size
    has_node = any(one.device.name == names.NODE_DEVICE for one in found.partitions)
    if has_node and len(found.partitions) == 1:
        return
    each, usable = members.cores_each(spec), {i for i in range(spec.device_count) if _is_usable(node, spec, i)}
    for size in {*sizes} or _every_size(spec):
        kind, _, number = size.rpartition("-")
        is_ring = spec.shape in ("ring", "line")
        if size in found.left_out or (kind == "connected" and int(number) < 2):
            continue
        if kind == "connected" and has_node and int(number) == spec.device_count:
            continue
        if kind == "cores" and not (
            0 < int(number) < each or (is_ring and int(number) % each and spec.device_count > 1)
        ):
            continue
        served = 0
        for cores in _places(spec.name, size).values():
            ids = {core // each for core in cores}
            first = next((i for i in sorted(ids) if (i - 1) % spec.device_count not in ids), 0)
            around = [(first + step) % spec.device_count for step in range(len(ids))]
            served += ids <= usable and _is_linked(node, spec, around)
        assert shown[f"neuron-{size.replace('connected', 'set')}"] == served, size


@functools.cache
def _every_size(spec: InstanceType) -> frozenset[str]:
    cores = spec.device_count * members.cores_each(spec)
    return frozenset(
        {f"connected-{n}" for n in range(2, spec.device_count + 1)} | {f"cores-{n}" for n in range(1, cores)}
    )


def _excluded(found: Partitioned, chosen: Sequence[Partition]) -> None:
    """The counters allow a few devices together if, and only if, no core is in two of them."""
    together = list({one.device.name: one for one in chosen}.values())
    left = {(of.name, name): number for of in found.counters for name, number in of.counters.items()}
    for one in together:
        for of in one.device.consumes:
            for name, number in of.counters.items():
                left[of.name, name] -= number
    cores = Counter(core for one in together for core in one.cores)
    assert (min(left.values()) >= 0) == all(count == 1 for count in cores.values()), [o.device.name for o in together]


def _accepted(found: Partitioned) -> None:
    """The API server accepts the slices, and each device is in one of them."""
    wires: list[Any] = [one.device.to_wire() for one in found.partitions]
    counters = [each.to_wire() for each in found.counters]
    made = slices.desired(POOL, wires, 1, counters=counters, position=found.position)
    for item in made:
        assert slice_rules.check(item, None) == []
    kept = [device["name"] for item in made for device in item["spec"].get("devices", ())]
    assert sorted(kept) == sorted(device["name"] for device in wires)
