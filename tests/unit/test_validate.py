"""`validate`: what is wrong with manifests, in the words of the code that rejects them (17.5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_dra import cli
from neuron_dra.api import config as user_config
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules, trap
from neuron_dra.ask.validate.rules import ManifestProblem
from neuron_dra.core.wire import Obj
from neuron_dra.errors import ClaimError
from tests.support import small_clusters as small

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
ATTRIBUTE = "device.attributes['neuron.aws.com']"
GROUP8 = "resource.aws.com/devicegroup8_id"


def check(*items: Obj, version: tuple[int, int] | None = (1, 37)) -> list[ManifestProblem]:
    return rules.Checker(snapshot.build(list(items)), version).run()


def codes(*items: Obj, version: tuple[int, int] | None = (1, 37)) -> list[tuple[str, bool]]:
    return [(each.code, each.warning) for each in check(*items, version=version)]


def configured(*parameters: Obj, requests: tuple[str, ...] = (), **exactly: Any) -> Obj:
    made = small.template("t", **exactly)
    made["spec"]["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "neuron.aws.com", "parameters": each}, **({"requests": [name]} if name else {})}
        for each, name in zip(parameters, requests or ("",) * len(parameters), strict=True)
    ]
    return made


def neuron(**fields: Any) -> Obj:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", **fields}


@pytest.mark.parametrize(
    "parameters",
    [
        neuron(logicalNeuronCores=2),
        neuron(logicalNeuronCore=3),
        neuron(),
        neuron(logicalNeuronCore=2) | {"apiVersion": "neuron.aws.com/v2"},
        {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 3},
        {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConf"},
    ],
)
def test_configuration_is_rejected_in_the_words_of_prepare(parameters: Obj) -> None:
    with pytest.raises(ClaimError) as rejected:
        user_config.decode(parameters, "config[0].opaque.parameters")
    found = check(configured(parameters))
    assert [(each.code, each.text) for each in found] == [("ConfigRejected", str(rejected.value))]


@pytest.mark.parametrize(
    ("item", "code", "words"),
    [
        (small.template("t", 17), "CountTooLarge", "the largest node has 16 that match"),
        (small.template("t", 5, group="resource.aws.com/devicegroup4_id"), "GroupTooSmall", "at most 4 have"),
        (small.template("t", deviceClassName="neurons.aws.com"), "ClassUnknown", "did you mean neuron.aws.com?"),
        (small.template("t", cel=f"has({ATTRIBUTE}.topologyX)"), "AttributeUnknown", "did you mean topology_x?"),
        (small.template("t", group="resource.aws.com/devicegroup5_id"), "AttributeUnknown", "did you mean devicegroup"),
        (small.template("t", cel="device.driver =="), "SelectorInvalid", "invalid CEL"),
        (small.template("t", cel=f"{ATTRIBUTE}.instanceType == 'trn2'"), "SelectorMatchesNothing", "no instance"),
        (
            configured(neuron(logicalNeuronCore=2), cel=f"{ATTRIBUTE}.instanceType == 'trn1.2xlarge'"),
            "DriverRejects",
            "L",
        ),
    ],
)
def test_problems_are_found_without_a_cluster(item: Obj, code: str, words: str) -> None:
    found = [each for each in check(item) if each.code == code]
    assert found, check(item)
    assert words in found[0].text
    assert not found[0].warning


def test_unguarded_attribute_is_a_warning_with_the_type_that_lacks_it() -> None:
    found = check(small.template("t", cel=f"{ATTRIBUTE}.topology_x == 1"))
    assert [(each.code, each.warning) for each in found] == [("SelectorFails", True)]
    assert "fails on devices of inf1" in found[0].text
    guarded = f"has({ATTRIBUTE}.topology_x) && {ATTRIBUTE}.topology_x == 1"
    assert check(small.template("t", cel=guarded)) == []


def test_core_size_that_some_types_lack_is_a_warning() -> None:
    assert codes(configured(neuron(logicalNeuronCore=1))) == [("DriverRejects", True)]


def test_two_core_sizes_in_one_container_are_a_problem() -> None:
    made = configured(neuron(logicalNeuronCore=1), neuron(logicalNeuronCore=2), requests=("neurons", "more"))
    made["spec"]["spec"]["devices"]["requests"].append(
        {"name": "more", "exactly": {"deviceClassName": "neuron.aws.com"}}
    )
    pod = small.pod("p", "t")
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "neurons"}]
    assert ("CoreSizesDiffer", False) in codes(made, pod)
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "neurons", "request": "more"}]
    assert ("CoreSizesDiffer", False) not in codes(made, pod)


def test_values_of_one_cluster_are_not_judged() -> None:
    assert check(small.template("t", cel=f"{ATTRIBUTE}.neuronDriverVersion == '2.26.0'")) == []


def test_devices_of_other_drivers_are_left_alone() -> None:
    made = small.template("t", 8, group=GROUP8)
    devices = made["spec"]["spec"]["devices"]
    devices["requests"].append({"name": "efas", "exactly": {"deviceClassName": "efa.networking.k8s.aws", "count": 8}})
    devices["constraints"] = [{"requests": ["neurons", "efas"], "matchAttribute": GROUP8}]
    assert check(made) == []
    assert codes(made, version=(1, 34)) == [("LongSearch", True)]


def test_second_alternative_for_all_devices_is_a_warning() -> None:
    """The scheduler of 1.34 and 1.35 gives it the devices of the first one."""
    made = small.template("t")
    types = [("big", "trn2.48xlarge"), ("small", "trn1.32xlarge")]
    alternatives = [
        {
            "name": name,
            "deviceClassName": "neuron.aws.com",
            "allocationMode": "All",
            "selectors": [{"cel": {"expression": f"{ATTRIBUTE}.instanceType == '{each}'"}}],
        }
        for name, each in types
    ]
    made["spec"]["spec"]["devices"]["requests"] = [{"name": "neurons", "firstAvailable": alternatives}]
    [found] = check(made, version=(1, 34))
    assert (found.code, found.warning) == ("SecondAlternative", True)
    assert found.text == (
        "on Kubernetes 1.34 and 1.35 the scheduler gives neurons/small the devices of neurons/big, whatever its own "
        "selectors and class: give one of the two a count, or place it third"
    )
    assert check(made, version=(1, 36)) == []
    alternatives[1]["selectors"] = alternatives[0]["selectors"]
    assert check(made, version=(1, 34)) == []


def test_ten_second_trap_is_predicted_with_the_rewrite() -> None:
    """The allocator of 1.34 and 1.35 tries permutations: 16 of 16 is the trap, All, 8 and groups of 8 are not."""
    sixteen = small.template("t", 16)
    found = check(sixteen, version=(1, 34))
    assert [(each.code, each.warning) for each in found] == [("LongSearch", True)]
    assert 'write allocationMode: All and the annotation neuron.aws.com/device-count: "16"' in found[0].text
    assert check(sixteen, version=(1, 36)) == []
    assert codes(sixteen, version=None) == [("LongSearch", True)]
    for fine in (small.template("t", 8), small.template("t", 8, group=GROUP8), small.template("t", 1)):
        assert check(fine, version=(1, 34)) == []
    everything = small.template("t", allocationMode="All")
    del everything["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
    assert check(everything, version=(1, 34)) == []


@pytest.mark.parametrize("count", range(1, 8))
def test_steps_of_a_search_are_counted(count: int) -> None:
    """The formula, against a search that tries every permutation of one device too few."""

    def visit(taken: tuple[int, ...]) -> int:
        return 1 + sum(visit((*taken, n)) for n in range(count - 1) if n not in taken)

    assert trap.worst_steps([trap.WantedCount(count, 16)]) == visit(())


def test_examples_have_no_problems_but_the_one_that_shows_a_rejection(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(str(path) for path in EXAMPLES.rglob("*.yaml"))
    code = cli.main(["validate", *files, "-o", "json", "--kubernetes", "1.37"])
    found = json.loads(capsys.readouterr().out)["items"]
    problems = {Path(each["file"]).name for each in found if each["severity"] == "problem"}
    assert (code, problems) == (1, {"neuron-lnc-1.yaml"})


def test_files_may_use_objects_of_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A DeviceClass of one file is there for the claims of another; problems are printed with their own file."""
    made = small.template("t", deviceClassName="mine.neuron.aws.com")
    selector = [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]
    own = {"kind": "DeviceClass", "metadata": {"name": "mine.neuron.aws.com"}, "spec": {"selectors": selector}}
    one, two = tmp_path / "template.json", tmp_path / "class.json"
    one.write_text(json.dumps(made))
    two.write_text(json.dumps(own))
    assert cli.main(["validate", str(one)]) == 1
    assert "there is no DeviceClass mine.neuron.aws.com" in capsys.readouterr().out.replace("\n  ", " ")
    assert cli.main(["validate", str(one), str(two)]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["validate", str(tmp_path / "missing.yaml")]) == 2


@pytest.mark.parametrize("count", [33, 200, 10**12])
def test_more_devices_than_a_claim_can_have_are_not_searched(count: int) -> None:
    """The scheduler rejects such a claim at once."""
    found = check(small.template("t", count), version=None)
    assert [each.warning for each in found] == [False]
    assert f"request neurons wants {count} devices of one node" in found[0].text


@pytest.mark.parametrize(
    ("group", "template", "found"),
    [
        ("scheduling.k8s.io/v1beta1", "t", [("OneNodeForAGroup", True)]),
        ("scheduling.k8s.io/v1beta1", "unknown", []),
        ("scheduling.volcano.sh/v1beta1", "t", []),
    ],
)
def test_claim_that_a_gang_shares_is_on_one_node(
    group: str, template: str, found: list[tuple[str, bool]], tmp_path: Path
) -> None:
    gang = {"apiVersion": group, "kind": "PodGroup", "metadata": {"name": "gang", "namespace": "default"}}
    gang |= {"spec": {"resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": template}]}}
    assert codes(small.template("t"), gang) == found
    manifest = tmp_path / "gang.yaml"
    manifest.write_text(json.dumps(gang))
    assert cli.main(["validate", str(manifest)]) == 0
