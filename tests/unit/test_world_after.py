"""A world after a change is equal to one that is built from the changed objects (17.3)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot, key_of
from neuron_dra.ask.world.world import Derived, World
from neuron_dra.core.wire import Obj, Wire
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small


def items() -> list[Obj]:
    made = faults.healthy()
    made += small.running(made, "second", 4, "b")
    for node in faults.all_of(made, "Node"):
        node["status"] = {**node.get("status", {}), "allocatable": {"cpu": "8", "pods": "110"}}
    return made


def free(found: Sequence[Obj]) -> Obj:
    claim = next(c for c in faults.all_of(found, "ResourceClaim") if c["metadata"]["name"].startswith("second"))
    return {**claim, "status": {}}


def cordoned(found: Sequence[Obj]) -> Obj:
    node = faults.the(found, "Node", "a")
    assert node is not None
    return {**node, "spec": {**node["spec"], "unschedulable": True}}


def greedy(found: Sequence[Obj]) -> Obj:
    pod = copy.deepcopy(faults.the(found, "Pod", "second"))
    assert pod is not None
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8"}}
    return pod


def smaller(found: Sequence[Obj]) -> Obj:
    made = copy.deepcopy(next(s for s in faults.all_of(found, "ResourceSlice") if s["spec"]["nodeName"] == "b"))
    made["spec"]["devices"] = made["spec"]["devices"][:2]
    return made


def another(found: Sequence[Obj]) -> Obj:
    return small.template("new", 2)


def looks(world: World) -> object:
    pod = world.snapshot.get("Pod", "p", "default")
    assert pod is not None
    lists = {kind: [key_of(item) for item in world.snapshot.all(kind)] for kind in snapshot.KINDS}
    lacking = [world.room.lacking(pod, node) for node in world.nodes.values()]
    alike = [node["metadata"]["name"] for node in world._representatives(pod)]
    return repr(world.place(pod)), world.in_use, world.holders.keys(), lacking, lists, alike


@pytest.mark.parametrize("change", [free, cordoned, greedy, smaller, another], ids=lambda change: change.__name__)
def test_world_after_a_change_is_that_of_the_changed_objects(change: Callable[[Sequence[Obj]], Obj]) -> None:
    found = items()
    world = World(snapshot.build(copy.deepcopy(found)))
    before = looks(world)
    changed = change(found)
    expected = [changed if key_of(item) == key_of(changed) else item for item in found]
    if change is another:
        expected.append(changed)
    assert looks(world.after([changed])) == looks(World(snapshot.build(copy.deepcopy(expected))))
    assert looks(world) == before


def test_world_after_removals_has_the_devices_of_the_claims() -> None:
    found = items()
    world = World(snapshot.build(copy.deepcopy(found)))
    looks(world)
    gone = [key_of(item) for item in found if item["metadata"]["name"].startswith("second")]
    expected = [item for item in found if key_of(item) not in gone]
    assert looks(world.after(removed=gone)) == looks(World(snapshot.build(copy.deepcopy(expected))))


class Watched(Snapshot):
    """A snapshot that records which kinds are read."""

    def __init__(self, of: Snapshot, read: set[str]) -> None:
        super().__init__(of.objects, of.left_out, of.by_kind, of.damaged)
        object.__setattr__(self, "_read", read)

    def all(self, kind: str) -> Sequence[Wire]:
        self._read.add(kind)  # type: ignore[attr-defined]
        return super().all(kind)

    def get(self, kind: str, name: str, namespace: str = "") -> Wire | None:
        self._read.add(kind)  # type: ignore[attr-defined]
        return super().get(kind, name, namespace)


DERIVED = [name for name, value in vars(World).items() if isinstance(value, Derived)]


@pytest.mark.parametrize("name", DERIVED)
def test_derived_value_declares_the_kinds_that_it_reads(name: str) -> None:
    made = items()
    claim = next(each for each in faults.all_of(made, "ResourceClaim") if each.get("status"))
    claim["status"]["reservedFor"] = [{"resource": "podgroups", "name": "gang"}]  # so that pods are looked for
    slices = [each for each in made if each["kind"] == "ResourceSlice"]
    made = [*(each for each in made if each["kind"] != "ResourceSlice"), *small.reserved(slices, "job")]
    read: set[str] = set()
    world = World(Watched(snapshot.build(made), read))
    read.clear()
    getattr(world, name)
    declared = vars(World)[name]
    assert isinstance(declared, Derived)
    assert read - declared.kinds == set()
