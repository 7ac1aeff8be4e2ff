"""Connectivity, exclusion and cost of what each type publishes, with links down at random (32, acceptance 4)."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, devices, linked, names, partitions, slices
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.linked import Pair
from neuron_dra.core.partitions import Partition, Partitioned

EVERY = pytest.mark.parametrize("spec", catalogue.all_types(), ids=lambda spec: spec.name)
MOST_SLICES = 9
MOST_KIB = 216
"""Of inf1.24xlarge, which publishes the most."""


@st.composite
def links(draw: st.DrawFn, spec: InstanceType) -> frozenset[Pair]:
    """Return the links that are up: all but some, or only some."""
    every = frozenset(linked.of_type(spec))
    if not every:
        return every
    chosen = frozenset(draw(st.sets(st.sampled_from(sorted(every)), max_size=12)))
    return draw(st.sampled_from([every - chosen, chosen]))


def published(spec: InstanceType, up: frozenset[Pair], shape: str) -> Partitioned:
    """Return what a node publishes; `shape` is what an UltraServer's node publishes beside the parts."""
    node = healthy_node(spec.name)
    plain = devices.published(node, driver_version="1.2.3", ultraserver_devices=shape)
    found = partitions.partitioned(node, plain, links=up, parts=True)
    assert found is not None
    return found


def reach(ids: tuple[int, ...], up: frozenset[Pair]) -> bool:
    """Return True if each device can be reached from the first over links between these devices."""
    reached = {ids[0]}
    for _ in ids:
        reached |= {i for i in ids if any((min(i, j), max(i, j)) in up for j in reached)}
    return reached == set(ids)


def fits(found: Partitioned, chosen: list[Partition]) -> bool:
    """Return True if the counters allow these devices together, as the scheduler counts."""
    left = Counter({(each.name, name): count for each in found.counters for name, count in each.counters.items()})
    for one in chosen:
        left.subtract({(each.name, name): n for each in one.device.consumes for name, n in each.counters.items()})
    return all(count >= 0 for count in left.values())


@EVERY
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_sets_are_connected_exclusive_and_cheap_whatever_links_are_down(
    spec: InstanceType, data: st.DataObject
) -> None:
    up = data.draw(links(spec))
    shape = data.draw(st.sampled_from(["node", "devices"] if spec.whole_node else ["node"]))
    found = published(spec, up, shape)
    for one in found.partitions:
        is_whole = one.device.name == names.NODE_DEVICE  # always published; a size only makes it a set
        if not is_whole or "connectedDevices" in one.device.attributes:
            assert reach(one.device.device_ids, up), one.device.name

    chosen = data.draw(st.lists(st.sampled_from(found.partitions), min_size=1, max_size=6, unique_by=id))
    uses = Counter(core for one in chosen for core in one.cores)
    assert fits(found, chosen) == (max(uses.values()) == 1)

    wires = [one.device.to_wire() for one in found.partitions]
    counters = [each.to_wire() for each in found.counters]
    pool = slices.Pool("n" * 40, "u" * 36)
    items = slices.desired(pool, wires, 1, counters=counters, position=found.position)
    assert len(found.partitions) <= partitions.devices_at_most(spec)
    assert len(items) <= MOST_SLICES
    assert sum(len(msgspec.json.encode(item)) for item in items) <= MOST_KIB * 1024
    assert all(len(item["spec"].get("devices", ())) <= slices.DEVICES_PER_SLICE for item in items)
