"""The resource pools that one node can use.

Source: dynamic-resource-allocation/structured, GatherPools. Only the newest generation of a
pool counts. The pool is incomplete while slices of it are missing. It is invalid if the name of a device or of a
counter set occurs twice, or if a device consumes a counter that the pool does not have. Slices for other nodes are
looked at only if those for this node are not as many as the pool has.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model, nodes
from neuron_dra.simulate.model import NodeTraits, PoolDevice, PoolSlice, SliceSummary
from neuron_dra.simulate.semantics import NEW, Semantics


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """A pool that the node can use. `devices` are in the order in which the allocator tries them."""

    driver: str
    name: str
    devices: tuple[PoolDevice, ...] = ()
    incomplete: bool = False
    invalid: str = ""
    counters: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)  # the totals
    binds: bool = False  # a device has binding conditions
    facts: tuple[SliceSummary, ...] = ()  # of its slices: pools with the same ones differ in their names only

    @property
    def usable(self) -> bool:
        """Return True if its devices may be allocated."""
        return not (self.incomplete or self.invalid)


class PoolInventory:
    """All slices of a cluster, decoded once and indexed by node, and how its scheduler uses them."""

    def __init__(self, slices: Iterable[Wire], semantics: Semantics = NEW) -> None:
        self.semantics = semantics
        self._of_node: dict[str, list[PoolSlice]] = defaultdict(list)
        self._shared: list[PoolSlice] = []
        self._of_pool: dict[tuple[str, str], list[PoolSlice]] = defaultdict(list)
        self._keys: dict[object, object] = {}
        self._add(slices)

    def after(self, old: Iterable[Wire], new: Iterable[Wire]) -> PoolInventory:
        """Return the inventory with these slices in place of those; what is decoded of others stays."""
        inventory = PoolInventory((), self.semantics)
        inventory._keys = self._keys
        inventory._of_node |= self._of_node
        inventory._of_pool |= self._of_pool
        removed = [(wire["metadata"]["name"], model.resource_slice(wire)) for wire in old]
        names = {name for name, _ in removed}
        inventory._shared = [pool_slice for pool_slice in self._shared if pool_slice.name not in names]
        nodes_of_old = {pool_slice.where.node_name for _, pool_slice in removed if pool_slice.where.node_name}
        for node in nodes_of_old:
            of_node = self._of_node[node]
            inventory._of_node[node] = [pool_slice for pool_slice in of_node if pool_slice.name not in names]
        for pool in {(pool_slice.driver, pool_slice.pool) for _, pool_slice in removed}:
            of_pool = self._of_pool[pool]
            inventory._of_pool[pool] = [pool_slice for pool_slice in of_pool if pool_slice.name not in names]
        inventory._add(new)
        return inventory

    def _add(self, slices: Iterable[Wire]) -> None:
        devices = model.DeviceDecoder(self._keys)
        for wire in slices:
            decoded = model.resource_slice(wire, devices)
            decoded = _before(decoded, self.semantics)
            node, pool = decoded.where.node_name, (decoded.driver, decoded.pool)
            if node:
                self._of_node[node] = [*self._of_node[node], decoded]
            else:
                self._shared.append(decoded)
            self._of_pool[pool] = [*self._of_pool[pool], decoded]

    def homes(self, driver: str, pool: str) -> set[str]:
        """Return the names of the nodes that the slices of a pool name; empty ones are those of no single node."""
        return {pool_slice.where.node_name or "" for pool_slice in self._of_pool.get((driver, pool), ())}

    def is_ordered(self, node: NodeTraits, drivers: Set[str]) -> bool:
        """Return whether the scheduler tries the devices of these drivers on a node always in the same order."""
        if self.semantics.sorted_slices:
            return True
        slices_of_driver: Counter[str] = Counter()
        for pool in self.pools(node):
            slices_of_driver[pool.driver] += max(len(pool.facts), 1)
        return all(slices_of_driver[driver] <= 1 for driver in drivers)

    def pools(self, node: NodeTraits) -> tuple[ResourcePool, ...]:
        """Return the pools that the node can use, by driver and name; pools with binding conditions come last."""
        newest: dict[tuple[str, str], list[PoolSlice]] = {}
        for candidate in (*self._of_node.get(node.name, ()), *self._shared):
            if candidate.compatibility_groups or not _relevant(candidate, node):
                continue
            if candidate.per_device_nodes and not self.semantics.partitions:
                continue
            key = (candidate.driver, candidate.pool)
            newest_slices = newest.get(key)
            if newest_slices is None or candidate.generation > newest_slices[0].generation:
                newest[key] = [candidate]
            elif candidate.generation == newest_slices[0].generation:
                newest_slices.append(candidate)
        pools = [self._pool(key, slices) for key, slices in newest.items()]
        return tuple(sorted((pool for pool in pools if pool is not None), key=_order))

    def _pool(self, key: tuple[str, str], slices: list[PoolSlice]) -> ResourcePool | None:
        generation, slice_count, whole = slices[0].generation, slices[0].slice_count, slices
        incomplete = len(slices) != slice_count and self.semantics.loose_pools
        if len(slices) != slice_count and not incomplete:
            everywhere = self._of_pool[key]
            if any(pool_slice.generation > generation for pool_slice in everywhere):
                return None  # the driver is replacing this generation
            whole = [
                pool_slice
                for pool_slice in everywhere
                if pool_slice.generation == generation and not pool_slice.compatibility_groups
            ]
            if len(whole) != slice_count:
                return ResourcePool(*key, incomplete=True)
        if len(slices) > 1:
            slices.sort(key=lambda pool_slice: pool_slice.name)
        devices = _devices(slices)
        if twice := _named_twice(slices, devices):
            return ResourcePool(*key, invalid=f"the device name {twice} occurs more than once")
        known_counters: dict[tuple[str, str], Fraction] = {}
        names_seen: set[str] = set()
        for counters in itertools.chain.from_iterable(pool_slice.counters for pool_slice in whole):
            names_here = {name for name, _ in counters}
            if names_here & names_seen:
                return ResourcePool(*key, invalid="a counter set occurs more than once")
            names_seen |= names_here
            known_counters |= counters
        consuming = [pool_slice for pool_slice in whole if pool_slice.facts.consume]
        for device in _devices(consuming):
            if device.consumes and (unknown := device.consumes.keys() - known_counters.keys()):
                name, counter = min(unknown)
                why = f"device {device.id.device} consumes the unknown counter {counter} of {name}"
                return ResourcePool(*key, invalid=why)
        binds = any(pool_slice.facts.bind for pool_slice in slices if not pool_slice.has_counters)
        facts = tuple([pool_slice.facts for pool_slice in slices])
        return ResourcePool(*key, devices, incomplete, counters=known_counters, binds=binds, facts=facts)


def _devices(slices: Iterable[PoolSlice]) -> tuple[PoolDevice, ...]:
    """Return the devices of slices; those with the counters of the pool have none."""
    listed = [pool_slice.devices for pool_slice in slices if not pool_slice.has_counters]
    if len(listed) == 1:
        return listed[0]
    return tuple(itertools.chain.from_iterable(listed))


def _named_twice(slices: Sequence[PoolSlice], devices: Sequence[PoolDevice]) -> str:
    """Return the first name that several devices of these slices have; empty if each has its own."""
    if len(slices) == 1:
        return "" if slices[0].has_counters else slices[0].facts.twice
    names = [device.id.device for device in devices]
    return model.twice(names)


def disagreeing(slices: Iterable[Wire]) -> list[str]:
    """Return a text for each pool whose newest slices disagree on their number, which names two of them."""
    newest: dict[tuple[str, str], list[Wire]] = {}
    for wire in slices:
        spec = wire["spec"]
        key = (spec["driver"], spec["pool"]["name"])
        newest_slices = newest.setdefault(key, [])
        generation = _generation(wire)
        if not newest_slices or generation > _generation(newest_slices[0]):
            newest[key] = [wire]
        elif generation == _generation(newest_slices[0]):
            newest_slices.append(wire)
    disagreements = []
    for (driver, pool), listed in newest.items():
        counts = {wire["spec"]["pool"]["resourceSliceCount"]: wire["metadata"]["name"] for wire in listed}
        if len(counts) > 1:
            texts = [f"ResourceSlice {name} says {number}" for number, name in counts.items()]
            disagreements.append(f"the slices of pool {driver}/{pool} disagree on their number: {', '.join(texts)}")
    return disagreements


def _generation(wire: Wire) -> int:
    return int(wire["spec"]["pool"].get("generation") or 0)


def _before(decoded: PoolSlice, semantics: Semantics) -> PoolSlice:
    """Return a slice without what an earlier version does not have."""
    if semantics.partitions and semantics.taints:
        return decoded
    devices, counters, facts = decoded.devices, decoded.counters, decoded.facts
    if not semantics.partitions:
        counters = ()
        if facts.consume:
            devices = tuple(device for device in devices if not device.consumes)
            facts = model.facts(devices)
    if not semantics.taints:
        devices = tuple(msgspec.structs.replace(device, taints=()) if device.taints else device for device in devices)
    return dataclasses.replace(decoded, devices=devices, counters=counters, facts=facts)


def _relevant(candidate: PoolSlice, node: NodeTraits) -> bool:
    if candidate.per_device_nodes:
        return any(nodes.reaches(device.where, node) for device in candidate.devices)
    return nodes.reaches(candidate.where, node)


def _order(pool: ResourcePool) -> tuple[bool, str, str]:
    return (pool.binds, pool.driver, pool.name)
