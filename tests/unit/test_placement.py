"""Placement of workloads, and invariants for any fleet in any order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hack.bench.ultraservers import node_and_slice, ultraserver
from neuron_dra.core.facts import UltraServerFacts
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.discovery import Group
from neuron_dra.planner.plan.planning import plan
from tests.unit.ultraserver_world import START, World

FLEET = [ultraserver(f"u{n}", layers=("a", f"b{n // 2}", f"c{n // 2}")) for n in range(4)]


def fleet(*numbers: int) -> World:
    world = World([item for n in numbers for item in FLEET[n]])
    world.settle()
    return world


def test_a_pair_is_two_nodes_of_one_rack() -> None:
    world = fleet(0)
    world.claim("x", ["u0-1"])
    world.submit("pair", size=2)
    world.settle()
    assert world.reserved("pair") == {0: ("u0-2", "u0-3")}


def test_pair_across_racks_is_valid() -> None:
    objects = []
    for n in (0, 1):
        found = UltraServerFacts(modes=(2, 4), node_id_2=n, node_id_4=n, server_id_2="aa", server_id_4="aa")
        objects += node_and_slice(f"h-{n}", "trn2u.48xlarge", "h", found)
    world = World(objects)
    world.submit("pair", size=2, instanceType="trn2u.48xlarge")
    world.settle()
    assert world.reserved("pair") == {0: ("h-0", "h-1")}


def test_partly_used_ultraserver_is_filled_first() -> None:
    world = fleet(0, 1)
    world.submit("a", size=2)
    world.settle()
    world.claim("x", ["u1-0"])
    world.submit("one", size=1)
    world.settle()
    assert world.reserved("a") == {0: ("u0-0", "u0-1")}
    assert world.reserved("one") == {0: ("u0-2",)}


def test_single_node_uses_broken_pairs_first() -> None:
    world = fleet(0)
    world.claim("x", ["u0-3"])
    world.submit("one", size=1)
    world.settle()
    assert world.reserved("one") == {0: ("u0-2",)}


def test_slots_are_close_in_the_network() -> None:
    world = fleet(0, 1, 2, 3)
    world.claim("x", ["u0-0"])
    world.submit("job", size=4, count=2)
    world.settle()
    assert sorted(world.workload("job")["status"]["allocatedUltraServers"]) == ["us-u2", "us-u3"]


def test_workload_is_spread_if_no_layer_fits() -> None:
    world = fleet(0, 1, 2, 3)
    world.claim("x", ["u0-0"])
    world.submit("job", size=4, count=3)
    world.settle()
    assert sorted(world.workload("job")["status"]["allocatedUltraServers"]) == ["us-u1", "us-u2", "us-u3"]


def test_workload_gets_similar_nodes() -> None:
    world = World([*ultraserver("whole"), *ultraserver("parts", whole_nodes=False)])
    world.settle()
    world.submit("job", size=4, count=2)
    world.settle()
    assert world.state("job")[0] == "Pending"


Step = tuple[str, int, int]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[Step]]:
    """A small fleet with foreign claims, and workloads that users create and delete."""
    numbers = draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))
    steps = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("submit"), st.sampled_from([1, 2, 4]), st.integers(1, 3)),
                st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
                st.tuples(st.just("claim"), st.sampled_from(sorted(numbers)), st.integers(0, 3)),
                st.tuples(st.just("silence"), st.sampled_from(sorted(numbers)), st.integers(0, 3)),
                st.tuples(st.just("lose"), st.sampled_from(sorted(numbers)), st.integers(0, 3)),
                st.tuples(st.just("wait"), st.integers(1, 100), st.just(0)),
                st.tuples(st.just("crash"), st.integers(0, 6), st.just(0)),
                st.tuples(st.just("resize"), st.integers(0, 5), st.integers(1, 4)),
            ),
            max_size=8,
        )
    )
    return sorted(numbers), steps


def act(world: World, number: int, step: Step) -> None:
    what, a, b = step
    match what:
        case "submit":
            world.submit(f"w{number}", size=a, count=b)
        case "delete":
            if ("NeuronUltraServerWorkload", "ml", f"w{a}") in world.objects:
                world.delete_workload(f"w{a}")
        case "claim":
            world.claim(f"claim-u{a}-{b}", [f"u{a}-{b}"])
        case "silence":
            world.silent = {f"u{a}-{b}"}
        case "lose":
            for kind, name in (("Node", f"u{a}-{b}"), ("ResourceSlice", f"u{a}-{b}-neuron.aws.com-00")):
                world.objects.pop((kind, "", name), None)
        case "wait":
            world.later(a)
        case "crash":
            world.step(writes=a)
        case "resize":
            if ("NeuronUltraServerWorkload", "ml", f"w{a}") in world.objects:
                item = world.workload(f"w{a}")
                item["spec"]["serverCount"] = b
                world.put(item)


def check(world: World) -> None:
    """No node has two reservations, no slot is partial; after a plan no workload without running pods has only some of
    its slots.
    """
    entries = [e for u in world.all("NeuronUltraServer") for e in (u.get("status") or {}).get("allocations", [])]
    held = [name for entry in entries for name in entry["allocatedNodes"]]
    assert len(held) == len(set(held))
    for item in world.all("NeuronUltraServerWorkload"):
        mine = [e for e in entries if e["workloadUid"] == item["metadata"]["uid"] and e["phase"] != "Draining"]
        assert {len(e["allocatedNodes"]) for e in mine} <= {item["spec"]["topologySize"]}
        assert len({e["ultraserverIndex"] for e in mine}) == len(mine)
        if "Bound" not in {e["phase"] for e in mine}:
            assert len(mine) in (0, item["spec"]["serverCount"])
        for entry in mine:
            ids = sorted(int(name[-1]) for name in entry["allocatedNodes"])
            assert ids == list(range(ids[0], ids[0] + len(ids)))
            assert ids[0] % len(ids) == 0
            assert len({name[:2] for name in entry["allocatedNodes"]}) == 1


@settings(max_examples=60, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_no_node_is_shared_and_no_slot_split(history: tuple[list[int], list[Step]], shuffle: random.Random) -> None:
    numbers, steps = history
    world = World([item for n in numbers for item in FLEET[n]])
    for number, step in enumerate(steps):
        act(world, number, step)
        world.step()
        check(world)
        snapshot, made = world.snapshot(), world.plan()
        lists: dict[str, Any] = {
            name: tuple(shuffle.sample(getattr(snapshot, name), len(getattr(snapshot, name))))
            for name in ("published", "nodes", "claims", "ultraservers", "workloads", "templates")
        }
        mixed = replace(snapshot, **lists)
        assert plan(mixed, world.now) == made
    world.silent = set()
    world.settle()
    check(world)
    assert world.plan().actions == ()
    for item in world.all("NeuronUltraServerWorkload"):
        degraded = next(c for c in item["status"]["conditions"] if c["type"] == "Degraded")
        assert (
            item["status"]["state"] in ("Allocated", "Pending", "PartiallyAllocated")
            or degraded["reason"] == "NodeGone"
        )


def test_newest_pool_generation_is_merged() -> None:
    items = [item for item in ultraserver("u", whole_nodes=False) if item["kind"] == "ResourceSlice"]
    first = items[0]
    assert len(decode.snapshot([first]).published) == 1
    pool = first["spec"]["pool"]
    half = {**first, "spec": {**first["spec"], "pool": {**pool, "resourceSliceCount": 2}}}
    assert [each.complete for each in decode.snapshot([half]).published] == [False]
    newer = {**first, "spec": {**first["spec"], "pool": {**pool, "generation": 2}}}
    assert [each.complete for each in decode.snapshot([half, newer]).published] == [True]


def test_invalid_node_ids_and_modes_are_unknown() -> None:
    [first, *_] = [item for item in ultraserver("u") if item["kind"] == "ResourceSlice"]
    device = first["spec"]["devices"][0]
    odd = {"ultraserverNodeId": {"int": 2**40}, "ultraserverModes": {"string": "1_2_\u00b2_0_100000000"}}
    device = {**device, "attributes": {**device["attributes"], **odd}}
    [published] = decode.snapshot([{**first, "spec": {**first["spec"], "devices": [device]}}]).published
    assert (published.node_id, published.sizes) == (None, (1, 2))


def test_huge_stored_numbers_are_cheap() -> None:
    [first, *_] = decode.snapshot(ultraserver("u")).published
    node = replace(first, node_id=2**40, sizes=(1,))
    group = Group("u", "u", node.instance_type, ({},), {2**40: node}, (1,), ())
    [slot] = placement.slots([group], frozenset(), node.instance_type, 1)
    assert (slot.nodes, slot.first_id) == ((node.name,), 2**40)


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan(decode.snapshot([]), START).actions == ()
