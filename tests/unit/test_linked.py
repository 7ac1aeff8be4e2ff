"""No set over a dead link: what counts as up over time, and which sets a node then publishes (32.3)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, devices, linked, names, partitions
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.linked import Links, Pair
from neuron_dra.core.topology import Node

KINDS = tuple({(each.shape, each.device_count): each for each in catalogue.all_types()}.values())
HOLD_S = 60.0


def cut(node: Node, pairs: Iterable[Pair], *, unread: Iterable[int] = ()) -> Node:
    """Return the node without these links, and with devices that do not answer about theirs."""
    down = {frozenset(pair) for pair in pairs}
    silent = set(unread)
    changed = tuple(
        replace(one, reported=None)
        if one.device_id in silent
        else replace(one, reported=frozenset(i for i in one.reported or () if {i, one.device_id} not in down))
        for one in node.devices
    )
    return replace(node, devices=changed)


def sets(node: Node, links: Iterable[Pair] | None = None) -> set[str]:
    published = devices.published(node, driver_version="1", ultraserver_devices="devices")
    found = partitions.partitioned(node, published, at_most=10_000, links=None if links is None else frozenset(links))
    assert found is not None
    return {one.device.name for one in found.partitions}


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_no_set_of_a_torus_has_a_device_without_links(name: str) -> None:
    node = healthy_node(name)
    alone = cut(node, [(0, other) for other in node.spec.links[0]])  # type: ignore[union-attr]
    lost = {"neuron-set-4-0", "neuron-set-8-0", "neuron-set-16-0"}
    assert lost <= sets(node)
    assert sets(node) - sets(alone) == lost


@pytest.mark.parametrize("parts", [True, False])
def test_a_whole_node_in_two_parts_serves_no_size(parts: bool) -> None:
    """It stays the device of claims for a whole node, and is not what connected-16 and cores-64 select."""
    node = healthy_node("trn2u.48xlarge")
    alone = cut(node, [(0, other) for other in node.spec.links[0]])  # type: ignore[union-attr]
    shown = []
    for each in (node, alone):
        found = partitions.partitioned(each, devices.published(each, driver_version="1"), parts=parts)
        assert found is not None
        [whole] = [one.device for one in found.partitions if one.device.name == names.NODE_DEVICE]
        shown.append(whole.attributes)
    assert {"connectedDevices", "cores"} <= shown[0].keys()
    assert shown[0].keys() - shown[1].keys() == {"connectedDevices", "cores"}


def test_a_row_with_one_link_less_is_still_connected() -> None:
    node = healthy_node("trn1.32xlarge")
    assert sets(cut(node, [(0, 1)])) == sets(node)
    assert sets(node) - sets(cut(node, [(0, 1), (1, 2)])) == {"neuron-set-4-0"}  # 1 reaches the row over 5 only


def test_a_ring_that_is_cut_twice_publishes_no_whole() -> None:
    node = healthy_node("inf2.48xlarge")
    once, twice = sets(cut(node, [(3, 4)])), sets(cut(node, [(3, 4), (8, 9)]))
    assert "neuron-set-12-0" in once - twice
    assert {"neuron-set-5-4", "neuron-cores-9-8"} <= twice  # devices 4 to 8
    assert "neuron-set-6-4" not in twice


def test_links_of_a_switch_do_not_depend_on_what_devices_report() -> None:
    node = healthy_node("trn3.48xlarge")
    assert sets(node) == sets(replace(node, devices=tuple(replace(one, connected=frozenset()) for one in node.devices)))


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: f"{spec.shape}-{spec.device_count}")
@settings(max_examples=60)
@given(data=st.data())
def test_published_sets_are_exactly_those_whose_members_reach_each_other(
    spec: InstanceType, data: st.DataObject
) -> None:
    node = healthy_node(spec.name)
    every = sorted(linked.of_type(spec))
    down = data.draw(st.sets(st.sampled_from(every)) if every else st.just(set()))
    up = frozenset(every) - down
    members = {one.name: one.device_ids for one in _partitions(node)}
    assert sets(node, up) == {name for name, ids in members.items() if _reach(ids, up)}


def _partitions(node: Node) -> list[devices.Device]:
    published = devices.published(node, driver_version="1", ultraserver_devices="devices")
    found = partitions.partitioned(node, published, at_most=10_000)
    assert found is not None
    return [one.device for one in found.partitions]


def _reach(ids: tuple[int, ...], up: frozenset[Pair]) -> bool:
    """Return True if a flood over `up` from the first of `ids` reaches them all, inside of them."""
    reached = {ids[0]}
    for _ in ids:
        reached |= {i for i in ids if any((min(i, j), max(i, j)) in up for j in reached)}
    return reached == set(ids)


def followed(*readings: tuple[float, Node]) -> Links:
    links = Links()
    for now, node in readings:
        links = linked.followed(links, node, now, HOLD_S)
    return links


NODE = healthy_node("inf2.48xlarge")
DOWN = cut(NODE, [(3, 4)])
BUSY = cut(NODE, [], unread=(3, 4))


def test_an_unread_link_stays_as_it_was() -> None:
    assert (3, 4) in followed((0, BUSY)).up
    assert (3, 4) in followed((0, NODE), (10, BUSY)).up
    assert (3, 4) not in followed((0, DOWN), (10, BUSY), (1000, BUSY)).up


def test_one_end_that_denies_a_link_is_enough() -> None:
    one_end = cut(replace(DOWN, devices=DOWN.devices), [], unread=(4,))
    assert (3, 4) not in followed((0, NODE), (10, one_end)).up


def test_a_link_counts_again_when_it_was_well_for_the_hold_time() -> None:
    links = followed((0, NODE), (10, DOWN), (20, NODE))
    assert ((3, 4) in links.up, links.look_at) == (False, 80)
    assert (3, 4) not in followed((0, NODE), (10, DOWN), (20, NODE), (79, NODE)).up
    assert (3, 4) not in followed((0, NODE), (10, DOWN), (20, NODE), (50, BUSY), (80, NODE)).up
    whole = followed((0, NODE), (10, DOWN), (20, NODE), (80, NODE))
    assert ((3, 4) in whole.up, whole.look_at) == (True, None)


@pytest.mark.parametrize("period_s", [10, 70, 130, 600])
def test_a_link_that_flaps_for_a_day_changes_little(period_s: int) -> None:
    links, changes = Links(), 0
    for step in range(24 * 3600 // 10):
        now = step * 10.0
        before = links.up
        links = linked.followed(links, DOWN if now // period_s % 2 else NODE, now, HOLD_S)
        changes += before != links.up
    assert changes <= 2 + 2 * 7  # the hold time doubles from a minute to an hour, and no period here is as long


def test_a_link_that_fails_at_random_for_a_week_changes_less_and_less() -> None:
    chance = random.Random(32)
    links, changes, now = Links(), [], 0.0
    for _ in range(20_000):
        now += chance.expovariate(1 / 30)
        before = links.up
        links = linked.followed(links, chance.choice([NODE, NODE, DOWN]), now, HOLD_S)
        if before != links.up:
            changes.append(now)
    assert len(changes) <= 20


def test_old_failures_are_forgotten() -> None:
    readings = [(0.0, NODE)]
    for start in (0, 1000, 2000):
        readings += [(start + 10.0, DOWN), (start + 20.0, NODE), (start + 400.0, NODE)]
    assert followed(*readings, (3010, DOWN), (3020, NODE)).look_at == 3020 + 8 * HOLD_S
    assert followed(*readings, (30_000, DOWN), (30_010, NODE)).look_at == 30_010 + HOLD_S
