"""The devices that a node publishes, with their attributes and capacities.

Names, types and conditions of the attributes are those of AWS's driver. The types are part of the contract, because
selectors break if one changes: a CEL expression that reads an absent attribute or compares two types fails the pod.
Attributes without a domain belong to the driver's domain, neuron.aws.com. docs/attributes.md is generated from the
tables here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from neuron_dra.core import groups, health, names
from neuron_dra.core.catalogue import GIB
from neuron_dra.core.counters import CounterSet
from neuron_dra.core.facts import DEFAULT_SERVER_ID, Unread, group_sizes
from neuron_dra.core.topology import NeuronDevice, Node


@dataclass(frozen=True, slots=True)
class Attribute:
    """The typed value of one attribute, as in resource/v1, DeviceAttribute.

    `kind` is the field of the API that holds the value: `string` and `version` hold text, `int` a 64-bit number, `bool`
    true or false. core/limits.py checks the values.
    """

    kind: Literal["string", "int", "bool", "version"]
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class Device:
    """A device as published.

    - `name`: the name in the ResourceSlice, a DNS label; unique in the pool.
    - `device_ids`: the Neuron devices behind it, one or, for a whole node, all present ones.
    - `attributes`, `capacity`: by name, without a domain for those of this driver; capacities are canonical quantities.
    - `consumes`: its part of shared counters.
    """

    name: str
    device_ids: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    consumes: tuple[CounterSet, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return the device in the form of resource.k8s.io/v1, with its attributes and capacities sorted by name."""
        wire: dict[str, Any] = {"name": self.name}
        if self.attributes:
            wire["attributes"] = {}
            for name, attribute in sorted(self.attributes.items()):
                wire["attributes"][name] = {attribute.kind: attribute.value}
        if self.capacity:
            wire["capacity"] = {name: {"value": value} for name, value in sorted(self.capacity.items())}
        if self.consumes:
            wire["consumesCounters"] = [counter_set.to_wire("counterSet") for counter_set in self.consumes]
        return wire


@dataclass(frozen=True, slots=True)
class Described:
    """An attribute for docs/attributes.md.

    - `name`: with a domain only if it is not this driver's.
    - `kind`: the type, as in `Attribute.kind`.
    - `when`: the condition under which a device has it.
    - `text`: its meaning and source.
    - `of_site`: its value is not the instance type's, but a cluster's: `validate` judges no selector that reads it.
    """

    name: str
    kind: str
    when: str
    text: str
    of_site: bool = False


ATTRIBUTES: tuple[Described, ...] = (
    Described("deviceId", "int", "always", "number N of /dev/neuronN; for a whole node, that of its first device"),
    Described("instanceType", "string", "always", "EC2 instance type"),
    Described(
        "neuronDriverVersion", "string", "always", "version of the kernel driver, as it reports it", of_site=True
    ),
    Described("draDriverVersion", "version", "always", "version of this driver", of_site=True),
    Described(
        "resourceType",
        "string",
        "always",
        "`neuron_device`, or `neuron_node` for a whole UltraServer node; with connected sets also `neuron_set` and "
        "`neuron_cores`",
    ),
    Described(
        "networkNodeLayer1",
        "string",
        "if the Node has the label",
        "EC2 instance topology, farthest layer",
        of_site=True,
    ),
    Described(
        "networkNodeLayer2", "string", "if the Node has the label", "EC2 instance topology, middle layer", of_site=True
    ),
    Described(
        "networkNodeLayer3", "string", "if the Node has the label", "EC2 instance topology, nearest layer", of_site=True
    ),
    Described("topology_x", "int", "Trainium torus, not UltraServer", "row of the device, 0 to 3"),
    Described("topology_y", "int", "Trainium torus, not UltraServer", "column of the device, 0 to 3"),
    Described("topology4_id", "int", "Trainium torus, not UltraServer", "row: four connected devices"),
    Described("topology8_id", "int", "Trainium torus, not UltraServer", "pair of rows: eight connected devices"),
    Described("capacityBlockId", "string", "UltraServers", "EC2 capacity block of the UltraServer", of_site=True),
    Described("resource.aws.com/devicegroup1_id", "string", "types with EFA", "PCI function of the device's EFA"),
    Described(
        "resource.aws.com/devicegroup4_id", "string", "types with EFA", "group of four, equal to the EFA driver's"
    ),
    Described("resource.aws.com/devicegroup8_id", "string", "types with EFA", "group of eight"),
    Described("resource.aws.com/devicegroup16_id", "string", "types with EFA", "group of sixteen"),
    Described(
        names.NUMA_NODE,
        "int",
        "if all devices behind this one are known to have the same; not on single devices of Trn2 UltraServers with "
        "connected sets",
        "NUMA node, which drivers of CPUs and network interfaces publish too: on types with EFA, that of the device's "
        "EFA function; elsewhere, that of all the kernel driver's PCI functions if they have the same",
    ),
    Described(
        "ultraserverId",
        "string",
        "UltraServers",
        "capacity block id, or the hardware's id if there is none; of a pair of Trn2 nodes its id and `-2`. The id 1, "
        "which a kernel driver without parameters gives every node, is none",
        of_site=True,
    ),
    Described("ultraserverNodeId", "int", "UltraServers", "number of this node in its UltraServer"),
    Described("ultraserverModes", "string", "UltraServers", "group sizes that this node supports, such as `1_2_4`"),
    Described("serverId2", "string", "Trn2 UltraServers", "id shared by the pair of nodes", of_site=True),
    Described("serverId4", "string", "Trn2 UltraServers", "id shared by the four nodes", of_site=True),
    Described("reservationId", "string", "Trn3 UltraServers", "id shared by the nodes of the partition", of_site=True),
    Described("nodeId2", "int", "Trn2 UltraServers", "number of this node in its pair"),
    Described("nodeId4", "int", "Trn2 UltraServers", "number of this node among four"),
    Described("linkVertical", "bool", "UltraServers", "links inside the rack are up"),
    Described("linkHorizontal", "bool", "UltraServers", "links between the racks are up"),
)

TAGS: tuple[Described, ...] = (
    Described("workloadId", "string", "on reserved nodes", "name of the workload for which the node is reserved"),
    Described("workloadNamespace", "string", "on reserved nodes", "namespace of that workload"),
    Described("workloadUid", "string", "on reserved nodes", "UID of that workload"),
    Described("allocationId", "string", "on reserved nodes", "id of the reservation, new for each"),
    Described(
        "workloadPhase",
        "string",
        "on reserved nodes",
        "`Pending` until every node of the workload has its tag, `Bound` while its pods may start, `Draining` while "
        "the node is released",
    ),
)
"""The attributes that a reserved UltraServer node adds to its devices (core/ultraserver.py, Tag)."""

SIZES: tuple[Described, ...] = (
    Described("connectedDevices", "int", "with connected sets; not on core partitions", "number of Neuron devices"),
    Described("cores", "int", "with connected sets", "number of logical NeuronCores, at the type's default size"),
)
"""The attributes of devices that are published with connected sets (core/partitions.py)."""

MARKS: tuple[Described, ...] = (
    Described(
        health.ATTRIBUTE,
        "string",
        "on unhealthy devices",
        "the reasons, worst first, separated by commas",
    ),
)
"""The attribute that an unhealthy device has besides its taints (core/health.py)."""

CAPACITIES: tuple[tuple[str, str], ...] = (
    ("neuronCores", "physical NeuronCores of all Neuron devices behind this one"),
    ("memory", "device memory of all Neuron devices behind this one; absent for unknown instance types"),
)


def published(node: Node, *, driver_version: str, ultraserver_devices: str = "node") -> tuple[Device, ...]:
    """Return what `node` publishes, in the order of ids: its devices, one device for a whole UltraServer node, or both.

    Both overlap, so they are published together only with the counters of core/partitions. A node without any device
    publishes none.

    - `driver_version`: of this driver, the attribute draDriverVersion.
    - `ultraserver_devices`: the setting of that name; `node` publishes an UltraServer node as one device, `devices`
      each device, `both` one device and each. Other nodes ignore it.
    """
    whole: tuple[Device, ...] = ()
    if node.devices and node.spec is not None and node.spec.whole_node and ultraserver_devices != "devices":
        whole = (_whole_node(node, driver_version),)
    if node.spec is not None and node.spec.whole_node and ultraserver_devices == "node":
        return whole
    ids = groups.group_ids(node.spec) if node.spec else {}
    singles = (_device(node, device, ids.get(device.device_id, {}), driver_version) for device in node.devices)
    return (*whole, *singles)


def named(node: Node, name: str, *, driver_version: str) -> Device | None:
    """Return a device or the whole node by its name, as it is published without connected sets; None for other names.

    A claim that was allocated earlier may have it, whatever is published now.
    """
    if name == names.NODE_DEVICE:
        if node.devices:
            return _whole_node(node, driver_version)
        return None
    for device in node.devices:
        if device.name == name:
            ids = groups.group_ids(node.spec) if node.spec else {}
            return _device(node, device, ids.get(device.device_id, {}), driver_version)
    return None


def _device(node: Node, device: NeuronDevice, group: Mapping[int, str], driver_version: str) -> Device:
    """Return one published device; `group` has the ids of its groups by size."""
    values: dict[str, Attribute | None] = {
        "deviceId": Attribute("int", device.device_id),
        **_common(node, "neuron_device", driver_version),
        **_coordinates(node, device),
        **{f"{names.GROUP_DOMAIN}/devicegroup{size}_id": _string(value) for size, value in group.items()},
        **_ultraserver(node),
        **numa_node(node, (device.device_id,)),
    }
    return Device(device.name, (device.device_id,), _present(values), _capacity([device]))


def _whole_node(node: Node, driver_version: str) -> Device:
    """Return the device that represents the whole node, with the present devices' cores and memory."""
    ids = tuple(device.device_id for device in node.devices)
    values = {
        # AWS documents it as always present, and a selector that reads an absent attribute fails for every pod.
        "deviceId": Attribute("int", min(ids)),
        **_common(node, "neuron_node", driver_version),
        **_ultraserver(node),
        **numa_node(node, ids),
    }
    return Device(names.NODE_DEVICE, ids, _present(values), _capacity(node.devices))


def numa_node(node: Node, ids: Collection[int]) -> dict[str, Attribute]:
    """Return the attribute of the NUMA node of the devices `ids`; nothing if one is unknown or they differ."""
    numa_node_by_id = {device.device_id: device.numa_node for device in node.devices}
    nodes = {numa_node_by_id.get(device_id) for device_id in ids}
    only = nodes.pop() if len(nodes) == 1 else None
    if only is None:
        return {}
    return {names.NUMA_NODE: Attribute("int", only)}


def _common(node: Node, resource_type: str, driver_version: str) -> dict[str, Attribute | None]:
    """Return the attributes that devices and whole nodes share; None for unknown values."""
    return {
        "instanceType": _string(node.instance_type_name),
        "neuronDriverVersion": _string(node.driver_version),
        "draDriverVersion": Attribute("version", driver_version),
        "resourceType": _string(resource_type),
        **{f"networkNodeLayer{n}": _string(layer) for n, layer in enumerate(node.labels.network_layers, start=1)},
    }


def _coordinates(node: Node, device: NeuronDevice) -> dict[str, Attribute | None]:
    """Return the attributes of the torus: x is the row and y the column, as in AWS's driver.

    Only single Trainium nodes with a 4 x 4 torus have them: UltraServer nodes are published without, and an id beyond
    the type's device count has no place.
    """
    spec = node.spec
    if spec is None or not spec.is_trainium or spec.whole_node or spec.shape != "torus":
        return {}
    if device.device_id >= spec.device_count:
        return {}
    row, column = divmod(device.device_id, 4)
    return {
        "topology_x": Attribute("int", row),
        "topology_y": Attribute("int", column),
        "topology4_id": Attribute("int", row),
        "topology8_id": Attribute("int", row // 2),
    }


def ultraserver_id(node: Node) -> str | None:
    """Return `ultraserverId`: the capacity block's id, or else the hardware's; None while both are unknown.

    The hardware's id is the reservation on Trn3, the id of the four nodes on Trn2, or that of a pair with `-2`: without
    it, the id of a pair can equal that of a former group of four. None for a type without UltraServers.
    """
    if node.spec is None or not node.spec.whole_node:
        return None
    facts = node.ultraserver
    pair_id = _identifying(facts.server_id_2)
    hardware_id = _identifying(facts.reservation_id) or _identifying(facts.server_id_4)
    return node.labels.capacity_block_id or hardware_id or (f"{pair_id}-2" if pair_id else None)


def _identifying(server_id: str | Unread) -> str | None:
    """Return an id of a server or reservation; None if it is unknown, or the default that all nodes have."""
    if isinstance(server_id, Unread) or server_id == DEFAULT_SERVER_ID:
        return None
    return server_id


def _ultraserver_node_id(node: Node) -> int | Unread:
    """Return the node's number in the UltraServer that `ultraserver_id` names."""
    facts = node.ultraserver
    if not isinstance(facts.node_id, Unread):
        return facts.node_id
    is_pair = (ultraserver_id(node) or "") == f"{_identifying(facts.server_id_2)}-2"
    return facts.node_id_2 if is_pair else facts.node_id_4


def _ultraserver(node: Node) -> dict[str, Attribute | None]:
    """Return the UltraServer attributes; unknown values are None and not published.

    `modes` decide the links: linkVertical is up in the modes for four nodes and for a vertical pair, linkHorizontal in
    those for four and for a horizontal pair.
    """
    spec, facts = node.spec, node.ultraserver
    if spec is None or not spec.whole_node:
        return {}
    modes = () if isinstance(facts.modes, Unread) else facts.modes
    return {
        "capacityBlockId": _string(node.labels.capacity_block_id),
        "ultraserverId": _string(ultraserver_id(node)),
        "ultraserverNodeId": _int(_ultraserver_node_id(node)),
        "ultraserverModes": _string("_".join(map(str, group_sizes(modes)))),
        "serverId2": _string(_identifying(facts.server_id_2)),
        "serverId4": _string(_identifying(facts.server_id_4)),
        "reservationId": _string(_identifying(facts.reservation_id)),
        "nodeId2": _int(facts.node_id_2),
        "nodeId4": _int(facts.node_id_4),
        **_links(modes),
    }


def _links(modes: Collection[int]) -> dict[str, Attribute | None]:
    if not modes:
        return {}
    vertical, horizontal = 1 in modes or 3 in modes, 1 in modes or 2 in modes
    return {"linkVertical": Attribute("bool", vertical), "linkHorizontal": Attribute("bool", horizontal)}


def _capacity(devices: Iterable[NeuronDevice]) -> dict[str, str]:
    """Return the total cores and memory of the devices, as quantities.

    A capacity that is unknown for one of them is left out, because a partial sum would be wrong.
    """
    devices = list(devices)
    capacity = {}
    if all(device.core_count for device in devices):
        capacity["neuronCores"] = str(sum(device.core_count for device in devices))
    if all(device.memory_bytes for device in devices):
        gib = sum(device.memory_bytes or 0 for device in devices) // GIB
        # The API server's spelling: with another one, slices would never equal the desired ones.
        capacity["memory"] = f"{gib}Gi" if gib % 1024 else f"{gib // 1024}Ti"
    return capacity


def _string(value: str | Unread | None) -> Attribute | None:
    """Return a string attribute; None, for no attribute, if the value is unread or empty."""
    if isinstance(value, str) and value:
        return Attribute("string", value)
    return None


def _int(value: int | Unread) -> Attribute | None:
    """Return an int attribute; None, for no attribute, if the value is unread."""
    if isinstance(value, Unread):
        return None
    return Attribute("int", value)


def _present(values: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    """Return the attributes that have a value."""
    return {name: value for name, value in values.items() if value is not None}
