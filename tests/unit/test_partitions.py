"""16.1: connected sets and core partitions: what each type publishes, and that counters say exactly what overlaps."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, devices, slices, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.partitions import (
    COUNTERS_PER_SET,
    DEVICES_AT_MOST,
    DEVICES_AT_MOST_INF1,
    Partition,
    Partitioned,
    partitioned,
)
from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs

TYPES = ("inf1.xlarge", "inf1.6xlarge", "inf1.24xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge",
         "trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge", "trn3e.24xlarge")  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, topology.Node]:
    """A node of each type, as the kernel driver shows it."""
    found = {}
    for name in TYPES:
        root: Path = tmp_path_factory.mktemp("node") / name
        simulated_node.write(root, name)
        found[name] = topology.build(sysfs.read_node(root), NodeLabels.from_labels({}))
    return found


def made(node: topology.Node, ultraserver_devices: str = "devices") -> Partitioned:
    published = devices.published(node, driver_version="1.2.3", ultraserver_devices=ultraserver_devices)
    found = partitioned(node, published)
    assert found is not None
    return found


def tally(found: Partitioned) -> dict[str, int]:
    """Count what is published, by kind and size: `set 3`, `cores 9`, and `device` for those without a size."""

    def name(one: Partition) -> str:
        parts = one.device.name.split("-")
        return f"{parts[1]} {parts[2]}" if parts[1] in ("set", "cores") else parts[1]

    return dict(Counter(map(name, found.partitions)))


def test_ring_has_all_arcs_and_core_counts(nodes: dict[str, topology.Node]) -> None:
    ring = made(nodes["inf2.48xlarge"])
    arcs = {f"set {size}": 12 for size in range(2, 12)} | {"set 12": 1}
    ranges = {f"cores {number}": 12 - number // 2 for number in range(3, 24, 2)}
    assert tally(ring) == {"device": 12, "cores 1": 24, **arcs, **ranges}
    assert ring.left_out == ()


def test_excess_sets_are_omitted_by_size(nodes: dict[str, topology.Node]) -> None:
    ring = made(nodes["inf1.24xlarge"])
    sets = {f"set {size}": 16 for size in range(2, 16)} | {"set 16": 1}
    cores = {"cores 1": 64, "cores 2": 48, "cores 3": 32}
    ranges = {f"cores {number}": 17 - -(-number // 4) for number in range(5, 16) if number % 4}
    assert tally(ring) == {"device": 16, **cores, **ranges, **sets}
    assert len(ring.partitions) == DEVICES_AT_MOST_INF1
    assert ring.left_out == tuple(f"cores-{number}" for number in range(17, 64) if number % 4)


def test_sizes_that_are_chosen_stay_below_the_limit(nodes: dict[str, topology.Node]) -> None:
    published = devices.published(nodes["inf1.24xlarge"], driver_version="1.2.3")
    found = partitioned(nodes["inf1.24xlarge"], published, sizes=("cores-17", "connected-15"))
    assert found is not None
    assert tally(found) == {"device": 16, "cores 17": 12, "set 15": 16}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("inf1.xlarge", {"device": 1, "cores 1": 4, "cores 2": 3, "cores 3": 2}),
        ("trn2.3xlarge", {"device": 1, "cores 1": 4, "cores 2": 3, "cores 3": 2}),
        ("trn1.32xlarge", {"device": 16, "cores 1": 32, "set 4": 4, "set 8": 2, "set 16": 1}),
        (
            "trn2.48xlarge",
            {"device": 16, "cores 1": 64, "cores 2": 48, "cores 3": 32, "set 4": 4, "set 8": 2, "set 16": 1},
        ),
        ("trn3e.24xlarge", {"device": 4, "cores 1": 16, "cores 2": 12, "cores 3": 8, "set 4": 1}),
    ],
)
def test_torus_has_the_sets_of_its_groups(nodes: dict[str, topology.Node], name: str, expected: dict[str, int]) -> None:
    assert tally(made(nodes[name])) == expected


def test_a_line_does_not_wrap(nodes: dict[str, topology.Node]) -> None:
    line = made(nodes["inf2.24xlarge"])
    sets = {one.device.device_ids for one in line.partitions if one.device.name.startswith("neuron-set-")}
    assert sets == {tuple(range(first, first + size)) for size in range(2, 7) for first in range(7 - size)}


def test_arc_over_a_broken_link_is_not_published(nodes: dict[str, topology.Node]) -> None:
    ring = nodes["inf2.48xlarge"]
    cut = tuple(
        replace(one, reported=(one.reported or frozenset()) - {{3: 4, 4: 3}.get(one.device_id, -1)})
        for one in ring.devices
    )
    over = [
        one.device.name
        for one in made(replace(ring, devices=cut)).partitions
        if {3, 4} <= set(one.device.device_ids) and one.device.name.startswith("neuron-set-")
    ]
    # The long way round has both ends of the link and does not cross it: only all devices are connected without it.
    assert over == ["neuron-set-12-0"]


def test_nine_cores_are_contiguous(nodes: dict[str, topology.Node]) -> None:
    """The pod of the scheduler extension's documents, on the type of its log."""
    found = {one.device.name: one for one in made(nodes["inf1.6xlarge"]).partitions}
    nine = found["neuron-cores-9-0"]
    assert (nine.device.device_ids, nine.cores) == ((0, 1, 2), frozenset(range(9)))
    assert nine.device.to_wire()["consumesCounters"] == [
        {
            "counterSet": "devices",
            "counters": {"device-0": {"value": "4"}, "device-1": {"value": "4"}, "device-2": {"value": "1"}},
        },
        {"counterSet": "cores-0", "counters": {"core-8": {"value": "1"}}},
    ]
    assert fits(made(nodes["inf1.6xlarge"]), [nine, found["neuron-cores-3-9"], found["neuron-device-3"]])


def test_node_and_its_devices_exclude_each_other(nodes: dict[str, topology.Node]) -> None:
    node = nodes["trn2u.48xlarge"]
    both = [
        *devices.published(node, driver_version="1.2.3", ultraserver_devices="node"),
        *devices.published(node, driver_version="1.2.3", ultraserver_devices="devices"),
    ]
    found = partitioned(node, both)
    assert found is not None
    [whole] = [one for one in found.partitions if one.device.name == "neuron-node-0"]
    assert not any(fits(found, [whole, other]) for other in found.partitions if other is not whole)


def fits(found: Partitioned, chosen: list[Partition]) -> bool:
    """Return True if the counters allow these devices together, as the scheduler counts."""
    left = {(each.name, name): number for each in found.counters for name, number in each.counters.items()}
    for one in chosen:
        for used in one.device.consumes:
            for name, number in used.counters.items():
                left[used.name, name] -= number
    return min(left.values()) >= 0


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_counters_exclude_shared_cores(nodes: dict[str, topology.Node], data: st.DataObject) -> None:
    """No core is in two containers, and no free one is withheld."""
    found = made(nodes[data.draw(st.sampled_from(TYPES))])
    chosen = data.draw(st.lists(st.sampled_from(found.partitions), min_size=1, max_size=6, unique_by=id))
    cores = Counter(core for one in chosen for core in one.cores)
    assert fits(found, chosen) == (max(cores.values()) == 1)


@pytest.mark.parametrize("name", TYPES)
def test_published_sets_obey_api_limits(nodes: dict[str, topology.Node], name: str) -> None:
    """kubernetes/api@v0.37: 8 counter sets a slice, 32 counters a set, 2 sets and 32 counters a device."""
    found = made(nodes[name])
    assert len(found.partitions) <= (DEVICES_AT_MOST_INF1 if name.startswith("inf1") else DEVICES_AT_MOST)
    assert len({one.device.name for one in found.partitions}) == len(found.partitions)
    assert len(found.counters) <= 8
    assert all(len(each.counters) <= COUNTERS_PER_SET for each in found.counters)
    known = {(each.name, name) for each in found.counters for name in each.counters}
    for one in found.partitions:
        used = [(each.name, name) for each in one.device.consumes for name in each.counters]
        assert len(one.device.consumes) <= 2
        assert len(used) <= 32
        assert set(used) <= known


@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_partition_cores_are_contiguous(known: catalogue.InstanceType, tmp_path: Path) -> None:
    simulated_node.write(tmp_path / "root", known.name)
    node = topology.build(sysfs.read_node(tmp_path / "root"), NodeLabels.from_labels({}))
    for one in made(node).partitions:
        if one.device.name.startswith("neuron-cores-"):
            assert one.cores == frozenset(range(min(one.cores), max(one.cores) + 1))


@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_every_set_is_connected_on_every_type(known: catalogue.InstanceType) -> None:
    """On a ring each device is linked to the next; on a torus a set is a group of rows; a switch links all."""
    node = healthy_node(known.name)
    links = {device.device_id: device.connected for device in node.devices}
    for one in made(node).partitions:
        ids = one.device.device_ids
        if one.device.name.startswith("neuron-set-") and known.shape in ("ring", "line"):
            assert all(after in links[before] for before, after in itertools.pairwise(ids))
        elif one.device.name.startswith("neuron-set-"):
            assert ids == tuple(range(ids[0], ids[0] + len(ids)))
            assert ids[0] % len(ids) == 0


@pytest.mark.parametrize(
    ("name", "kib", "number"), [("inf1.24xlarge", 216, 9), ("inf2.48xlarge", 96, 5), ("trn2.48xlarge", 96, 5)]
)
def test_slices_of_a_node_stay_small(name: str, kib: int, number: int) -> None:
    """Acceptance 3 of issue 16, but for inf1.24xlarge, on which every number of devices fits (32.5)."""
    found = made(healthy_node(name))
    wires = [one.device.to_wire() for one in found.partitions]
    counters = [each.to_wire() for each in found.counters]
    items = slices.desired(slices.Pool("n" * 40, "u" * 36), wires, 1, counters=counters, position=found.position)
    assert sum(len(msgspec.json.encode(item)) for item in items) <= kib * 1024
    assert len(items) <= number
