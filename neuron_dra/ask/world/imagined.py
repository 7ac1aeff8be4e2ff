"""Fleets that do not exist: `10 x trn2.48xlarge` as the Nodes and slices that healthy nodes would publish. Pure."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from neuron_dra import __version__
from neuron_dra.api import objects
from neuron_dra.api.objects import slice_objects
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.world import demand
from neuron_dra.core import catalogue, devices, dra_driver, names, partitions
from neuron_dra.core import efa as core_efa
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.core.facts import UltraServerFacts
from neuron_dra.core.members import is_partition
from neuron_dra.core.partitions import Partitioned
from neuron_dra.errors import SettingsError
from neuron_dra.simulate import model

MOST_NODES: Final = 20_000
_LINE: Final = re.compile(r"([0-9]{1,9})\s*x\s+(ultraserver\s+)?(\S+)((?:\s+\S+)*)", re.IGNORECASE)
_LABEL: Final = re.compile(r"([\w./-]+)=([\w.-]*)")
_TAINT: Final = re.compile(r"([\w./-]+)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
_SET_ATTRIBUTES: Final = {"connected": "connectedDevices", "cores": "cores"}
_SET_CLASS: Final = re.compile(rf"((?:connected|cores)-[1-9][0-9]*)\.{re.escape(names.DRIVER)}")
API: Final = "resource.k8s.io/v1"
EFA: Final = "efa"
"""The word for nodes that must have EFA interfaces."""
EFA_CLASS: Final = core_efa.CLASS
EFA_DRIVER: Final = dra_driver.EFA.name
_TRN1_NUMA: Final = {"10": 0, "20": 0, "90": 1, "a0": 1}
"""The NUMA node by the bus of an interface of a trn1.32xlarge."""
_PLAIN: Final = "node"  # stands for a node without Neuron devices in place of an instance type
_SYNTAX: Final = (
    "write 10 x trn2.48xlarge, 2 x ultraserver trn2u.48xlarge, or 1 x node for one without devices; after it, labels "
    "and taints, such as pool=a neuron=true:NoSchedule"
)
_PLACE: Final = "neuron-dra-imagined-node"  # replaced by the node's name in a copy of its type's slices
MODES: Final = (1, 2, 3, 4)


def fleet(
    text: str, source: str, sets: Collection[str] = (), *, shared: bool = False, interfaces: bool = False
) -> list[dict[str, Any]]:
    """Return Nodes, slices and DeviceClasses of the fleet that `text` describes, a line for each type.

    A line may end with labels and taints of its nodes, as kubectl writes them. `sets` are sizes of connected sets and
    core partitions, such as connected-4, that the nodes publish too, as with the chart's scheduler.enabled. With
    `shared`, equal nodes have the same list of devices, which nobody may change then. A line has the EFA interfaces of
    its type if it ends with the word efa, and with `interfaces` also without that word if they are known. Raises
    SettingsError, which names `source`.
    """
    items: list[dict[str, Any]] = [*map(dict, objects.DEVICE_CLASSES), *map(_set_class, sets)]
    numbers: Counter[str] = Counter()
    has_interfaces = False
    for line in text.replace(",", "\n").splitlines():
        description = line.partition("#")[0].strip()
        if not description:
            continue
        match = _LINE.fullmatch(description)
        if match is None:
            raise SettingsError(f"{source}: {description!r}: {_SYNTAX}")
        spec = catalogue.lookup(match[3])
        if spec is None and match[3] != _PLAIN:
            raise SettingsError(f"{source}: the instance type {match[3]} is unknown{catalogue.nearest(match[3])}")
        if match[2] and (spec is None or not spec.whole_node):
            raise SettingsError(f"{source}: {match[3]} forms no UltraServers")
        words = match[4].split()
        efa = EFA in words
        if efa and (spec is None or spec.efa is None):
            raise SettingsError(f"{source}: {match[3]} has no EFA interfaces beside its devices that are known")
        marks = _marks([word for word in words if word != EFA], source)
        number = int(match[1]) * (4 if match[2] else 1)
        if sum(numbers.values()) + number > MOST_NODES:
            raise SettingsError(f"{source}: more than {MOST_NODES} nodes")
        if spec is None:
            objects_of_line = _plain(number, numbers)
        else:
            has_efa = efa or (interfaces and spec.efa is not None)
            node_type = _OfType(spec, sets, grouped=bool(match[2]), shared=shared, efa=has_efa)
            objects_of_line = _nodes(node_type, number, numbers)
            has_interfaces |= has_efa
        items += [_marked(fleet_object, *marks) for fleet_object in objects_of_line]
    if not numbers:
        raise SettingsError(f"{source}: it names no nodes; write 10 x trn2.48xlarge")
    return [*items, _efa_class()] if has_interfaces else items


def _efa_class() -> dict[str, Any]:
    """Return the DeviceClass of AWS's chart for DRANET."""
    attributes = f"device.attributes['{EFA_DRIVER}']"
    expression = f"device.driver == '{EFA_DRIVER}' && {attributes}.pciDevice == '{core_efa.PCI_DEVICE}'"
    meta = {"name": EFA_CLASS}
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": meta,
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def _interface_slice(node: str, interfaces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the slice of a node's EFA interfaces."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": EFA_DRIVER, "nodeName": node, "pool": pool, "devices": interfaces}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{EFA_DRIVER}-00"}, "spec": spec}


def _interfaces(spec: InstanceType) -> list[dict[str, Any]]:
    """Return the EFA interfaces of a type, as the driver publishes them; none if AWS publishes no map of them.

    PCIe root, NUMA node and subsystem are published too, and known of trn1 alone: no capture of others is public.
    """
    interfaces = []
    is_captured = spec.name.removeprefix(catalogue.SAGEMAKER) == "trn1.32xlarge"
    for function in sorted(set(spec.efa or ())):
        _, bus, slot = function.split(".")[0].split(":")
        number = function.partition(".")[2]
        rdma_name = f"rdmap{int(bus, 16)}s{int(slot, 16)}" + (f"f{number}" if number != "0" else "")
        interface = core_efa.Interface(function, rdma_name)
        if is_captured:
            interface = replace(interface, numa_node=_TRN1_NUMA[bus], subsystem="efa1", pcie_root=f"pci0000:{bus}")
        interfaces.append(dict(core_efa.published(interface, spec)))
    return interfaces


def is_whole(device: dict[str, Any]) -> bool:
    """Return True for a whole Neuron device, not a set or a part of some."""
    return str(device["name"]).startswith(names.DEVICE_PREFIX)


def _marks(words: list[str], source: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the labels and taints that `words` name."""
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []
    for word in words:
        if label := _LABEL.fullmatch(word):
            labels[label[1]] = label[2]
        elif taint := _TAINT.fullmatch(word):
            taints.append({"key": taint[1], "value": taint[2] or "", "effect": taint[3]})
        else:
            raise SettingsError(f"{source}: {word!r}: {_SYNTAX}")
    return labels, taints


def _marked(fleet_object: dict[str, Any], labels: dict[str, str], taints: list[dict[str, str]]) -> dict[str, Any]:
    """Return the object, with labels and taints if it is a Node."""
    if fleet_object["kind"] == "Node":
        fleet_object["metadata"]["labels"].update(labels)
        fleet_object["spec"].update({"taints": taints} if taints else {})
    return fleet_object


def _plain(number: int, numbers: Counter[str]) -> Iterable[dict[str, Any]]:
    for _ in range(number):
        yield _node(f"{_PLAIN}-{numbers[_PLAIN]}", {})
        numbers[_PLAIN] += 1


class _OfType:
    """The slices of the nodes of a type, made once for each position in an UltraServer."""

    def __init__(self, spec: InstanceType, sets: Collection[str], *, grouped: bool, shared: bool, efa: bool) -> None:
        self.spec = spec
        self._interfaces = _interfaces(spec) if efa else []
        self.family = spec.name.removeprefix(catalogue.SAGEMAKER).partition(".")[0]
        self._sets = sets
        self._grouped = grouped
        self._shared = shared
        self._texts_by_position: dict[int, list[tuple[str, Any]]] = {}

    def slices(self, name: str, place: int) -> Iterator[dict[str, Any]]:
        """Yield the slices of a node."""
        position = place % 4 if self._grouped else 0
        server = f"{self.family}-ultraserver-{place // 4}" if self._grouped else ""
        if position not in self._texts_by_position:
            items = _slices(self.spec, position if self._grouped else None, self._sets)
            self._texts_by_position[position] = [self._text(raw_slice) for raw_slice in items]
        for text, published in self._texts_by_position[position]:
            raw_slice = msgspec.json.decode(text.replace(_PLACE, name).replace(f"{_PLACE}-server".upper(), server))
            if published is not None:
                raw_slice["spec"]["devices"] = published
            yield raw_slice
        if self._interfaces:
            yield _interface_slice(name, self._interfaces if self._shared else copy.deepcopy(self._interfaces))

    def _text(self, raw_slice: dict[str, Any]) -> tuple[str, Any]:
        """Return the text of a slice, and its devices apart if they are the same for each node."""
        published = raw_slice["spec"].get("devices")
        if not self._shared or not published or _PLACE in json.dumps(published).lower():
            return json.dumps(raw_slice), None
        return json.dumps({**raw_slice, "spec": {**raw_slice["spec"], "devices": None}}), published


def _nodes(node_type: _OfType, number: int, numbers: Counter[str]) -> Iterable[dict[str, Any]]:
    for _ in range(number):
        place = numbers[node_type.family]
        numbers[node_type.family] += 1
        name = f"{node_type.family}-{place}"
        yield _node(name, {names.INSTANCE_TYPE_LABEL: node_type.spec.name})
        yield from node_type.slices(name, place)


def _node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    labels = {**labels, "kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}}


def _slices(spec: InstanceType, position: int | None, sets: Collection[str]) -> list[dict[str, Any]]:
    """Return the slices of a node; `position` is that in a complete UltraServer, None outside of one."""
    node = objects.healthy_node(spec.name, ultraserver=_facts(spec, position))
    published = devices.published(node, driver_version=__version__)
    # The controller is taken to be where UltraServers are, so their nodes are not divided.
    if sets:
        divided = partitions.partitioned(node, published, parts=position is None)
    else:
        divided = None
    slices = slice_objects(_PLACE, published, _requested(divided, sets) if divided is not None else None)
    return [{**raw_slice, "metadata": {"name": raw_slice["metadata"]["name"]}} for raw_slice in slices]


def healthy(node: str, spec: InstanceType, sets: Collection[str]) -> list[dict[str, Any]]:
    """Return the slices that a healthy node of a type publishes, outside of an UltraServer."""
    slices: list[dict[str, Any]] = json.loads(json.dumps(_slices(spec, None, sets)).replace(_PLACE, node))
    return slices


def _requested(divided: Partitioned, sets: Collection[str]) -> Partitioned:
    """Return what a node publishes without the sizes that no pod requests: no claim can get them."""
    kept = []
    for partition in divided.partitions:
        names_of_size = {f"connected-{len(partition.device.device_ids)}", f"cores-{len(partition.cores)}"}
        if not is_partition(partition.device.name) or not names_of_size.isdisjoint(sets):
            kept.append(partition)
    return replace(divided, partitions=tuple(kept))


def _set_class(size: str) -> dict[str, Any]:
    """Return the DeviceClass of a size of connected sets or core partitions, as the chart has it."""
    kind, _, number = size.rpartition("-")
    attribute = _SET_ATTRIBUTES[kind]
    attributes = f"device.attributes['{names.DRIVER}']"
    return objects.device_class(
        f"{size}.{names.DRIVER}",
        f"has({attributes}.{attribute}) && {attributes}.{attribute} == {number} && !has({attributes}.workloadUid)",
    )


def requested_sets(snapshot: Snapshot) -> frozenset[str]:
    """Return the sizes of connected sets and core partitions that pods request by limits, or claims by their class."""
    named: set[str] = set()
    for pod in snapshot.all("Pod"):
        named.update(name.removeprefix(demand.IMPLICIT) for name in demand.limits(pod))
    claims_of_templates = []
    for template in snapshot.all("ResourceClaimTemplate"):
        claims_of_templates.append(demand.from_template(template, "", ""))
    for claim in (*snapshot.all("ResourceClaim"), *claims_of_templates):
        for request in model.claim(claim).requests:
            named.update(alternative.class_name for alternative in request.alternatives)
    matches = [_SET_CLASS.fullmatch(name) for name in named]
    return frozenset(match[1] for match in matches if match)


def _facts(spec: InstanceType, position: int | None) -> UltraServerFacts | None:
    if position is None:
        if spec.whole_node:
            return UltraServerFacts(modes=(names.RUNTIME_MODE_SINGLE,))
        return None
    server = f"{_PLACE}-server".upper()
    if spec.platform is Platform.ULTRASERVER:
        pair = position // 2
        return UltraServerFacts(
            modes=MODES,
            node_id_2=position % 2,
            node_id_4=position,
            server_id_2=f"{server}-{pair}",
            server_id_4=server,
        )
    return UltraServerFacts(modes=MODES, node_id=position, reservation_id=server)
