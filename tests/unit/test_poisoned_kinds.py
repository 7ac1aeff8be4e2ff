"""One object of any kind that no decoder reads costs no other object anything, and does not look as if it were gone."""

from __future__ import annotations

import copy
import logging
from typing import Any, Final

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from controller.metrics import Metrics
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.kube.reflector import Reflector
from neuron_dra.planner.plan import planning
from tests.support.kinds_read import kinds_read
from tests.unit.beside_scene import Decided, Key, Scene, owner, plural, world
from tests.unit.ultraserver_world import World

POISON: Final = {
    "half of a pair": b'"\\ud800"',
    "nesting": b"[" * 5000 + b"]" * 5000,
    "a number beyond doubles": b"1e400",
}
READ_ALONE: Final = {
    "priorityclasses", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "services",
    "endpointslices", "leases",
}  # fmt: skip
"""Kinds of which single objects are read, and none is watched."""


@pytest.fixture(params=POISON.values(), ids=list(POISON))
def poison(request: pytest.FixtureRequest) -> bytes:
    return bytes(request.param)


@pytest.fixture(scope="module")
def before() -> World:
    return world()


def poisoned(item: Obj, value: bytes, version: str = "8000", *, metadata: bool = True) -> bytes:
    """Return an object with a spec, and with `metadata` also a label, that cannot be decoded."""
    made: Any = copy.deepcopy(item)
    made["metadata"]["resourceVersion"] = version
    if metadata:
        made["metadata"]["labels"] = {"poison": msgspec.Raw(value)}
    if "spec" in made:
        made["spec"] = msgspec.Raw(value)
    return msgspec.json.encode(made)


def sound(item: Obj, version: str) -> bytes:
    return msgspec.json.encode({**item, "metadata": {**item["metadata"], "resourceVersion": version}})


def values(reflector: Reflector) -> dict[str, Any]:
    """Return what is kept of each object, without its version."""
    return {key: {**item, "metadata": item["metadata"]["name"]} for key, item in reflector.items.items()}


def watched(before: World, name: str) -> list[Key]:
    """Return the keys of the objects that the watch of a kind shows; of pods, those of tests."""
    return [key for key in before.objects if plural(key[0]) == name and (name != "pods" or key[1] == NAMESPACE)]


def names() -> list[str]:
    return sorted(Scene({}).reflectors)


@pytest.mark.parametrize("name", names())
async def test_events_with_poison_leave_every_other_object(before: World, name: str, poison: bytes) -> None:
    """ADDED, MODIFIED there and back, and DELETED."""
    scene = Scene(before.objects)
    reflector = scene.reflectors[name]
    await reflector.relist()
    expected = values(reflector)
    key = watched(before, name)[0]
    item, place = before.objects[key], f"{key[1]}/{key[2]}"
    others = {each: value for each, value in expected.items() if each != place}
    reflector._receive("MODIFIED", poisoned(item, poison, "8000"))
    kept = values(reflector)
    assert {each: value for each, value in kept.items() if each != place} == others
    assert [*reflector.damaged] == [place]
    reflector._receive("MODIFIED", sound(item, "8001"))
    assert [*reflector.damaged] == []
    assert values(reflector).keys() == expected.keys()
    reflector._receive("DELETED", poisoned(item, poison, "8002"))
    assert values(reflector) == others
    reflector._receive("ADDED", poisoned(item, poison, "8003"))
    assert {each: value for each, value in values(reflector).items() if each != place} == others
    assert [*reflector.damaged] == [place]
    reflector._receive("DELETED", poisoned(item, poison, "8004"))
    assert (values(reflector), reflector.damaged) == (others, {})


@pytest.mark.parametrize("name", names())
async def test_a_page_with_poison_has_every_other_object(before: World, name: str, poison: bytes) -> None:
    sees = Scene(before.objects).reflectors[name]
    await sees.relist()
    key = watched(before, name)[-1]
    place = f"{key[1]}/{key[2]}"
    scene = Scene(before.objects, {key: poisoned(before.objects[key], poison)})
    reflector = scene.reflectors[name]
    await reflector.relist()
    found, expected = values(reflector), values(sees)
    assert {each: value for each, value in found.items() if each != place} == {
        each: value for each, value in expected.items() if each != place
    }
    assert [*reflector.damaged] == [place]


@pytest.mark.parametrize("name", names())
async def test_what_cannot_be_read_is_known_by_name(before: World, name: str, caplog: pytest.LogCaptureFixture) -> None:
    key = watched(before, name)[0]
    scene = Scene(before.objects, {key: poisoned(before.objects[key], POISON["half of a pair"])})
    with caplog.at_level(logging.WARNING):
        await scene.reflectors[name].relist()
    logged = [(each.__dict__["resource"], each.__dict__["object"]) for each in caplog.records]
    assert logged == [(name, f"{key[1]}/{key[2]}")]
    metrics = Metrics()
    metrics.unreadable(scene.caches.unreadable)
    assert _unreadable(metrics.registry, name) == 1


def _unreadable(registry: CollectorRegistry, name: str) -> float | None:
    labels = {"resource": name, "extent": "all"}
    return registry.get_sample_value("neuron_ultraserver_unreadable_objects", labels)


def new_writes(found: Decided, expected: Decided, whose: str) -> list[Any]:
    """Return the writes that there are because an object of a tenant cannot be read.

    A test in progress may end: it cannot be judged.
    """
    texts = {f"{method} {path}" for each in expected.writes.values() for method, path, _ in each}
    made: list[Any] = []
    for name, writes in found.writes.items():
        for method, path, body in writes:
            ends = method == "DELETE" and f"/{NAMESPACE}/" in path and name == whose
            if f"{method} {path}" not in texts and not ends:
                made.append((method, path, body))
    return made


def changed(found: Decided, expected: Decided) -> set[str]:
    """Return the tenants about whom something else is decided."""
    tenants = expected.writes.keys() | found.writes.keys() | expected.verdicts.keys()
    return {name for name in tenants if about(found, name) != about(expected, name)}


def about(decision: Decided, name: str) -> object:
    return decision.writes.get(name), decision.verdicts.get(name)


@pytest.mark.parametrize("metadata", [True, False], ids=["nothing", "metadata"])
@pytest.mark.parametrize("name", names())
async def test_what_cannot_be_read_is_not_gone(before: World, name: str, metadata: bool) -> None:
    """An object that was never read leads to no write, and to no change of other tenants."""
    poison = POISON["half of a pair"]
    expected = await decided(before, {})
    for whose, key in {owner(before.objects[key]): key for key in watched(before, name)}.items():
        found = await decided(before, {key: poisoned(before.objects[key], poison, metadata=metadata)})
        assert new_writes(found, expected, whose) == [], key
        assert changed(found, expected) <= {whose}, key


async def test_a_workload_that_cannot_be_read_is_released_when_it_is_deleted(before: World) -> None:
    key = ("NeuronUltraServerWorkload", "job-grows", "train")
    scene = Scene(before.objects)
    await scene.read()
    item = copy.deepcopy(before.objects[key])
    item["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    workloads = scene.reflectors["neuronultraserverworkloads"]
    workloads._receive("MODIFIED", poisoned(item, POISON["nesting"], metadata=False))
    kept = workloads.items["job-grows/train"]["value"]
    assert (kept.deleting, kept.finalizers) == (True, tuple(item["metadata"]["finalizers"]))
    plan = planning.plan_of(scene.caches.index(), before.now)
    assert plan.verdicts[kept.uid].state == "Deallocating"


async def decided(before: World, texts: dict[Key, bytes]) -> Decided:
    scene = Scene(before.objects, texts)
    await scene.read()
    return await scene.decide(before.now)


def test_each_kind_that_is_read_is_poisoned() -> None:
    assert kinds_read() - {*names()} == READ_ALONE
