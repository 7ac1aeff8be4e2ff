"""13.16: an index that followed every change gives the same plan as a new one from the same objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import NOTHING_KEPT
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.discovery import discover
from neuron_dra.planner.observed.model import FleetSnapshot
from neuron_dra.planner.plan.planning import plan, plan_of
from tests.unit.ultraserver_world import World

BLOCKS = ("u0", "u1", "u2")
NODES = [f"{block}-{number}" for block in BLOCKS for number in range(4)]


def follow(index: FleetIndex, before: FleetSnapshot, after: FleetSnapshot) -> None:
    """Update the index with the differences of two snapshots, as the watches do."""

    def changed(old: tuple[Any, ...], new: tuple[Any, ...], key: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        had, has = {key(each): each for each in old}, {key(each): each for each in new}
        return [(name, has.get(name)) for name in had.keys() | has.keys() if had.get(name) != has.get(name)]

    def name(each: Any) -> str:
        return str(each.name)

    for key, node in changed(before.nodes, after.nodes, name):
        index.put_node(str(key), node)
    for key, published in changed(before.published, after.published, name):
        index.put_published(str(key), published)
    for key, use in changed(before.claims, after.claims, lambda each: f"{each.namespace}/{each.name}"):
        index.put_claim(str(key), use)
    for key, one in changed(before.ultraservers, after.ultraservers, name):
        index.put_ultraserver(str(key), one)
    for key, workload in changed(before.workloads, after.workloads, lambda each: each.uid):
        index.put_workload(str(key), workload)
    for template_key, template in changed(before.templates, after.templates, lambda each: (each.namespace, each.name)):
        index.put_template(template_key, template)
    had, has = before.namespaces or {}, after.namespaces or {}
    for namespace in [each for each in {**had, **has} if had.get(each) != has.get(each)]:
        index.put_namespace(namespace, has.get(namespace))
    index.workload_class = after.workload_class
    index.refresh()


def derived(index: FleetIndex) -> dict[str, object]:
    """Return everything that a plan reads from an index."""
    places = {(kind, size): vars(index.places(kind, size)) for kind in ("trn3.48xlarge", "") for size in (1, 2, 4)}
    return {
        "groups": sorted(index.groups, key=lambda each: each.name),
        "places": places,
        "tally": index.tally("trn3.48xlarge", {}),
        "held": {uid: sorted(map(repr, index.held(uid))) for uid in index.holders},
        "uses": {name: index.uses(name) for name in index.in_use},
        "reserved": {name: index.reserved(name) for name in NODES},
        "templates": {each.uid: index.templates_of(each.identity) for each in index.workloads},
        "namespaces": (index.namespaces, index.nodes_of_namespace("ml")),
        "reported": dict(index.reported),
        "workloads": (dict(index.workload_by_uid), dict(index.tests)),
        "results": {name: sorted(found) for name, found in index.results_of.items()},
        "away": (index.countable, dict(index.away)),
        "traces": (index.evidence.unread, index.evidence.unknown, index.evidence.lost),
        "totals": (+index.totals.states, index.totals.nodes, index.totals.free, index.totals.reserved),
    }


class Course:
    """A changing world and an index that follows it, compared at each step."""

    def __init__(self) -> None:
        self.world = World([item for block in BLOCKS for item in ultraserver(block)])
        self.index, self.seen, self.kept = FleetIndex(), FleetSnapshot(), NOTHING_KEPT

    def look(self) -> None:
        snapshot = self.world.snapshot()
        follow(self.index, self.seen, snapshot)
        self.seen = snapshot
        assert derived(self.index) == derived(FleetIndex.of(snapshot))
        assert derived(self.index) == derived(FleetIndex.of(self.index.snapshot()))
        assert sorted(self.index.groups, key=lambda each: each.name) == list(discover(snapshot))
        at_once = plan(snapshot, self.world.now)
        followed = plan_of(self.index, self.world.now, known=snapshot, kept=self.kept)
        for what in ("actions", "verdicts", "recheck", "starting", "suspects"):
            assert getattr(followed, what) == getattr(at_once, what)
        self.kept = followed.kept
        for action in followed.actions:
            self.world.write(action)


def change(course: Course, number: int, which: int) -> None:
    """Make one random change of a fleet."""
    world, name = course.world, NODES[which % len(NODES)]
    match number:
        case 0:
            world.submit(f"job-{len(world.objects)}", size=(1, 2, 4)[which % 3], count=1 + which % 2)
        case 1:
            jobs = [key for key in world.objects if key[0] == "NeuronUltraServerWorkload"]
            if jobs:
                world.delete_workload(jobs[which % len(jobs)][2])
        case 2:
            if ("Node", "", name) in world.objects:
                item = world.get("Node", name)
                item["spec"] = {**item.get("spec", {}), "unschedulable": which % 2 == 0}
                world.put(item)
        case 3:
            world.claim(f"claim-{len(world.objects)}", [name])
        case 4:
            claims = [key for key in world.objects if key[0] == "ResourceClaim"]
            if claims:
                world.remove("ResourceClaim", claims[which % len(claims)][2], "ml")
        case 5:
            kind = ("Node", "ResourceSlice")[which % 2]
            gone = [key for key in world.objects if key[0] == kind and key[2].startswith(name)]
            for key in gone:
                world.remove(key[0], key[2])
        case 6:
            world.later(60 * (which + 1))
        case 7:
            if ("Node", "", name) in world.objects:
                item = world.get("Node", name)
                said = {"type": "AcceleratedHardwareReady", "status": ("True", "False")[which % 3 == 0]}
                item["status"] = {"conditions": [{"type": "Ready", "status": ("True", "Unknown")[which % 2]}, said]}
                world.put(item)
        case 8:
            servers = [key for key in world.objects if key[0] == "NeuronUltraServer"]
            if servers:
                world.remove("NeuronUltraServer", servers[which % len(servers)][2], servers[0][1])
        case 9:
            servers = [key for key in world.objects if key[0] == "NeuronUltraServer"]
            if servers:
                # A copy: the index has parts of what is there.
                item = copy.deepcopy(world.objects[servers[which % len(servers)]])
                for entry in item.get("status", {}).get("allocations") or ():
                    entry.pop(("allocationId", "workloadUid", "phase")[which % 3], None)
                world.put(item)
        case 10:
            meta = {"name": "ml", "annotations": {"neuron.aws.com/max-reserved-nodes": str(which % 9)}}
            world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        case 11:
            found = [key for key in world.objects if key[0] == "ResourceClaimTemplate"]
            if found:
                _, namespace, template = found[which % len(found)]
                world.remove("ResourceClaimTemplate", template, namespace)
        case 12:
            jobs = [key for key in world.objects if key[0] == "NeuronUltraServerWorkload"]
            if jobs:
                item = world.objects[jobs[which % len(jobs)]]
                item["spec"]["serverCount"] = 1 + which % 3
                world.put(item)
        case 13:
            slices = [key for key in world.objects if key[0] == "ResourceSlice" and key[2].startswith(name)]
            for key in slices:
                del world.objects[key]["spec"]["devices"][which % 2 :]
                world.put(world.objects[key])
        case _:
            world.tag_nodes()


def two_allocated(course: Course) -> None:
    """Submit two workloads, and follow the plans until both are Allocated and their decisions are known."""
    course.world.submit("one", size=2, count=2)
    course.world.submit("two", size=4, count=1)
    for _ in range(8):
        course.look()
        course.world.tag_nodes()
    assert len(course.kept.decided) == 2


def three_wait(course: Course) -> None:
    """Submit a workload that gets nodes and three that wait, and follow the plans until their decisions are known."""
    course.world.submit("has", size=4, count=2)
    for number in range(3):
        course.world.submit(f"waits-{number}", size=4, count=2 + number)
    for _ in range(8):
        course.look()
        course.world.tag_nodes()
    assert len(course.kept.decided) == 4


BEGINNINGS: dict[str, Callable[[Course], None]] = {
    "nothing": lambda course: None,
    "two are allocated": two_allocated,
    "three wait": three_wait,
}


@given(st.sampled_from([*BEGINNINGS]), st.lists(st.tuples(st.integers(0, 15), st.integers(0, 40)), max_size=40))
@example("two are allocated", [(9, 1), (8, 0), (9, 0)])
@settings(max_examples=180)
def test_incremental_index_equals_a_new_one(begin: str, steps: list[tuple[int, int]]) -> None:
    """Issue 13.16, and 30.4: with the decisions that were kept."""
    course = Course()
    course.look()
    BEGINNINGS[begin](course)
    for number, which in steps:
        change(course, number, which)
        course.look()


def test_a_heartbeat_leaves_nothing_to_look_at() -> None:
    """In a settled fleet a changed node causes work for its UltraServer only."""
    course = Course()
    for _ in range(3):
        course.look()
    assert (course.kept.open, course.index.changed_since(course.kept.version)) == (frozenset(), set())
    node = course.index.node_by_name["u1-2"]
    course.index.put_node("u1-2", replace(node, schedulable=False))
    course.index.refresh()
    since = course.kept.version
    assert (course.index.changed_since(since), course.index.nodes_changed_since(since)) == ({"us-u1"}, {"u1-2"})
