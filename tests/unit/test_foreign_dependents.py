"""4.02: an object in another namespace that names a tenant's workload as its owner changes nothing for that tenant."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core.ownership import ObjectIdentity, controller_of
from neuron_dra.core.wire import Obj
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import API_VERSION
from tests.unit.beside_scene import Decided, Scene, plural, world
from tests.unit.ultraserver_world import World

Key = tuple[str, str, str]
NAMESPACES: Final = ("aaa-forger", "zzz-forger")
"""They sort before and behind the namespaces of all tenants."""


def harmful(item: Obj) -> Obj:
    """Change what a dependent says, so that a controller that believes it decides otherwise."""
    match item["kind"]:
        case "Workload":
            item["spec"] = {**item["spec"], "active": False}
            item["status"] = {**item["status"], "conditions": []}
        case "ResourceClaimTemplate":
            text = repr(item["spec"]).replace("neuron_node", "neuron_device")
            item["spec"] = eval(text)
        case "Pod":
            item["status"] = {"phase": "Failed", "reason": "Evicted"}
        case _:
            item["endpoints"] = []
    return item


def another_version(item: Obj) -> Obj:
    """Name the owner in another served version of its group."""
    for reference in item["metadata"]["ownerReferences"]:
        reference["apiVersion"] = reference["apiVersion"].replace("v1beta1", "v1")
    return item


def unchanged(item: Obj) -> Obj:
    return item


CHANGES: Final[Mapping[str, Callable[[Obj], Obj]]] = {
    "copied": unchanged,
    "harmful": harmful,
    "another version": another_version,
}


@pytest.fixture(scope="module")
def before() -> World:
    return world()


def dependents(before: World) -> dict[Key, Obj]:
    """Return every object that a namespaced object controls."""
    found = {}
    for key, item in before.objects.items():
        if key[1] and controller_of(item) is not None:
            found[key] = item
    return found


def forged(key: Key, item: Obj, namespace: str, change: Callable[[Obj], Obj]) -> tuple[Key, Obj]:
    copied = change(copy.deepcopy(item))
    copied["metadata"] |= {"namespace": namespace, "uid": f"forged-{namespace}"}
    return (key[0], namespace, key[2]), copied


async def decided(before: World, objects: Mapping[Any, Obj]) -> Decided:
    scene = Scene(objects)
    await scene.read()
    return await scene.decide(before.now)


def cases(before: World) -> Iterator[tuple[str, Mapping[Any, Obj]]]:
    for key, item in dependents(before).items():
        for what, change in CHANGES.items():
            for namespace in NAMESPACES:
                place, copied = forged(key, item, namespace, change)
                pair = {place: copied}
                first = namespace == NAMESPACES[0]
                yield f"{what}: {place}", {**pair, **before.objects} if first else {**before.objects, **pair}


async def test_forged_dependents_change_nothing(before: World) -> None:
    expected = await decided(before, before.objects)
    for what, objects in cases(before):
        found = await decided(before, objects)
        # The copy itself may be ended: its owner exists nowhere.
        theirs = {tenant: writes for tenant, writes in found.writes.items() if tenant not in NAMESPACES}
        assert (theirs, found.verdicts) == (expected.writes, expected.verdicts), what


async def test_same_dependents_in_the_right_namespace_count(before: World) -> None:
    """The control: without each kind of dependent, or with a harmful one, something else is decided."""
    expected = await decided(before, before.objects)
    counts = set()
    for key, item in dependents(before).items():
        without = {each: stored for each, stored in before.objects.items() if each != key}
        for objects in (without, {**before.objects, key: harmful(copy.deepcopy(item))}):
            found = await decided(before, objects)
            if (found.writes, found.verdicts) != (expected.writes, expected.verdicts):
                counts.add(key[0])
    assert counts == {key[0] for key in dependents(before)}


async def test_each_kind_with_owners_that_is_watched_is_forged(before: World) -> None:
    watched = Scene(before.objects).reflectors.keys()
    forged_plurals = {plural(key[0]) for key in dependents(before)}
    assert watched - forged_plurals == WITHOUT_OWNERS.keys()


WITHOUT_OWNERS: Final = {
    "nodes": "no object controls it",
    "namespaces": "no object controls it",
    "deviceclasses": "no object controls it",
    "neuronultraservers": "no object controls it",
    "neuronultraserverqualifications": "no object controls it",
    "resourceslices": "the Node of its own name controls it; only that node's plugin may write it",
    "resourceclaims": "its workload is in its configuration: see test_own_claim_needs_exact_match",
    "neuronultraserverworkloads": "its job is in its annotation, in its own namespace: see test_jobs_decide",
    "jobs": "its owner is not read",
    "jobsets": "its owner is not read",
    "leaderworkersets": "its owner is not read",
    "statefulsets": "its owner is not read",
}
"""The watched kinds that are not joined by owner references, and why."""


# -- the function ------------------------------------------------------------------------------------------------------

OWNER = ObjectIdentity("neuron.aws.com", "NeuronUltraServerWorkload", "ml", "job", "uid-job")


def owned(namespace: str = "ml", **changes: Any) -> Obj:
    reference = {"apiVersion": API_VERSION, "kind": OWNER.kind, "name": "job", "uid": "uid-job", "controller": True}
    return {"metadata": {"name": "t", "namespace": namespace, "ownerReferences": [{**reference, **changes}]}}


@pytest.mark.parametrize(
    ("item", "is_controlled"),
    [
        (owned(), True),
        (owned(apiVersion="neuron.aws.com/v1"), True),
        (owned("dev"), False),
        (owned(apiVersion="v1beta1"), False),
        (owned(apiVersion="example.com/v1beta1"), False),
        (owned(kind="Job"), False),
        (owned(name="other"), False),
        (owned(uid="uid-other"), False),
        (owned(controller=False), False),
        (owned(controller="true"), False),
        ({"metadata": {"name": "t", "namespace": "ml"}}, False),
    ],
)
def test_owner_needs_every_part_of_its_identity(item: Obj, is_controlled: bool) -> None:
    assert OWNER.controls(item) is is_controlled


def test_cluster_scoped_owner_controls_in_every_namespace() -> None:
    node = ObjectIdentity("", "Node", "", "n0", "uid-n0")
    item = owned("dev", apiVersion="v1", kind="Node", name="n0", uid="uid-n0")
    assert node.controls(item)


# -- tags --------------------------------------------------------------------------------------------------------------


def allocated() -> World:
    made = World([item for n in range(3) for item in ultraserver(f"u{n}")])
    made.submit("victim")
    made.settle()
    assert made.state("victim")[0] == "Allocated"
    return made


def show(made: World, node: str, tag: Mapping[str, str]) -> None:
    """Let a node show a tag that no object has, and keep it for ever."""
    name = next(item["metadata"]["name"] for item in made.all("ResourceSlice") if item["spec"]["nodeName"] == node)
    item = copy.deepcopy(made.get("ResourceSlice", name))
    for device in item["spec"]["devices"]:
        device["attributes"] |= {key: {"string": text} for key, text in tag.items()}
    made.put(item)
    made.silent = {node}


def forged_tag(made: World, **changes: str) -> dict[str, str]:
    uid = made.workload("victim")["metadata"]["uid"]
    tag = {"workloadNamespace": "ml", "workloadId": "victim", "workloadUid": uid, "allocationId": "forged"}
    return {**tag, "workloadPhase": "Bound", **changes}


def free_node(made: World) -> str:
    reserved = {node for nodes in made.reserved("victim").values() for node in nodes}
    return next(str(item["metadata"]["name"]) for item in made.all("Node") if item["metadata"]["name"] not in reserved)


def test_tag_without_a_reservation_does_not_hold_up_its_workload() -> None:
    made = allocated()
    before = made.reserved("victim")
    show(made, free_node(made), forged_tag(made))
    made.settle()
    assert (made.state("victim")[0], made.reserved("victim")) == ("Allocated", before)
    made.delete_workload("victim")
    made.settle()
    assert made.all("NeuronUltraServerWorkload") == []


def test_tag_without_a_reservation_closes_its_own_node() -> None:
    """The control: the node that shows it is closed, and is not reserved for anybody until the tag is gone."""
    made = allocated()
    node = free_node(made)
    show(made, node, forged_tag(made))
    made.settle()
    closed = {}
    for item in made.all("NeuronUltraServer"):
        for allocation in decode.ultraserver(item).reservations:
            for name in allocation.allocation.nodes:
                closed[name] = allocation.allocation.phase.value
    assert closed[node] == "Draining"


def test_tag_without_a_reservation_is_charged_to_no_namespace() -> None:
    made = allocated()
    made.put(
        {"kind": "Namespace", "metadata": {"name": "ml", "annotations": {"neuron.aws.com/max-reserved-nodes": "8"}}}
    )
    show(made, free_node(made), forged_tag(made, workloadUid="uid-gone"))
    made.settle()
    made.submit("more")
    made.settle()
    assert made.state("more")[0] == "Allocated"
