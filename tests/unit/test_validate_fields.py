"""`validate` compares manifests with the fields and rules of API servers (4.08)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra import object_files
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import api_rules, fields, rules
from neuron_dra.core.wire import Obj
from tests.support import mutated_manifests, questions
from tests.support import small_clusters as small

TEMPLATE = "ResourceClaimTemplate default/t"


def base(kind: str) -> Obj:
    return copy.deepcopy(next(item for item in mutated_manifests.bases() if item["kind"] == kind))


def problems(item: Obj, version: tuple[int, int] | None = None) -> list[str]:
    return [problem.text for problem in fields.of_object("", item, version)]


def rejected(item: Obj) -> list[str]:
    return [problem.text for problem in api_rules.of_object("", item)]


@pytest.mark.parametrize("item", mutated_manifests.bases(), ids=lambda item: str(item["kind"]))
def test_manifest_without_faults_has_no_findings(item: Obj) -> None:
    assert (problems(item), rejected(item)) == ([], [])


def test_every_release_of_the_table_says_where_it_is_from() -> None:
    table = json.loads(Path("neuron_dra/data/fields.json").read_text())
    sources = {release: part["source"] for release, part in table["releases"].items()}
    assert sources == {
        "1.35": "/openapi/v3 of kube-apiserver v1.35.4",
        "1.36": "api/openapi-spec/v3 of kubernetes v1.36.0",
        "1.37": "/openapi/v3 of kube-apiserver v1.37.2",
    }
    for part in table["releases"].values():
        assert {"v1 Pod", "apps/v1 Deployment", "batch/v1 Job", "resource.k8s.io/v1 ResourceClaim"} <= part[
            "kinds"
        ].keys()
        assert "neuron.aws.com/v1 NeuronUltraServerWorkload" in part["kinds"]


def test_field_that_belongs_below_another_is_found_there() -> None:
    template = small.template("t")
    template["spec"]["spec"]["devices"]["requests"] = [{"name": "chip", "deviceClassName": "neuron.aws.com"}]
    at = "spec.spec.devices.requests[0].deviceClassName"
    assert problems(template) == [f"{at}: unknown field; write it below exactly"]
    assert problems({**template, "apiVersion": "resource.k8s.io/v1beta1"}) == []


def test_field_that_belongs_above_is_found_there() -> None:
    pod = base("Pod")
    pod["spec"]["containers"][0]["nodeSelector"] = {}
    [text] = problems(pod)
    assert text.startswith("spec.containers[0].nodeSelector: unknown field; write it below spec, beside")


def test_unknown_field_has_the_nearest_name() -> None:
    pod = base("Pod")
    pod["spec"]["resourceClaim"] = pod["spec"].pop("resourceClaims")
    assert problems(pod) == ["spec.resourceClaim: unknown field, did you mean resourceClaims?"]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("terminationGracePeriodSeconds", "30", 'spec.terminationGracePeriodSeconds: "30": write an integer'),
        ("priority", 2**31, "spec.priority: 2147483648: write an integer of 32 bits"),
        ("hostNetwork", "true", 'spec.hostNetwork: "true": write true or false'),
        ("nodeSelector", {"pool": 7}, "spec.nodeSelector.pool: 7: write a string, in YAML in quotes"),
        ("nodeName", ["a"], 'spec.nodeName: ["a"]: write a string'),
        ("containers", {}, "spec.containers: {}: write a list"),
        ("overhead", {"cpu": "4 cores"}, 'spec.overhead.cpu: "4 cores": write a quantity, such as 4 or 16Gi'),
        ("terminationGracePeriodSeconds", 30.0, ""),
        ("overhead", {"cpu": 0.5, "memory": "1e3"}, ""),
        ("nodeSelector", None, ""),
        ("priority", float("inf"), "spec.priority: Infinity: write an integer of 32 bits"),
    ],
)
def test_value_of_another_type_is_a_finding(field: str, value: Any, text: str) -> None:
    pod = base("Pod")
    pod["spec"][field] = value
    assert problems(pod) == ([text] if text else [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", False),
        ("Y", True),
        ("yes", True),
        ("off", False),
        ("ny", "ny"),
        ("'n'", "n"),
        ("2026-01-02", "2026-01-02"),
    ],
)
def test_yaml_is_read_as_kubectl_reads_it(text: str, value: Any) -> None:
    """kubectl sends an unquoted n as false, and a date as a text (sigs.k8s.io/yaml)."""
    manifest = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{nodeName: {text}}}\n"
    (pod,) = object_files.decoded(manifest.encode(), "FILE")
    assert pod["spec"]["nodeName"] == value


def test_field_of_some_releases_is_a_warning_without_a_version() -> None:
    pod = base("Pod")
    pod["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    found = list(fields.of_object("", pod, None))
    assert [(problem.warning, "on Kubernetes 1.35" in problem.text) for problem in found] == [(True, True)]
    assert (len(problems(pod, (1, 35))), problems(pod, (1, 37))) == (1, [])


@pytest.mark.parametrize(
    ("kind", "path", "value", "text"),
    [
        ("ResourceClaim", "spec/devices/constraints/0/requests", ["neuron"], "there is no request neuron"),
        ("ResourceClaim", "spec/devices/constraints/0/matchAttribute", "devicegroup4_id", "write domain/name"),
        ("ResourceClaim", "spec/devices/requests/0/exactly", None, "write exactly, or firstAvailable"),
        ("ResourceClaim", "spec/devices/requests/0/name", "any", "is the name of another item"),
        ("ResourceClaim", "spec/devices/config/0/opaque/driver", "", "it is required"),
        ("Pod", "spec/resourceClaims/0/resourceClaimName", "c", "write one of resourceClaimName and"),
        ("Pod", "spec/resourceClaims/0/name", "other", "the pod has no claim neurons in resourceClaims"),
        ("Pod", "spec/containers/0/image", "", "it is required"),
        ("Pod", "spec/containers/0/resources/limits", {"memory_": "1Gi"}, "did you mean memory?"),
        ("Pod", "spec/tolerations/0/effect", "NoSchedul", "write NoSchedule, PreferNoSchedule, NoExecute"),
        ("Deployment", "spec/selector/matchLabels/app", "web", "by which spec.selector finds them"),
        ("Job", "spec/template/spec/restartPolicy", "Always", "write OnFailure or Never"),
    ],
)
def test_rules_beside_the_fields_are_checked(kind: str, path: str, value: Any, text: str) -> None:
    item: Any = base(kind)
    owner = item
    *steps, last = path.split("/")
    for step in steps:
        owner = owner[int(step) if step.isdigit() else step]
    owner[last] = value
    assert (problems(item), [text in found for found in rejected(item)][:1]) == ([], [True])


def test_command_reports_fields_before_it_needs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else can be said about the pods of a Deployment whose number is a text."""
    item = base("Deployment")
    item["spec"]["replicas"] = "two"
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump(item))
    answer = questions.ask(capsys, "validate", str(file))
    assert (answer.code, 'Deployment default/train: spec.replicas: "two": write an integer' in answer.text) == (1, True)


def found_by(*items: Obj) -> list[tuple[str, bool]]:
    return [(problem.code, problem.warning) for problem in rules.Checker(snapshot.build(list(items)), (1, 37)).run()]


def with_limits(name: str, **spec: Any) -> Obj:
    made = small.pod("p", **spec)
    made["spec"]["containers"][0]["resources"] = {"limits": {name: 1}}
    return made


def test_limits_of_the_device_plugin_are_named() -> None:
    assert found_by(with_limits("aws.amazon.com/neuron")) == [("DevicePluginLimits", True)]
    own = {"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": "neuron.aws.com"}, "spec": {}}
    own["spec"] = {"extendedResourceName": "aws.amazon.com/neuron"}
    assert ("DevicePluginLimits", True) not in found_by(with_limits("aws.amazon.com/neuron"), own)


def test_scheduler_of_the_device_plugin_is_named() -> None:
    template = small.template("t")
    assert found_by(template, small.pod("p", "t", schedulerName="my-scheduler")) == [("SchedulerOfPlugin", True)]
    assert found_by(template, small.pod("p", "t", schedulerName="volcano")) == []


@pytest.mark.parametrize("in_limits", [True, False])
def test_class_with_a_typing_error_has_the_nearest_size(in_limits: bool) -> None:
    name = "conected-4.neuron.aws.com"
    if in_limits:
        item = with_limits(f"deviceclass.resource.kubernetes.io/{name}")
    else:
        item = small.template("t", deviceClassName=name)
    [problem] = rules.Checker(snapshot.build([item]), (1, 37)).run()
    assert (problem.code, "connected-4.neuron.aws.com?" in problem.text) == ("ClassUnknown", True)


def test_size_that_the_selected_type_does_not_serve_is_a_finding() -> None:
    name = "deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com"
    inf2: Any = {"nodeSelector": {"node.kubernetes.io/instance-type": "inf2.xlarge"}}
    trn2: Any = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"}}
    assert found_by(with_limits(name, **inf2)) == [("TypeCannotServe", False)]
    assert found_by(with_limits(name, **trn2)) == []


def test_template_that_no_file_defines_is_a_warning() -> None:
    assert found_by(small.pod("p", "four")) == [("TemplateUnknown", True)]
    [problem] = rules.Checker(snapshot.build([small.template("fourr"), small.pod("p", "four")]), (1, 37)).run()
    assert problem.text.endswith("did you mean fourr?")


def test_template_that_a_reservation_generates_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"instanceType": "trn2u.48xlarge", "topologySize": 4, "resourceClaimTemplate": {"name": "llm"}}
    workload = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "spec": spec}
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump_all([{**workload, "metadata": {"name": "llm"}}, small.pod("p", "llm")]))
    assert "no file defines" not in questions.ask(capsys, "validate", str(file)).text
