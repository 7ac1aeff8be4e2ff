"""4.02: who may change what in the namespace of tests, and how: the chart's policy, for every verb and subresource."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.policies import evaluate

CHART: Final = Path(__file__).resolve().parents[2] / "deploy/helm/neuron-dra/templates/qualification.yaml"
CONTROLLER: Final = "system:serviceaccount:neuron-dra-driver:neuron-ultraserver-controller"
USER, KUBELET, SCHEDULER = "jane", "system:node:n0", "system:kube-scheduler"
COLLECTOR: Final = "system:serviceaccount:kube-system:generic-garbage-collector"
EVERYBODY: Final = (USER, KUBELET, SCHEDULER, COLLECTOR, CONTROLLER)


def policy() -> dict[str, Any]:
    """Return the spec of the policy, with the chart's values."""
    text = CHART.read_text().split('"neuron-dra-driver-qualification") }}\n', 1)[1].split("{{- include", 1)[0]
    text = text.replace("{{ $controller }}", CONTROLLER).replace(
        "{{ $exempt }}", "request.userInfo.username == 'rescue'"
    )
    found: dict[str, Any] = yaml.safe_load(text)["spec"]
    return found


def may(user: str, operation: str, resource: str, subresource: str = "") -> bool:
    """Return True unless the policy rejects the request."""
    spec = policy()
    path = f"{resource}/{subresource}" if subresource else resource
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(operation in rule["operations"] and path in rule["resources"] for rule in rules):
        return True
    request = {"operation": operation, "namespace": "neuron-qualification", "userInfo": {"username": user}}
    request |= {"resource": {"resource": resource}, "subResource": subresource}
    pod = {"spec": {"automountServiceAccountToken": False}}
    return all(evaluate(rule["expression"], {"request": request, "object": pod}) for rule in spec["validations"])


@pytest.mark.parametrize(
    ("operation", "path", "allowed"),
    [
        ("CREATE", "pods", {CONTROLLER}),
        ("UPDATE", "pods", {CONTROLLER, SCHEDULER, COLLECTOR}),
        ("UPDATE", "pods/status", {CONTROLLER, SCHEDULER, COLLECTOR, KUBELET}),
        ("UPDATE", "pods/ephemeralcontainers", {CONTROLLER}),
        ("UPDATE", "pods/resize", {CONTROLLER}),
        ("CONNECT", "pods/exec", {CONTROLLER}),
        ("CONNECT", "pods/attach", {CONTROLLER}),
        ("CONNECT", "pods/portforward", {CONTROLLER}),
        ("CONNECT", "pods/proxy", {CONTROLLER}),
        ("CREATE", "neuronultraserverworkloads", {CONTROLLER}),
        ("UPDATE", "neuronultraserverworkloads", {CONTROLLER}),
    ],
)
def test_only_who_runs_a_test_changes_it(operation: str, path: str, allowed: set[str]) -> None:
    resource, _, subresource = path.partition("/")
    assert {user for user in EVERYBODY if may(user, operation, resource, subresource)} == allowed


def test_rescue_may_change_everything() -> None:
    assert may("rescue", "UPDATE", "pods")


def test_deletion_is_not_restricted() -> None:
    """The control: an eviction is a deletion, and a drained node must not wait for this policy."""
    assert may(USER, "DELETE", "pods")
