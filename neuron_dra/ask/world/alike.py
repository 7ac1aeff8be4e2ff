"""Which nodes are alike: a pod fits on all of them or on none, so one of them is looked at for all. Pure."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from neuron_dra.ask.world import relevance
from neuron_dra.simulate import model
from neuron_dra.simulate.model import DeviceId
from neuron_dra.simulate.pools import PoolInventory, ResourcePool


class Likeness:
    """Nodes whose devices are equal but for the node's name, so that a pod fits on all of them or on none."""

    def __init__(self, inventory: PoolInventory) -> None:
        self.inventory = inventory
        self._of_node: dict[str, tuple[int | None, Sequence[model.PoolDevice], Sequence[ResourcePool]]] = {}
        self._numbers: dict[object, int] = {}
        self._of_facts: dict[tuple[int, ...], int] = {}  # by the identities of facts, which the inventory keeps
        self._narrow: dict[Set[str], dict[int, int]] = defaultdict(dict)
        self._narrowed: dict[object, int] = {}
        self._plain: set[int] = set()  # identities of values that are no versions, which the inventory keeps
        self._read: dict[tuple[tuple[str, ...], Set[str]], Sequence[str]] = {}

    def key(self, node: model.NodeTraits, used: Set[DeviceId], read: Set[str] | None = None) -> object:
        """Return a value that is equal for equal nodes in equal use; None if the node has to be looked at itself.

        Of the devices' attributes, those with names in `read` count, all with None.
        """
        number, devices, _ = self._look(node)
        if number is None:
            return None
        return self.narrowed(node, number, read), tuple([device.id in used for device in devices])

    def narrowed(self, node: model.NodeTraits, number: int, read: Set[str] | None) -> int:
        """Return the number of the nodes with this number if only attributes in `read` count: it is negative then."""
        if read is None:
            return number
        narrowed_numbers = self._narrow[read]
        if number not in narrowed_numbers:
            what_is_read = read, tuple([(self._seen(device, read), device.taints) for device in self.devices(node)])
            narrowed_numbers[number] = self._narrowed.setdefault(what_is_read, -1 - len(self._narrowed))
        return narrowed_numbers[number]

    def devices(self, node: model.NodeTraits) -> Sequence[model.PoolDevice]:
        """Return the devices that a node can use."""
        return self._look(node)[1]

    def users(self, pools: Set[str]) -> Set[str]:
        """Return the names of the nodes that can use these pools."""
        names = set()
        for name, (_, _, have) in self._of_node.items():
            if not pools.isdisjoint(p.name for p in have):
                names.add(name)
        return names

    def pools(self, node: model.NodeTraits) -> Sequence[ResourcePool]:
        """Return the pools that a node can use."""
        return self._look(node)[2]

    def _look(self, node: model.NodeTraits) -> tuple[int | None, Sequence[model.PoolDevice], Sequence[ResourcePool]]:
        node_facts = self._of_node.get(node.name)
        if node_facts is None:
            pools = self.inventory.pools(node)
            devices: list[model.PoolDevice] = []
            for pool in pools:
                devices += pool.devices
            simple = all(pool.usable and not pool.counters for pool in pools)
            number = self._number(pools, devices) if simple else None
            node_facts = self._of_node[node.name] = number, devices, pools
        return node_facts

    def _number(self, pools: Sequence[ResourcePool], devices: Sequence[model.PoolDevice]) -> int | None:
        """Return the number of the nodes with equal devices; None if a device chooses its nodes itself."""
        same = tuple([id(facts) for pool in pools for facts in pool.facts])
        if same in self._of_facts:
            return self._of_facts[same]
        if any(device.per_device_nodes for device in devices):
            return None
        device_keys = tuple([(device.key, device.taints) for device in devices])
        number = self._of_facts[same] = self._numbers.setdefault(device_keys, len(self._numbers))
        return number

    def _seen(self, device: model.PoolDevice, read: Set[str]) -> object:
        """Return what claims that read these attributes see of a device; all of it if it has an unknown value."""
        read_values: list[tuple[str, str, object]] = []
        for name, typed_value in device.attributes.items():
            if id(typed_value) in self._plain:
                continue
            if len(typed_value) != 1:
                return device.key
            ((kind, inner),) = typed_value.items()
            if type(inner) not in _SCALARS:
                return device.key
            if kind == "version":  # an invalid one is an error in every selector
                read_values.append((name, kind, inner))
            else:
                self._plain.add(id(typed_value))
        for name in self._read_of(tuple(device.attributes), read):
            ((kind, inner),) = device.attributes[name].items()
            if kind != "version":
                read_values.append((name, kind, inner))
        capacity = [(name, text) for name, text in device.capacity.items() if relevance.local(name) in read]
        read_values.sort(key=operator.itemgetter(0))
        return device.id.driver, tuple(read_values), tuple(sorted(capacity))

    def _read_of(self, names: tuple[str, ...], read: Set[str]) -> Sequence[str]:
        """Return the names that are read, of attributes with these names, which most devices have."""
        key = names, read
        if key not in self._read:
            self._read[key] = [name for name in names if relevance.local(name) in read]
        return self._read[key]


_SCALARS: Final = frozenset({str, int, bool})


class Alike:
    """Nodes with equal devices in equal use: a pod fits on all of them or on none."""

    def __init__(self, likeness: Likeness, in_use: Set[DeviceId], keys: Mapping[str, object] | None = None) -> None:
        self._likeness = likeness
        self._in_use = in_use
        self._keys: dict[str, Any] = dict(keys or {})

    def key(self, node: model.NodeTraits, read: Set[str] | None = None) -> object:
        """Return a value that is equal for such nodes; None if the node has to be looked at itself.

        Of the devices' attributes, those with names in `read` count, all with None.
        """
        if node.name not in self._keys:
            self._keys[node.name] = self._likeness.key(node, self._in_use)
        key = self._keys[node.name]
        if key is None or read is None:
            return key
        number, used = key
        return self._likeness.narrowed(node, number, read), used

    def after(self, in_use: Set[DeviceId]) -> Alike:
        """Return the same for other devices in use: what is known of nodes with none of these devices stays."""
        touched = self._likeness.users({device_id.pool for device_id in self._in_use ^ in_use})
        kept_keys = {name: key for name, key in self._keys.items() if name not in touched}
        return Alike(self._likeness, in_use, kept_keys)
