"""4.02: an object that was deleted and created again under its name has nothing of its predecessor."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from typing import Final

import pytest

from controller.apply.decided_writes import Attempt, WriteOutcome
from controller.qualify import survey
from controller.qualify.decide import forgotten, sources
from controller.qualify.model import qualification
from hack.bench.plan import NOW, fleet
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.wire import Obj
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from tests.unit.beside_scene import Decided, Scene, world
from tests.unit.test_foreign_dependents import WITHOUT_OWNERS, Key, decided, dependents
from tests.unit.test_qualification_costs import ASKED, Looking, store
from tests.unit.ultraserver_world import World

NOBODY: Final = "uid-of-nobody"


# -- dependents by owner references ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before() -> World:
    return world()


def left_by(item: Obj, **owner: str) -> Obj:
    """Return an object of which the owner is gone: its reference has another UID than the object of that name."""
    left = copy.deepcopy(item)
    for reference in left["metadata"]["ownerReferences"]:
        reference |= {"uid": NOBODY, **owner}
    return left


async def with_object(before: World, key: Key, item: Obj) -> Decided:
    return await decided(before, {**before.objects, key: item})


async def test_dependents_of_a_predecessor_are_those_of_a_stranger(before: World) -> None:
    for key, item in dependents(before).items():
        of_predecessor = await with_object(before, key, left_by(item))
        of_stranger = await with_object(before, key, left_by(item, name="stranger"))
        assert of_predecessor == of_stranger, key


async def test_dependents_of_the_object_itself_count(before: World) -> None:
    """The control: each kind of dependent counts for an owner of its name and UID."""
    expected = await decided(before, before.objects)
    counts = set()
    for key, item in dependents(before).items():
        if await with_object(before, key, left_by(item)) != expected:
            counts.add(key[0])
    assert counts == {key[0] for key in dependents(before)}


# -- what names a workload, a job, a Node or a qualification otherwise -------------------------------------------------


def recreate_workload(made: World) -> None:
    """Replace the workload by one with another UID; Kubernetes deletes the template of the former one."""
    item = copy.deepcopy(made.workload("train"))
    item["metadata"] |= {"uid": "uid-new", "finalizers": []}
    del item["status"]
    made.put(item)
    made.remove("ResourceClaimTemplate", "train", "ml")


def allocated() -> World:
    made = World([item for number in range(2) for item in ultraserver(f"u{number}")])
    made.submit("train")
    made.settle()
    return made


def allocations(made: World) -> dict[str, str]:
    """Return the UID of the workload of each reservation, by its id."""
    found = {}
    for item in made.all("NeuronUltraServer"):
        for entry in item["status"].get("allocations") or ():
            found[entry["allocationId"]] = entry["workloadUid"]
    return found


def test_recreated_workload_gets_a_reservation_of_its_own() -> None:
    made = allocated()
    [former] = allocations(made)
    recreate_workload(made)
    made.settle()
    found = allocations(made)
    assert (former in found, list(found.values())) == (False, ["uid-new"])
    assert made.state("train") == ("Allocated", "Allocated")
    template = made.get("ResourceClaimTemplate", "train", "ml")
    assert [each["uid"] for each in template["metadata"]["ownerReferences"]] == ["uid-new"]


def test_claims_of_the_former_workload_keep_its_nodes() -> None:
    made = allocated()
    uid = made.workload("train")["metadata"]["uid"]
    nodes = made.reserved("train")[0]
    made.claim("claim", nodes, workload_uid=uid, pod="pod")
    recreate_workload(made)
    made.settle()
    assert made.state("train") == ("Allocated", "Allocated")
    [own] = [
        entry["allocatedNodes"]
        for item in made.all("NeuronUltraServer")
        for entry in item["status"].get("allocations") or ()
        if entry["workloadUid"] == "uid-new"
    ]
    assert set(own).isdisjoint(nodes)


async def test_recreated_job_does_not_take_over_a_reservation(before: World) -> None:
    """The workload is made for a job with another UID: it is released, and a new one is made."""
    scene = Scene({**before.objects, **_with_uid(before, ("Job", "job-grows", "train"))})
    await scene.read()
    found = (await scene.decide(before.now)).writes["job-grows"]
    methods = [(method, path.rpartition("/")[2]) for method, path, _ in found if "neuronultraserverworkloads" in path]
    assert ("DELETE", "train") in methods
    assert not [method for method, _ in methods if method == "PATCH"]


def _with_uid(before: World, key: Key) -> dict[Key, Obj]:
    item = copy.deepcopy(before.objects[key])
    item["metadata"]["uid"] = "uid-new"
    return {key: item}


# -- qualifications ----------------------------------------------------------------------------------------------------

NEW: Final = qualification({**ASKED, "metadata": {**ASKED["metadata"], "uid": "uid-new"}})


def with_results_of(uid: str) -> FleetIndex:
    index = fleet(8)
    for name in list(index.group_by_name):
        store(index, name, NEW.name)
        stored = index.ultraserver_by_name[name]
        results = tuple(replace(each, qualification_uid=uid) for each in stored.results)
        index.put_ultraserver(name, replace(stored, results=results))
    index.refresh()
    return index


@pytest.mark.parametrize(("uid", "is_its_own"), [(NOBODY, False), ("uid-new", True), ("", True)])
def test_results_count_for_the_very_qualification(uid: str, *, is_its_own: bool) -> None:
    """A result of an earlier release does not say the UID of its qualification."""
    index = with_results_of(uid)
    groups = len(index.group_by_name)
    assert survey.survey(index, NEW, NOW).counts.fresh == (groups if is_its_own else 0)
    assert len(survey.due(index, NEW, (), NOW, DEFAULT_LIMITS.block_lead)) == (0 if is_its_own else groups)
    assert len([*forgotten(index, sources([NEW]))]) == (0 if is_its_own else groups)


def test_failures_of_a_predecessor_do_not_add_up() -> None:
    [stored, *_] = with_results_of(NOBODY).ultraserver_by_name.values()
    failed = tuple(replace(each, passed=False, failures=1) for each in stored.results)
    [new] = (replace(each, qualification_uid="uid-new") for each in failed)
    uids = dict(zip(new.nodes, new.node_uids, strict=True))
    [after] = survey.with_result(failed, new, NEW, "", uids)
    assert (after.failures, after.unqualified) == (1, False)


def test_recreated_qualification_does_not_show_why_the_former_could_not_test() -> None:
    there = Looking(fleet(8))
    there.watches.remember(False, ASKED)
    there.look()
    there.tests._note_refusal(ASKED["metadata"]["uid"], Attempt(WriteOutcome.REJECTED, "a policy"))
    there.look()
    assert there.view().refusals == {"q": "a policy"}  # the control
    meta = {**ASKED["metadata"], "uid": "uid-new", "resourceVersion": "99999"}
    there.watches.remember(False, {**ASKED, "metadata": meta})
    there.look()
    assert "a policy" not in there.view().refusals.values()


# -- every kind --------------------------------------------------------------------------------------------------------

TESTED: Final = {
    "neuronultraserverworkloads": "test_recreated_workload_gets_a_reservation_of_its_own",
    "resourceclaims": "test_claims_of_the_former_workload_keep_its_nodes",
    "jobs": "test_recreated_job_does_not_take_over_a_reservation",
    "jobsets": "as jobs: the mark of each kind of job has its UID",
    "leaderworkersets": "as jobs",
    "statefulsets": "as jobs",
    "neuronultraserverqualifications": "test_results_count_for_the_very_qualification",
    "nodes": "test_failure_strategies: test_replaced_node_gets_no_old_reservation",
    "resourceslices": "test_discovery: test_slices_of_a_replaced_node_are_ignored",
    "neuronultraservers": "test_decided: test_recreated_ultraservers_get_new_copies_of_their_uids",
    "namespaces": "nothing of a Namespace is kept: its limit and its label are read from the one that exists",
    "deviceclasses": "nothing of a DeviceClass is kept: it exists or not",
}
"""The kinds without joins by owner references, and what shows that a new object has nothing of the former one."""


def test_each_kind_without_owner_references_has_its_test() -> None:
    assert TESTED.keys() == WITHOUT_OWNERS.keys()
    for text in TESTED.values():
        if text.startswith("test_"):
            assert text.rpartition(" ")[2] in _names_of_tests(text.partition(": ")[0] if ": " in text else MODULE)


MODULE: Final = __name__.rpartition(".")[2]


def _names_of_tests(module: str) -> set[str]:
    return {*vars(importlib.import_module(f"tests.unit.{module}"))}
