"""Advice for a workload whose place is scattered: which workloads would have to move. Issue 36, number 5."""

from __future__ import annotations

import datetime
import itertools
import random
from dataclasses import replace

import pytest

from controller.apply.room_looks import RoomLooks
from controller.timing import RoomTiming
from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.spares import Numbers
from neuron_dra.planner.observed.model import Workload
from neuron_dra.planner.plan import room
from neuron_dra.planner.plan.planning import plan
from neuron_dra.planner.plan.room import Room
from tests.unit.ultraserver_world import World


def fleet(number: int) -> World:
    world = World([item for each in range(number) for item in ultraserver(f"u{each}")])
    world.settle()
    return world


def put(world: World, name: str, *nodes: str) -> None:
    """Reserve exactly these nodes for a workload, by cordoning all others."""
    for node in world.all("Node"):
        node["spec"] = {**node.get("spec", {}), "unschedulable": node["metadata"]["name"] not in nodes}
        world.put(node)
    world.submit(name, size=len(nodes))
    world.settle()
    assert world.reserved(name) == {0: nodes}
    for node in world.all("Node"):
        node["spec"] = {**node["spec"], "unschedulable": False}
        world.put(node)
    world.settle()
    world.later(1)


def waiting(world: World, size: int = 4, count: int = 1) -> Workload:
    """Submit a workload that waits, because enough nodes are free and scattered."""
    world.submit("big", size=size, count=count)
    world.settle()
    assert world.state("big") == ("Pending", "CapacitySplit")
    return next(each for each in world.snapshot().workloads if each.name == "big")


def asked(world: World, workload: Workload, spares: Numbers = ()) -> Room | None:
    return room.advice(FleetIndex.of(world.snapshot()), workload, world.now, spares=spares)


def test_one_workload_that_moves_makes_room() -> None:
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    assert asked(world, waiting(world)) == Room(("ml/pair",), ("u0-0", "u0-1"))


def test_fewest_workloads_are_named_even_if_more_nodes_move() -> None:
    world = fleet(2)
    put(world, "one", "u0-0")
    put(world, "two", "u0-2")
    put(world, "pair", "u1-0", "u1-1")
    world.submit("filler", size=1)  # leaves fewer nodes free, but not in the pair's UltraServer
    world.settle()
    world.delete_workload("filler")
    world.settle()
    found = asked(world, waiting(world))
    assert found is not None
    # The pair has no other pair to go to, so the two single nodes leave.
    assert found == Room(("ml/one", "ml/two"), ("u0-0", "u0-2"))


def test_workload_that_has_nowhere_to_go_is_not_named() -> None:
    world = fleet(3)
    put(world, "one", "u0-0")
    put(world, "two", "u0-2")
    put(world, "pair", "u1-0", "u1-1")
    put(world, "three", "u2-0")
    put(world, "four", "u2-1")
    put(world, "five", "u2-2")
    put(world, "six", "u2-3")
    assert asked(world, waiting(world)) == Room(("ml/one", "ml/two"), ("u0-0", "u0-2"))


def test_pods_without_a_reservation_do_not_move() -> None:
    world = fleet(2)
    world.claim("plain-0", ["u0-0"])
    world.claim("plain-1", ["u1-0"])
    assert asked(world, waiting(world)) is None


@pytest.mark.parametrize("size", [2, 4])
def test_groups_of_the_same_size_do_not_move(size: int) -> None:
    world = fleet(2)
    for number in range(2):
        put(world, f"one-{number}", *[f"u{number}-{each}" for each in (0,)])
        put(world, f"two-{number}", *[f"u{number}-{each}" for each in (2,)])
    found = asked(world, waiting(world, size=size))
    assert found is not None
    assert len(found.workloads) == {2: 1, 4: 2}[size]


def test_two_places_are_found_for_two_groups() -> None:
    world = fleet(4)
    for number in range(4):
        put(world, f"pair-{number}", f"u{number}-0", f"u{number}-1")
    found = asked(world, waiting(world, count=2))
    assert found is not None
    assert (len(found.workloads), len(found.nodes)) == (2, 4)


@pytest.mark.parametrize(("spares", "workloads"), [(1, 1), (2, 2)])
def test_spares_are_no_place_for_anybody(spares: int, workloads: int) -> None:
    """Where the pool is short of a group, a place for that is needed, too."""
    kept = Limits(spares=(("trn3.48xlarge", spares),))
    world = fleet(6)
    for number in range(5):
        put(world, f"pair-{number}", f"u{number}-0", f"u{number}-1")
    world.settle(kept)
    world.submit("big", size=4)
    world.settle(kept)
    assert world.state("big") == ("Pending", "CapacitySplit")
    big = next(each for each in world.snapshot().workloads if each.name == "big")
    found = asked(world, big, kept.spares)
    assert found is not None
    assert len(found.workloads) == workloads


def cordon(world: World, *numbers: int, cordoned: bool) -> None:
    for node in world.all("Node"):
        if int(node["metadata"]["name"][-1]) in numbers:
            world.put({**node, "spec": {**node["spec"], "unschedulable": cordoned}})


def test_more_places_are_found_than_are_compared_with_each_other() -> None:
    number = 2 * (room.BLOCKS_AT_MOST + 1)
    world = fleet(number)
    cordon(world, 2, 3, cordoned=True)
    world.settle()
    for each in range(number):
        world.submit(f"pair-{each}", size=2)
    world.settle()
    cordon(world, 2, 3, cordoned=False)
    world.settle()
    found = asked(world, waiting(world, count=number // 2))
    assert found is not None
    assert (len(found.workloads), len(found.nodes)) == (number // 2, number)


def test_node_that_cannot_be_used_is_no_place() -> None:
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    workload = waiting(world)
    node = world.get("Node", "u0-3")
    world.put({**node, "spec": {**node["spec"], "unschedulable": True}})
    assert asked(world, workload) is None  # 3 nodes are free: not enough


def test_workload_of_single_nodes_needs_no_advice() -> None:
    world = fleet(1)
    world.submit("big", size=1, count=5)
    world.settle()
    workload = next(each for each in world.snapshot().workloads if each.name == "big")
    assert asked(world, workload) is None


def test_request_for_very_many_groups_gets_no_advice() -> None:
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    workload = waiting(world)
    assert asked(world, replace(workload, count=room.GROUPS_AT_MOST + 1)) is None


SCATTERED = (2, 3, 7, 9, 12, 14, 15, 17, 20, 22, 24, 27, 29, 30, 34, 35, 37, 38, 41, 42, 44, 46, 47, 48)
"""The first seeds whose free nodes are scattered: the big workload of the others has its place."""


def scattered(seed: int) -> World:
    """A fleet of three UltraServers with small workloads, of which some have ended, and a big one that waits."""
    rng = random.Random(seed)
    world = fleet(3)
    names = [f"w{number}" for number in range(7)]
    for name in names:
        world.submit(name, size=rng.choice((1, 1, 2)))
        world.settle()
    for name in rng.sample(names, rng.choice((1, 2, 3))):
        world.delete_workload(name)
        world.settle()
    world.submit("big", size=4)
    world.settle()
    assert world.state("big")[1] == "CapacitySplit"
    return world


def after_moving(world: World, names: tuple[str, ...]) -> bool:
    """End these workloads, let the big one have its place, and submit them again: True if all have nodes."""
    specs = {name: world.workload(name)["spec"] for name in names}
    for name in names:
        world.delete_workload(name)
    world.settle()
    for name, spec in specs.items():
        world.submit(name, size=spec["topologySize"])
    world.settle()
    return all(world.state(name)[0] == "Allocated" for name in ("big", *names))


@pytest.mark.parametrize("seed", SCATTERED)
def test_advice_holds_and_nothing_smaller_does(seed: int) -> None:
    world = scattered(seed)
    workload = next(each for each in world.snapshot().workloads if each.name == "big")
    found = asked(world, workload)
    small = [each["metadata"]["name"] for each in world.all("NeuronUltraServerWorkload")]
    small.remove("big")
    names = () if found is None else tuple(each.removeprefix("ml/") for each in found.workloads)
    fewer = range(1, len(names)) if names else range(1, 3)
    for number in fewer:
        for some in itertools.combinations(small, number):
            assert not after_moving(copied(world), some), f"{some} would do, and the advice is {names}"
    if names:
        assert after_moving(copied(world), names)


def copied(world: World) -> World:
    other = World(world.objects.values())
    other.now, other.version = world.now, world.version + 1000
    other.tag_nodes()
    return other


# -- in the condition --------------------------------------------------------------------------------------------------

TIMING = RoomTiming(again_s=60.0)


def test_condition_has_the_advice_until_it_is_not_true_any_more() -> None:
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    uid = waiting(world).uid
    looks = RoomLooks(TIMING)
    made, snapshot = world.plan(), world.snapshot()
    index = FleetIndex.of(snapshot)
    assert looks.look(made.waiting.split, index, snapshot, world.now) == world.now  # the next plan has the result
    later = world.now + datetime.timedelta(seconds=60)
    assert looks.look(made.waiting.split, index, snapshot, world.now) == later
    told = plan(replace(snapshot, room=looks.found), world.now).verdicts[uid]
    assert told.reason == "CapacitySplit"
    for action in plan(replace(snapshot, room=looks.found), world.now).actions:
        world.write(action)
    assert world.message("big").endswith(
        "; there would be room if 1 workload moved: ml/pair, from u0-0, u0-1; nobody is moved because of this"
    )
    assert world.reserved("pair") == {0: ("u0-0", "u0-1")}
    world.delete_workload("pair")
    world.settle()
    made, snapshot = world.plan(), world.snapshot()
    looks.look(made.waiting.split, FleetIndex.of(snapshot), snapshot, later)
    assert (looks.found, world.state("big")[0]) == ({}, "Allocated")


def test_room_is_looked_for_four_times_a_minute_in_turns() -> None:
    """4.02: a namespace with many workloads hides no other, and everyone has a turn."""
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    for number in range(6):
        world.submit(f"big-{number}", size=4)
        world.later(1)
    late = world.submit("late", size=4, namespace="other")["metadata"]["uid"]
    world.settle()
    made, snapshot = world.plan(), world.snapshot()
    index, looks = FleetIndex.of(snapshot), RoomLooks(TIMING)
    for _ in range(2):
        looks.look(made.waiting.split, index, snapshot, world.now)
    assert late in looks.found
    found = []
    for seconds in range(0, 120, 10):
        looks.look(made.waiting.split, index, snapshot, world.now + datetime.timedelta(seconds=seconds))
        found.append(len(looks.found))
    assert found == [3, 4, 4, 4, 4, 4, 5, 6, 7, 7, 7, 7]


def test_room_is_looked_for_once_a_minute_and_for_the_first_workloads_only() -> None:
    world = fleet(2)
    put(world, "pair", "u0-0", "u0-1")
    put(world, "other", "u1-2", "u1-3")
    for number in range(6):
        world.submit(f"big-{number}", size=4)
        world.later(1)
    world.settle()
    made, snapshot = world.plan(), world.snapshot()
    index, looks = FleetIndex.of(snapshot), RoomLooks(TIMING)
    found = []
    for _ in range(8):
        looks.look(made.waiting.split, index, snapshot, world.now)
        found.append(len(looks.found))
    assert found == [1, 2, 3, 4, 4, 4, 4, 4]


def test_advice_names_only_the_readers_workloads() -> None:
    room = Room(("ml/one", "other/a", "other/b"), ("u0-0",))
    text = "there would be room if 3 workloads moved: {}, from u0-0; nobody is moved because of this"
    assert room.message("ml") == text.format("ml/one and 2 of other namespaces")
    assert room.message("third") == text.format("3 of other namespaces")
