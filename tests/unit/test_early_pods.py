"""Which pods are woken when their template appears, and with what. Issue 35."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.jobs.early_pods import CONDITION, touched, waits_for
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit
from neuron_dra.planner.observed.model import Template
from tests.support import fast_yaml

TEMPLATE = Template("ml", "rct", "uid-t", owner=None, deleting=False)
NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
OWN = {
    "type": CONDITION,
    "status": "True",
    "reason": "TemplateCreated",
    "message": "ResourceClaimTemplate rct exists (uid-t)",
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}
OTHER = {"type": "PodScheduled", "status": "False"}


def pod(**changes: Any) -> Obj:
    made: Obj = {
        "metadata": {"name": "p", "namespace": "ml", "resourceVersion": "7"},
        "spec": {
            "resourceClaims": [
                {"name": "neuron", "resourceClaimTemplateName": "rct"},
                {"name": "efa", "resourceClaimTemplateName": "efa"},
            ]
        },
        "status": {"conditions": [OTHER], "resourceClaimStatuses": [{"name": "efa", "resourceClaimName": "x"}]},
    }
    for path, value in changes.items():
        part, name = path.split("__")
        made[part][name] = value
    return made


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"status__resourceClaimStatuses": None}, True),
        ({"status__resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "y"}]}, False),
        ({"spec__resourceClaims": [{"name": "efa", "resourceClaimTemplateName": "efa"}]}, False),
        ({"spec__resourceClaims": None}, False),
        ({"metadata__deletionTimestamp": "2026-03-01T12:00:00Z"}, False),
        ({"status__conditions": [OTHER, OWN]}, False),
        ({"status__conditions": [{**OWN, "message": "ResourceClaimTemplate rct exists (earlier)"}]}, True),
    ],
)
def test_pods_without_a_claim_are_woken_once_for_each_template(changes: dict[str, Any], waits: bool) -> None:
    assert waits_for(pod(**changes), TEMPLATE) == waits


def test_only_the_condition_is_written_and_only_on_the_pod_that_was_read() -> None:
    earlier = {**OWN, "message": "ResourceClaimTemplate rct exists (earlier)"}
    assert touched(pod(status__conditions=[earlier, OTHER]), TEMPLATE, NOW) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"conditions": [OTHER, OWN]},
    }


CONTROLLER = "system:serviceaccount:neuron-dra-driver:neuron-ultraserver-controller"
MANIFEST = Path(__file__).resolve().parents[2] / "deploy/manifests/ultraserver/70-reservation-policies.yaml"
POLICY = [
    each
    for each in fast_yaml.load_all(MANIFEST.read_text())
    if (each["kind"], each["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "neuron-dra-driver-controller-pods")
]


@pytest.mark.parametrize(
    ("user", "change", "denied"),
    [
        (CONTROLLER, {"conditions": [OTHER, OWN]}, False),
        (CONTROLLER, {"conditions": [OWN]}, True),
        (CONTROLLER, {"conditions": [{**OTHER, "status": "True"}, OWN]}, True),
        (CONTROLLER, {"conditions": [OTHER, OWN], "phase": "Failed"}, True),
        (CONTROLLER, {"conditions": [OTHER, OWN], "resourceClaimStatuses": []}, True),
        (CONTROLLER, {"conditions": [OTHER], "new": "field"}, True),
        ("somebody", {"conditions": []}, False),
    ],
)
def test_policy_lets_the_controller_write_the_condition_only(user: str, change: Obj, denied: bool) -> None:
    namespace = {"metadata": {"name": "ml"}}
    before = {"kind": "Pod", **pod()}
    after = {**before, "status": {**before["status"], **change}}
    with pytest.raises(Denied) if denied else contextlib.nullcontext():
        admit(POLICY, after, namespace, old=before, user=user)


def test_policy_keeps_the_controller_from_labels() -> None:
    before = {"kind": "Pod", **pod()}
    after = {**before, "metadata": {**before["metadata"], "labels": {"app": "x"}}}
    with pytest.raises(Denied):
        admit(POLICY, after, {"metadata": {"name": "ml"}}, old=before, user=CONTROLLER)


def test_pod_of_two_templates_is_woken_once_for_each() -> None:
    """4.02: each condition replaced the other's, and both pods were written again and again."""
    other = replace(TEMPLATE, name="other", uid="uid-other")
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("rct", "other")]
    early = pod()
    early["spec"] = {**early["spec"], "resourceClaims": claims}
    assert [waits_for(early, template) for template in (TEMPLATE, other)] == [True, True]
    for template in (TEMPLATE, other):
        early["status"] = {**early["status"], **touched(early, template, NOW)["status"]}
    assert [waits_for(early, template) for template in (TEMPLATE, other)] == [False, False]
