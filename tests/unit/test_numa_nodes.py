"""NUMA nodes of devices: from the PCI functions of their EFA interfaces, or of the kernel driver."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from neuron_dra.api import objects
from neuron_dra.core import catalogue, devices, limits, names, partitions, topology
from neuron_dra.core.facts import NodeLabels, NumaFacts, UltraServerFacts
from neuron_dra.core.numa import numa_nodes
from neuron_dra.emulation import simulated_node, simulated_pci
from neuron_dra.node.hardware import sysfs

LABELS: Final = NodeLabels("x", ("nn-1", "nn-2", "nn-3"), "cr-1")
NEURON_LS: Final = dict(
    enumerate(
        zip(
            ("cc", "b5", "b6", "cb", "6f", "58", "59", "6e", "9b", "84", "85", "9a", "f8", "e1", "e2", "f7"),
            (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1),
            strict=True,
        )
    )
)
"""Bus and NUMA node of each device of a trn2n.48xlarge, as neuron-ls prints them (Neuron SDK, neuron-ls)."""


def read(root: Path) -> topology.Node:
    return topology.build(sysfs.read_node(root), NodeLabels.from_labels({}))


def nodes(node: topology.Node) -> list[int | None]:
    return [device.numa_node for device in node.devices]


def published(node: topology.Node, shape: str = "devices") -> dict[str, object]:
    """Return the attribute by device; devices without it are left out."""
    found = devices.published(node, driver_version="1.2.3", ultraserver_devices=shape)
    return {each.name: each.attributes[names.NUMA_NODE].value for each in found if names.NUMA_NODE in each.attributes}


def function_file(root: Path, function: str) -> Path:
    return root / simulated_pci.PCI / "devices" / function / "numa_node"


def test_each_efa_function_is_on_the_bus_next_to_its_device() -> None:
    """This is why the NUMA node of the EFA function is the device's."""
    spec = catalogue.lookup("trn2.48xlarge")
    assert spec is not None
    assert spec.efa is not None
    efa = [int(function.split(":")[1], 16) for function in spec.efa]
    neuron = {device_id: int(bus, 16) for device_id, (bus, _) in NEURON_LS.items()}
    numa = {device_id: node for device_id, (_, node) in NEURON_LS.items()}
    assert all(0 < neuron[device_id] - efa[device_id] <= 3 for device_id in neuron)
    others = [abs(neuron[one] - efa[other]) for one in neuron for other in neuron if numa[one] != numa[other]]
    assert min(others) > 0x10
    assert numa_nodes(spec) == [numa for _, numa in NEURON_LS.values()]


def test_simulated_devices_have_the_node_of_their_efa_function(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    expected = {f"neuron-device-{device_id}": numa for device_id, (_, numa) in NEURON_LS.items()}
    assert published(read(tmp_path)) == expected
    assert published(objects.healthy_node("trn2.48xlarge")) == expected


@pytest.mark.parametrize("text", ["-1\n", "", "busy\n", "0 1\n", "99999\n", None])
def test_function_without_a_node_publishes_nothing(tmp_path: Path, text: str | None) -> None:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    file = function_file(tmp_path, "0000:c9:00.0")
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert nodes(read(tmp_path)) == [None, 1, 1, 1, *[0] * 8, *[1] * 4]


def test_group_of_four_may_span_two_nodes(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "trn1.32xlarge")
    assert nodes(read(tmp_path)) == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("numa_nodes", "expected"),
    [([1] * 6, 1), ([1, 1, 1, 1, 1, 0], None), ([1, 1, 1, 1, 1, -1], None), ([-1] * 6, None)],
)
def test_without_a_map_all_functions_must_have_one_node(
    tmp_path: Path, numa_nodes: list[int], expected: int | None
) -> None:
    simulated_node.write(tmp_path, "inf2.24xlarge")
    for device_id, numa in enumerate(numa_nodes):
        function_file(tmp_path, simulated_pci.neuron_function(device_id)).write_text(f"{numa}\n")
    assert nodes(read(tmp_path)) == [expected] * 6


def test_without_a_map_one_unreadable_function_is_enough_to_publish_nothing(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "inf2.24xlarge")
    for device_id in range(6):
        function_file(tmp_path, simulated_pci.neuron_function(device_id)).write_text("1\n")
    function_file(tmp_path, simulated_pci.neuron_function(3)).unlink()
    assert nodes(read(tmp_path)) == [None] * 6


def test_node_without_pci_folder_has_no_nodes(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    (tmp_path / simulated_pci.PCI).rename(tmp_path / "elsewhere")
    assert sysfs.read_node(tmp_path).numa == NumaFacts()


def test_sets_and_whole_nodes_have_the_node_of_all_their_devices() -> None:
    node = objects.healthy_node("trn2.48xlarge")
    single = devices.published(node, driver_version="1.2.3")
    found = partitions.partitioned(node, single, sizes=["connected-4", "connected-8", "cores-1"])
    assert found is not None
    by_name = {one.device.name: one.device.attributes.get(names.NUMA_NODE) for one in found.partitions}
    shown = {name: attribute and attribute.value for name, attribute in by_name.items()}
    assert {name: shown[name] for name in shown if "-set-" in name} == {
        "neuron-set-4-0": 1, "neuron-set-4-4": 0, "neuron-set-4-8": 0, "neuron-set-4-12": 1,
        "neuron-set-8-0": None, "neuron-set-8-8": None,
    }  # fmt: skip
    assert (shown["neuron-cores-1-0"], shown["neuron-cores-1-63"]) == (1, 1)
    ultra = objects.healthy_node("trn2u.48xlarge")
    same = replace(ultra, devices=tuple(replace(device, numa_node=0) for device in ultra.devices))
    assert (published(ultra, "node"), published(same, "node")) == ({}, {"neuron-node-0": 0})


@pytest.mark.parametrize("instance_type", sorted(known.name for known in catalogue.all_types()))
def test_all_attributes_fit_with_tags_marks_and_sizes(instance_type: str) -> None:
    trn2 = UltraServerFacts(modes=(1, 3, 4), node_id_2=0, node_id_4=2, server_id_2="5" * 16, server_id_4="6" * 16)
    trn3 = UltraServerFacts(modes=(1, 3, 4), node_id=2, reservation_id="7" * 16)
    told = trn3 if instance_type.startswith("trn3") else trn2
    node = replace(objects.healthy_node(instance_type, ultraserver=told), labels=LABELS)
    shape = "both" if node.spec is not None and node.spec.whole_node else "devices"
    proposed = devices.published(node, driver_version="1.2.3", ultraserver_devices=shape)
    kept, problems = limits.check_devices(proposed)
    assert problems == []
    divided = partitions.partitioned(node, kept)
    assert divided is not None
    full = limits.ATTRIBUTES_AND_CAPACITIES - len(devices.TAGS) - len(devices.MARKS)
    sizes = Counter(len(one.device.attributes) + len(one.device.capacity) <= full for one in divided.partitions)
    assert set(sizes) == {True}
