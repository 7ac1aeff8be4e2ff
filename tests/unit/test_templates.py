"""`templates`: each is valid, runs on its type, and is found quickly by every scheduler (17.8)."""

from __future__ import annotations

import copy

import pytest

from neuron_dra import cli
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.templates import library as templates
from neuron_dra.ask.templates.library import LibraryTemplate
from neuron_dra.ask.validate import rules
from neuron_dra.ask.world import imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, groups, names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.demo import installation
from neuron_dra.simulate import allocator, model, permutations, semantics
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.semantics import Semantics
from tests.support import efa_slices, fast_yaml
from tests.support import small_clusters as small

HELD = {"idle": (), "one held": (0,), "two held": (0, 5)}
MOST_STEPS = {"idle": 100, "one held": 10_000, "two held": 10_000}
EVERY = {each.name: each for each in templates.all_of_them()}
GENERATIONS = ("inf1", "inf2", "trn1", "trn2", "trn3")
WITH_EFA = ("trn1", "trn2")


def of(generation: str) -> list[LibraryTemplate]:
    """Return the templates for a generation, of which there is at least one."""
    chosen = [template for template in EVERY.values() if template.type.generation == generation]
    assert chosen
    return chosen


def may_have_efa(template: LibraryTemplate) -> bool:
    [first, *_] = template.wire["spec"]["spec"]["devices"]["requests"]
    return bool(template.type.efa) and not template.type.whole_node and "count" in first["exactly"]


def problems(item: LibraryTemplate) -> list[rules.ManifestProblem]:
    return rules.Checker(snapshot.build([item.wire]), (1, 34)).run()


def why_not_running(template: LibraryTemplate) -> str:
    """Return what is wrong with a template, or why its pod does not run on an idle node; empty for neither."""
    if wrong := problems(template):
        return str(wrong)
    kind = f"{'ultraserver ' if template.type.whole_node else ''}{template.type.name}"
    created = {**template.wire, "metadata": {**template.wire["metadata"], "namespace": "default"}}
    world = World(snapshot.build([*imagined.fleet(f"1 x {kind}", "test"), created]))
    [pod, *_] = simulation.Simulation(world).run([small.pod("p", template.name)])
    return "" if pod.runs else str(pod)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_templates_are_valid_and_run_on_their_types(generation: str) -> None:
    reasons = {template.name: why_not_running(template) for template in of(generation)}
    wrong = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    assert not wrong, "\n".join(wrong)


def outcome_on(found: LibraryTemplate, used: tuple[int, ...], rules: Semantics) -> allocator.Allocated | Failure:
    """What a scheduler finds on a node of the template's type with EFA interfaces.

    A claim holds the devices `used` and the interfaces beside them.
    """
    items = imagined.fleet(f"1 x {'ultraserver ' if found.type.whole_node else ''}{found.type.name}", "test")
    name = next(iter(World(snapshot.build(items)).nodes))
    beside = efa_slices.resource_slice(name, found.type.name)
    world = World(snapshot.build([*items, beside, installation.efa_class()]), rules=rules)
    claim = model.claim({"metadata": {"name": "c", "namespace": "default"}, "spec": found.wire["spec"]["spec"]})
    each = groups.group_ids(found.type)
    of_used = {each[number][1] for number in used if number in each}
    held = {model.DeviceId(names.DRIVER, name, f"{names.DEVICE_PREFIX}{number}") for number in used} | {
        model.DeviceId(EFA.name, name, device["name"])
        for device in beside["spec"]["devices"]
        if device["attributes"]["resource.aws.com/devicegroup1_id"]["string"] in of_used
    }
    return allocator.allocate(model.node(world.nodes[name]), [claim], world.inventory, world.classes, frozenset(held))


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("state", HELD)
def test_search_of_older_schedulers_is_short(generation: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node is too full as well: Kubernetes 1.34 and 1.35 look at every order of what is left."""
    monkeypatch.setattr(permutations, "MAX_STEPS", MOST_STEPS[state])
    outcomes = {template.name: outcome_on(template, HELD[state], semantics.OLD) for template in of(generation)}
    failures = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
    wrong = [f"{name}: {failure}" for name, failure in failures.items() if failure.kind is not FailureKind.NO_SOLUTION]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("state", HELD)
@pytest.mark.parametrize("generation", WITH_EFA)
@pytest.mark.parametrize("rules", [semantics.OLD, semantics.NEW], ids=["1.34", "1.37"])
def test_devices_with_efa_are_found_quickly(
    generation: str, state: str, rules: Semantics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trn1.32xlarge has half as many interfaces as devices, and was asked for as many."""
    monkeypatch.setattr(permutations, "MAX_STEPS", MOST_STEPS["one held"])
    with_efa = [templates.with_efa(copy.deepcopy(template)) for template in of(generation) if may_have_efa(template)]
    outcomes = {template.name: outcome_on(template, HELD[state], rules) for template in with_efa}
    wrong = [f"{name}: {outcome}" for name, outcome in outcomes.items() if isinstance(outcome, Failure)]
    assert not wrong, "\n".join(wrong)


def test_every_type_has_templates_with_distinct_names() -> None:
    made = templates.all_of_them()
    assert {each.type.name for each in made} == {each.name for each in catalogue.all_types()}
    assert len(EVERY) == len(made)
    assert {each.type.generation for each in made} == set(GENERATIONS)
    assert {each.type.generation for each in made if may_have_efa(each)} == set(WITH_EFA)


@pytest.mark.parametrize("size", [1, 2])
def test_core_size_is_added_where_the_type_offers_it(size: int) -> None:
    fresh = {each.name: each for each in templates.all_of_them()}
    assert problems(templates.with_cores(fresh["neuron-4-trn2-48xlarge"], size)) == []


def test_efa_interfaces_are_in_the_same_group() -> None:
    made = templates.with_efa(copy.deepcopy(EVERY["neuron-4-trn2-48xlarge"]))
    devices = made.wire["spec"]["spec"]["devices"]
    assert [each["exactly"]["count"] for each in devices["requests"]] == [4, 4]
    constraint = {"requests": ["neurons", "efas"], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    assert devices["constraints"] == [constraint]
    assert problems(made) == []


def test_eight_devices_are_two_groups_of_four() -> None:
    """One request for eight takes the scheduler of 1.34 13,700 steps where one of them is held."""
    made = templates.with_efa(templates.with_cores(copy.deepcopy(EVERY["neuron-8-trn2-48xlarge"]), 1))
    devices = made.wire["spec"]["spec"]["devices"]
    assert {each["name"]: each["exactly"]["count"] for each in devices["requests"]} == {
        "neurons-0": 4,
        "neurons-1": 4,
        "efas-0": 4,
        "efas-1": 4,
    }
    assert devices["constraints"] == [
        {
            "requests": ["neurons-0", "neurons-1", "efas-0", "efas-1"],
            "matchAttribute": "resource.aws.com/devicegroup8_id",
        },
        {"requests": ["neurons-0", "efas-0"], "matchAttribute": "resource.aws.com/devicegroup4_id"},
        {"requests": ["neurons-1", "efas-1"], "matchAttribute": "resource.aws.com/devicegroup4_id"},
    ]


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["templates", "list", "trn2.48xlarge"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "TEMPLATE                 A POD GETS",
        "neuron-1-trn2-48xlarge   1 device",
        "neuron-4-trn2-48xlarge   4 connected devices",
        "neuron-8-trn2-48xlarge   8 connected devices",
        "neuron-16-trn2-48xlarge  all 16 devices",
    ]
    assert cli.main(["templates", "show", "neuron-4-trn2-48xlarge", "neuron-1-trn2-48xlarge", "--lnc", "1"]) == 0
    shown = fast_yaml.load_all(capsys.readouterr().out)
    assert [each["metadata"]["name"] for each in shown] == [
        "neuron-4-trn2-48xlarge-lnc-1",
        "neuron-1-trn2-48xlarge-lnc-1",
    ]
    assert shown[0]["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["logicalNeuronCore"] == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["list", "trn2.48xlage"], "the instance type trn2.48xlage is unknown; did you mean trn2.48xlarge"),
        (["show"], "name a template"),
        (["show", "neuron-4-trn2-48xlage"], "did you mean neuron-4-trn2-48xlarge?"),
        (["show", "neuron-1-inf2-xlarge", "--lnc", "2"], "inf2.xlarge does not offer it; its size is fixed"),
        (["show", "neuron-16-trn2-48xlarge", "--efa"], "see templates list"),
        (["list", "--lnc", "2"], "only with show"),
    ],
)
def test_mistakes_are_named(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["templates", *words]) == 2
    assert text in capsys.readouterr().err
