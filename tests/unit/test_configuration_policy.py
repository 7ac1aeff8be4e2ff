"""18.3. The chart's policy for configuration, rendered by helm and evaluated with the simulator's CEL engine.

tests/bed/test_configuration_on_a_real_server.py has the same rows for a real API server.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hack.generate import render
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules, specs
from neuron_dra.ask.world import refusals
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit
from neuron_dra.errors import ClaimError
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs
from tests.support.configurations import ROWS, STRICT, V1, Row, claim, entry, neuron, template

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/neuron-dra"
NAME = "neuron-dra-driver-configuration"
NAMESPACE = {"metadata": {"name": "ml", "labels": {}}}
CLAIM_CONTROLLERS = ("system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager")
needs_helm = needs("helm")


@cache
def rendered(*values: str) -> tuple[Obj, ...]:
    """Return the policy and its binding, as the chart renders them."""
    words = [word for value in ("draDriver.image.repository=r", *values) for word in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.34.0", *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(item for item in fast_yaml.load_all(text) if item and item["metadata"]["name"] == NAME)


def reported(item: Obj, *, old: Obj | None = None, user: str = "jane") -> str:
    """Return the policy's message for an object; an empty string if there is none."""
    try:
        admit([rendered()[0]], item, NAMESPACE, old=old, user=user)
    except Denied as err:
        return str(err)
    return ""


def rejected(*entries: Obj) -> str:
    """Return why prepare would reject this configuration, or an empty string."""
    try:
        refusals.decoded(entries)
    except ClaimError as err:
        return str(err)
    return ""


def comparable(message: str) -> str:
    """Return a message of prepare as the policy prints it: all valid names, and no content of lists and objects."""
    for first, shown in (("\\[", "[...]"), ("{", "{...}")):
        message = re.sub(f'((?:apiVersion|kind|" is) ){first}.*?(: input| is not)', rf"\1{shown}\2", message)
    fields = {"NeuronConfig": "logicalNeuronCore", "UltraServerConfig": "ultraserverMode, workloadId, workloadUid"}
    for kind, listed in fields.items():
        for field in listed.split(", "):
            message = message.replace(f', did you mean "{field}"?', f"; {kind} has only {listed}")
    return re.sub(', did you mean "(Neuron|UltraServer)Config"[?]', "; use NeuronConfig or UltraServerConfig", message)


@needs_helm
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("make", [claim, template])
def test_the_policy_reports_what_prepare_rejects(row: Row, make: Any) -> None:
    """(18.3) Rows, in claims and in templates."""
    assert reported(make(*row.entries)) == row.message
    assert comparable(rejected(*row.entries)) == row.message


def documented() -> Iterator[tuple[str, Obj]]:
    """Yield every claim and template in the examples and the pages."""
    texts = [(path, path.read_text()) for path in sorted((ROOT / "deploy/examples").rglob("*.yaml"))]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        texts += [(path, block) for block in re.findall("```yaml\n(.*?)```", path.read_text(), re.DOTALL)]
    for path, text in texts:
        for item in fast_yaml.load_all(text):
            if isinstance(item, dict) and item.get("kind") in ("ResourceClaim", "ResourceClaimTemplate"):
                yield f"{path.name}: {item['metadata']['name']}", item


DOCUMENTED = dict(documented())


@needs_helm
@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_claims_pass(name: str) -> None:
    """(18.3) AWS's own templates among them."""
    assert reported(DOCUMENTED[name]) == ""


def test_some_documented_claims_have_configuration() -> None:
    assert sum(names.DRIVER in json.dumps(each) and "opaque" in json.dumps(each) for each in DOCUMENTED.values()) >= 6


@needs_helm
def test_configuration_of_other_drivers_is_not_read() -> None:
    """(18.3) Nor claims without configuration: the condition ends before anything is evaluated."""
    policy = rendered()[0]["spec"]
    assert policy["failurePolicy"] == "Ignore"
    for parameters in ({"a": list(range(50))}, {"apiVersion": V1, "kind": "NeuronConfig"}, {"kind": 7}):
        assert reported(claim(entry(parameters, "gpu.example.com"))) == ""
    strange = {"metadata": {"name": "c"}, "kind": "ResourceClaim", "spec": {}}
    assert reported(strange) == ""
    assert reported({**strange, "spec": {"devices": {"config": [{"requests": []}]}}}) == ""


@needs_helm
def test_updates_are_not_checked() -> None:
    """(18.3) Status, finalizers and garbage collection of a claim that was there before the policy."""
    wrong = claim(entry(neuron(logicalNeuronCore=3)))
    assert reported(wrong)
    assert reported({**wrong, "metadata": {"name": "c", "finalizers": ["x"]}}, old=wrong) == ""
    [rule] = rendered()[0]["spec"]["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE"]
    assert rule["resources"] == ["resourceclaims", "resourceclaimtemplates"]


@needs_helm
@pytest.mark.parametrize("user", CLAIM_CONTROLLERS)
def test_claims_made_for_pods_are_not_checked(user: str) -> None:
    """(18.3) A template that was there before the policy gets the driver's message on the pod, as before."""
    assert reported(claim(entry(neuron(logicalNeuronCore=3))), user=user) == ""


@needs_helm
def test_a_value_selects_warning_or_rejection() -> None:
    assert rendered()[1]["spec"] == {"policyName": NAME, "validationActions": ["Warn"]}
    assert rendered("draDriver.configurationPolicy.action=Deny")[1]["spec"]["validationActions"] == ["Deny"]
    assert rendered("draDriver.configurationPolicy.enabled=false") == ()
    assert rendered("draDriver.configurationPolicy=null") == ()  # --reuse-values of a release that did not have it
    with pytest.raises(subprocess.CalledProcessError):
        rendered("draDriver.configurationPolicy.action=Audit")


def test_the_table_in_the_chart_is_the_decoders() -> None:
    """(18.3) One table of rules, that of api/config.py."""
    assert render.CONFIGURATION.read_text() == render.configuration(), "run `make manifests`"


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0.0, 1.0, 2.0, 4.0, 1.5, -0.25]),
    st.sampled_from(["", "1", "2", "job", "x" * 58, "x" * 59, "x" * 63, "x" * 64, "\u00e9" * 63]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.just("a"), scalars, max_size=1))
field_names = ("logicalNeuronCore", "ultraserverMode", "workloadId", "workloadUid")
fields = st.dictionaries(st.sampled_from([*field_names, "other", "LogicalNeuronCore"]), values, max_size=4)
good = {"logicalNeuronCore": st.sampled_from([1, 2]), "ultraserverMode": st.sampled_from([1, 2, 4])}
parameters = st.builds(
    lambda head, given, more: {**head, **given, **more},
    st.fixed_dictionaries(
        {},
        optional={
            "apiVersion": st.one_of(st.sampled_from([V1, V1, f"{names.DRIVER}/v1beta1", "v1"]), values),
            "kind": st.one_of(st.sampled_from(["NeuronConfig", "UltraServerConfig", "NeuronConfigs"]), values),
        },
    ),
    st.fixed_dictionaries({}, optional=good),
    st.one_of(st.just({}), fields),
)
entries = st.lists(st.builds(entry, parameters, st.sampled_from([names.DRIVER] * 3 + ["gpu.example.com"])), max_size=3)


@needs_helm
@settings(max_examples=300, deadline=None)
@given(entries)
@example([entry(neuron(logicalNeuronCore=1.0))])
@example([entry({"apiVersion": ["a"], "kind": {"a": 1}})])
def test_policy_prepare_and_validate_agree(given_entries: list[Obj]) -> None:
    """(18.3) For any configuration the policy's verdict is that of prepare and of `neuron-dra validate`."""
    item = template(*given_entries)
    found = reported(item)
    expected = rejected(*given_entries)
    assert bool(found) == bool(expected), (found, expected)
    checker = rules.Checker(snapshot.build([item]), None)
    problems = list(rules.configuration(checker, specs.ClaimSpec.of("t", item["spec"]["spec"])))
    assert [each.text for each in problems][:1] == ([expected] if expected else [])
    texts = [text.removeprefix(STRICT).split("; ") for text in (found, comparable(expected))]
    assert sorted(texts[0]) == sorted(texts[1])  # unknown fields come in any order
