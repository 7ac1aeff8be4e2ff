"""Which nodes form a slot, and which free slots a workload gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from neuron_dra.planner.fleet import placement, places
from neuron_dra.planner.fleet.placement import Slot, links_up
from neuron_dra.planner.fleet.places import Overlay, Places
from neuron_dra.planner.observed.discovery import Group
from neuron_dra.planner.observed.model import PublishedNode

TYPE = "trn3.48xlarge"


def node(number: int, group: str = "u", **changes: Any) -> PublishedNode:
    """A node whose links are all up."""
    values = {"name": f"{group}-{number}", "node_uid": "", "instance_type": TYPE, "kind": "neuron_node",
              "ultraserver_id": group, "node_id": number, "sizes": (1, 2, 4), "vertical": True,
              "horizontal": True}  # fmt: skip
    return PublishedNode(**{**values, **changes})


def group(*nodes: PublishedNode, name: str = "u", members: int = 4, instance_type: str = TYPE) -> Group:
    topology = tuple({"nodeName": f"{name}-{number}"} for number in range(members))
    usable = {each.node_id: each for each in nodes if each.node_id is not None}
    return Group(name, name, instance_type, topology, usable, (1, 2, 4), ())


def found(size: int, *nodes: PublishedNode, taken: tuple[str, ...] = (), members: int = 4) -> list[tuple[str, ...]]:
    """The names of the nodes of each slot."""
    groups = [group(*nodes, members=members)]
    return [slot.nodes for slot in placement.slots(groups, frozenset(taken), TYPE, size)]


FOUR = [node(number) for number in range(4)]


def test_slots_are_aligned_and_free() -> None:
    assert found(1, *FOUR, taken=("u-1",)) == [("u-0",), ("u-2",), ("u-3",)]
    assert found(2, *FOUR) == [("u-0", "u-1"), ("u-2", "u-3")]
    assert found(2, *FOUR, taken=("u-1",)) == [("u-2", "u-3")]
    assert found(4, *FOUR) == [("u-0", "u-1", "u-2", "u-3")]
    assert found(4, *FOUR, taken=("u-3",)) == []
    assert found(2, *FOUR[:3]) == [("u-0", "u-1")]
    assert found(1) == []


def test_other_types_have_no_slot() -> None:
    groups = [group(*FOUR, instance_type="trn2u.48xlarge"), group(node(0, "v"), name="v")]
    assert [slot.nodes for slot in placement.slots(groups, frozenset(), TYPE, 1)] == [("v-0",)]


@pytest.mark.parametrize(
    ("size", "change", "slots"),
    [
        # Every node of the slot must publish the group size.
        (2, {"sizes": (1, 4)}, 1),
        (4, {"sizes": (1, 2)}, 0),
        (1, {"sizes": (2, 4)}, 3),
        # They publish alike.
        (2, {"kind": "neuron_device"}, 1),
        (1, {"kind": "neuron_device"}, 4),
        # They have the same hardware id, as far as it is known.
        (2, {"reservation_id": "other"}, 1),
        (4, {"reservation_id": "other"}, 0),
        (4, {"server_id_4": "other"}, 0),
        (2, {"server_id_2": "other"}, 1),
        (1, {"reservation_id": "other", "server_id_2": "other"}, 4),
        # Their links are up.
        (2, {"unhealthy": ("link_interserver",)}, 1),
        (4, {"unhealthy": ("link_interserver",)}, 0),
        (1, {"unhealthy": ("link_interserver",)}, 4),
        (2, {"vertical": False}, 1),
        (2, {"vertical": None}, 1),
        (2, {"horizontal": False}, 2),
        (4, {"vertical": None, "horizontal": None}, 1),
    ],
)
def test_unfitting_node_removes_only_its_slot(size: int, change: dict[str, Any], slots: int) -> None:
    alike = {"reservation_id": "r", "server_id_2": "s2", "server_id_4": "s4"}
    if "server_id_4" in change:
        alike["reservation_id"] = ""
    nodes = [node(number, **{**alike, **(change if number == 3 else {})}) for number in range(4)]
    assert len(found(size, *nodes)) == slots


BETWEEN: dict[str, Any] = {"vertical": False, "horizontal": True, "sizes": (1, 2), "server_id_2": "a"}


@pytest.mark.parametrize(
    ("members", "changes", "fits"),
    [
        # Between the racks: both publish the mode, and the same pair.
        (2, (BETWEEN, BETWEEN), True),
        (2, (BETWEEN, {**BETWEEN, "horizontal": False}), False),
        (2, (BETWEEN, {**BETWEEN, "server_id_2": "b"}), False),
        (2, (BETWEEN, {**BETWEEN, "server_id_2": None}), False),
        (2, ({**BETWEEN, "server_id_2": None}, {**BETWEEN, "server_id_2": None}), False),
        # A node in a group of four offers no pair between the racks, even if the others are not in the cluster.
        (2, ({"vertical": False}, {"vertical": False}), False),
        (2, ({**BETWEEN, "sizes": (1, 2, 4)}, {**BETWEEN, "sizes": (1, 2, 4)}), False),
        (4, ({"vertical": False}, {"vertical": False}), False),
        (2, ({"vertical": True, "horizontal": False}, {"vertical": False, "horizontal": True}), False),
        # Inside a rack.
        (2, ({"server_id_2": "a"}, {"server_id_2": "a"}), True),
        (2, ({"server_id_2": "a"}, {"server_id_2": None}), True),
        (2, ({"server_id_2": "a"}, {"server_id_2": "b"}), False),
    ],
)
def test_both_nodes_modes_decide_pairs(
    members: int, changes: tuple[dict[str, Any], dict[str, Any]], fits: bool
) -> None:
    """13.11"""
    nodes = [node(number, **change) for number, change in enumerate(changes)]
    assert found(2, *nodes, members=members) == ([("u-0", "u-1")] if fits else [])


@pytest.mark.parametrize(
    ("size", "change", "up"),
    [
        (1, {"sizes": (), "unhealthy": ("link_interserver",)}, True),
        (2, {"unhealthy": ("link_interserver",)}, False),
        (4, {"sizes": ()}, None),
        (2, {"sizes": (), "unhealthy": ("link_interserver",)}, False),
        (4, {"sizes": (1, 2)}, False),
        (4, {"vertical": False, "horizontal": False}, True),
        (2, {}, True),
        (2, {"vertical": False}, False),
        (2, {"vertical": None}, None),
        (2, BETWEEN, True),
        (2, {**BETWEEN, "server_id_2": "b"}, False),
        (2, {"vertical": None, "horizontal": False}, None),
        (2, {"vertical": False, "horizontal": False}, False),
    ],
)
def test_slot_links_are_up_down_or_unknown(size: int, change: dict[str, Any], up: bool | None) -> None:
    one, mate = node(0, **change), node(1, **{**change, "server_id_2": "a"} if "server_id_2" in change else change)
    assert links_up(one, size, [one, mate]) is up


# -- the choice --------------------------------------------------------------------------------------------------------


def slot(name: str, kind: str = "neuron_node", layers: tuple[str | None, ...] = ("a", "b", "c"), **fit: int) -> Slot:
    values: dict[str, Any] = {"free_nodes": 4, "free_neighbours": 2, "first_id": 0, **fit}
    return Slot(ultraserver=name, kind=kind, nodes=(f"{name}-n",), layers=layers, **values)


def choose(free: Iterable[Slot], count: int, **more: Any) -> tuple[Slot, ...] | None:
    """Choose among these free slots."""
    kept = Places()
    for each in free:
        kept.add(each)
    return places.choose(Overlay(kept), count, **more)


def names(chosen: tuple[Slot, ...] | None) -> list[str] | None:
    return None if chosen is None else [each.ultraserver for each in chosen]


def test_slots_are_of_one_kind() -> None:
    whole, parts = slot("w"), [slot("p"), slot("q", "neuron_device"), slot("r", "neuron_device")]
    free = [parts[1], whole, parts[2]]
    assert names(choose(free, 1)) == ["w"]
    assert names(choose(free, 2)) == ["q", "r"]
    assert names(choose(free, 1, kind="neuron_device")) == ["q"]
    assert choose(free, 2, kind="neuron_node") is None
    assert choose(free, 3) is None
    assert placement.most_of_a_kind({"neuron_node": 1, "neuron_device": 2}) == 2
    assert placement.most_of_a_kind({}) == 0


def test_tightest_slot_is_chosen() -> None:
    free = [slot("a"), slot("b", free_nodes=3), slot("c", free_nodes=2, free_neighbours=2),
            slot("d", free_nodes=2, free_neighbours=1)]  # fmt: skip
    assert names(choose(free, 1)) == ["d"]
    assert names(choose([each for each in free if each.ultraserver != "d"], 1)) == ["c"]


def test_deepest_smallest_layer_is_chosen() -> None:
    free = [
        *(slot(f"a{n}", layers=("x", "y", "deep-1"), free_nodes=1) for n in range(3)),
        *(slot(f"b{n}", layers=("x", "y", "deep-2")) for n in range(2)),
        slot("c", layers=("x", "z", None), free_nodes=1),
    ]
    assert names(choose(free, 2)) == ["b0", "b1"]
    assert names(choose(free, 3)) == ["a0", "a1", "a2"]
    assert names(choose(free, 4)) == ["a0", "a1", "a2", "b0"]
    assert sorted(names(choose(free, 6)) or []) == ["a0", "a1", "a2", "b0", "b1", "c"]


def test_unlayered_slots_are_taken_by_fit() -> None:
    free = [slot("c"), *(slot(name, layers=(None, None, None), free_nodes=n) for n, name in enumerate("ab", start=1))]
    assert names(choose(free, 2)) == ["a", "b"]


def test_wider_layer_is_used_if_needed() -> None:
    free = [slot(f"a{n}", layers=("x", f"y{n}", f"deep-{n}")) for n in range(2)]
    free += [slot("b", layers=("w", None, None), free_nodes=1)]
    assert names(choose(free, 2)) == ["a0", "a1"]


def test_growth_stays_near_existing_slots() -> None:
    free = [slot("far", layers=("x", "y", "deep-1"), free_nodes=1), slot("near", layers=("x", "y", "deep-2"))]
    have = [slot("have", layers=("x", "y", "deep-2"))]
    assert names(choose(free, 1, near=have)) == ["near"]
    assert names(choose(free, 1)) == ["far"]
    spread = [*have, slot("too", layers=("x", "z", "deep-9"))]
    assert names(choose(free, 1, near=spread)) == ["far"]


def test_layer_must_contain_all_nodes_of_a_slot() -> None:
    nodes = [node(number, layers=("x", "y", f"deep-{number // 2}")) for number in range(4)]
    assert [each.layers for each in placement.slots([group(*nodes)], frozenset(), TYPE, 4)] == [("x", "y", None)]


def test_slot_counts_free_neighbors() -> None:
    pairs = placement.slots([group(*FOUR)], frozenset({"u-3"}), TYPE, 1)
    assert [(each.first_id, each.free_nodes, each.free_neighbours) for each in pairs] == [
        *((0, 3, 2), (1, 3, 2), (2, 3, 1)),
    ]
