"""18.3. The chart's template library, rendered by helm; its policies are evaluated with the simulator's CEL engine.

tests/bed/test_template_library_on_a_real_server.py has the same rows for a real API server.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs
from tests.support.library_rows import LABEL, POLICIES, ROWS, TEAM, Row, claim, exactly, template

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/neuron-dra"
REQUIRED = ("templateLibrary.required=true", f"templateLibrary.groups={{{TEAM}}}")
NAMESPACE = {"metadata": {"name": "ml", "labels": {}}}
needs_helm = needs("helm")


@cache
def rendered(*values: str, spec: str = "") -> tuple[Obj, ...]:
    """Return the policies of the library, their bindings, and the templates."""
    words = [word for value in ("draDriver.image.repository=r", *values) for word in ("--set", value)]
    words += ["--set-json", f"templateLibrary.templates={spec}"] if spec else []
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.37.0", "--skip-tests", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    items = [item for item in fast_yaml.load_all(done.stdout) if item]
    return tuple(i for i in items if i["metadata"]["name"] in POLICIES or i["kind"] == "ResourceClaimTemplate")


def policies() -> list[Obj]:
    return [item for item in rendered(*REQUIRED) if item["kind"] == "ValidatingAdmissionPolicy"]


@needs_helm
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_only_the_teams_templates_give_devices(row: Row) -> None:
    """(18.3) The cost guardrail."""
    try:
        admit(policies(), row.item, NAMESPACE, user=row.user, groups=row.groups)
        found = ""
    except Denied as err:
        found = str(err)
    assert found.startswith(row.denied)
    assert bool(found) == bool(row.denied)


@needs_helm
def test_the_library_is_off_by_default() -> None:
    assert rendered() == ()
    assert rendered("templateLibrary=null") == ()  # --reuse-values of a release that did not have it


@needs_helm
def test_policies_reject_what_they_cannot_evaluate() -> None:
    found = {item["metadata"]["name"]: item["spec"] for item in policies()}
    assert sorted(found) == sorted(POLICIES)
    assert {spec["failurePolicy"] for spec in found.values()} == {"Fail"}
    assert all(
        rule["operations"] == ["CREATE"] for s in found.values() for rule in s["matchConstraints"]["resourceRules"]
    )
    bindings = [item for item in rendered(*REQUIRED) if item["kind"].endswith("Binding")]
    assert {(each["spec"]["policyName"], *each["spec"]["validationActions"]) for each in bindings} == {
        (name, "Deny") for name in POLICIES
    }


@needs_helm
def test_templates_are_delivered_into_the_namespaces() -> None:
    """(18.3) With the labels that the policies require."""
    devices = template(exactly("neuron.aws.com"))["spec"]["spec"]
    made = rendered(*REQUIRED, "templateLibrary.namespaces={ml,web}", spec=json.dumps({"one": devices, "two": devices}))
    found = [item for item in made if item["kind"] == "ResourceClaimTemplate"]
    places = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in found]
    assert sorted(places) == [("ml", "one"), ("ml", "two"), ("web", "one"), ("web", "two")]
    for item in found:
        assert item["spec"]["spec"] == devices
        assert item["metadata"]["labels"] == item["spec"]["metadata"]["labels"] == {LABEL: "true"}
        admit(policies(), item, NAMESPACE, user="ann", groups=[TEAM])


@needs_helm
def test_names_that_yaml_reads_as_something_else() -> None:
    devices = template(exactly("neuron.aws.com"))["spec"]["spec"]
    made = rendered(*REQUIRED, "templateLibrary.namespaces={no}", spec=json.dumps({"16": devices}))
    [item] = [item for item in made if item["kind"] == "ResourceClaimTemplate"]
    assert (item["metadata"]["namespace"], item["metadata"]["name"]) == ("no", "16")


@needs_helm
def test_the_label_is_a_value() -> None:
    label = "templateLibrary.label=example.com/owner=platform"
    found = [item for item in rendered(*REQUIRED, label) if item["kind"] == "ValidatingAdmissionPolicy"]
    item = template(exactly("neuron.aws.com"))
    item["spec"]["metadata"] = {"labels": {"example.com/owner": "platform"}}
    admit(found, item, NAMESPACE, user="ann", groups=[TEAM])
    with pytest.raises(Denied, match=r"kubectl get resourceclaimtemplates -l example\.com/owner=platform"):
        admit(found, claim(exactly("neuron.aws.com")), NAMESPACE, user="jane")
    with pytest.raises(ValueError, match="templateLibrary"):
        rendered("templateLibrary.label=novalue")


@needs_helm
def test_connected_sets_contradict_the_library() -> None:
    """Pods request sets by limits, which the library forbids."""
    with pytest.raises(ValueError, match=r"templateLibrary.required and scheduler.enabled"):
        rendered(*REQUIRED, "scheduler.enabled=true")
