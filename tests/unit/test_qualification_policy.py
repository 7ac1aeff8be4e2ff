"""4.02: who may change what in the namespace of tests, and how: the chart's policy, for every verb and subresource."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import evaluate
from tests.bed import forged_writes
from tests.bed.forged_writes import Row

CHART: Final = Path(__file__).resolve().parents[2] / "deploy/helm/neuron-dra/templates/qualification.yaml"
CONTROLLER: Final = "system:serviceaccount:neuron-dra-driver:neuron-ultraserver-controller"
USER, KUBELET, SCHEDULER = "jane", "system:node:n0", "system:kube-scheduler"
COLLECTOR: Final = "system:serviceaccount:kube-system:generic-garbage-collector"
EVERYBODY: Final = (USER, KUBELET, SCHEDULER, COLLECTOR, CONTROLLER)


def policy() -> dict[str, Any]:
    """Return the spec of the policy, with the chart's values."""
    text = CHART.read_text().split('"neuron-dra-driver-qualification") }}\n', 1)[1].split("{{- include", 1)[0]
    text = text.replace("{{ $controller }}", CONTROLLER).replace(
        "{{ $exempt }}", "request.userInfo.username == 'forged-rescue'"
    )
    found: dict[str, Any] = yaml.safe_load(text)["spec"]
    return found


def may(user: str, operation: str, resource: str, subresource: str = "", item: Obj | None = None) -> bool:
    """Return True unless the policy rejects the request. `item` is the object as it would be stored."""
    spec = policy()
    path = f"{resource}/{subresource}" if subresource else resource
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(operation in rule["operations"] and path in rule["resources"] for rule in rules):
        return True
    request = {"operation": operation, "namespace": "neuron-qualification", "userInfo": {"username": user}}
    request |= {"resource": {"resource": resource}, "subResource": subresource}
    inputs = {"request": request, "object": item or {"spec": {"automountServiceAccountToken": False}}}
    return all(evaluate(rule["expression"], inputs) for rule in spec["validations"])


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
    assert may("forged-rescue", "UPDATE", "pods")


def test_deletion_is_not_restricted() -> None:
    """The control: an eviction is a deletion, and a drained node must not wait for this policy."""
    assert may(USER, "DELETE", "pods")


OPERATIONS: Final = {"POST": "CREATE", "PATCH": "UPDATE", "PUT": "UPDATE", "DELETE": "DELETE"}
SESSIONS: Final = ("exec", "attach", "portforward", "proxy")


def rows() -> list[Row]:
    """Return the attempts on a real API server that RBAC allows, in the namespace of tests, but by other policies."""
    places = (forged_writes.TEST_PODS, forged_writes.TEST_WORKLOADS)
    ends = ("", forged_writes.TESTS)
    return [row for row in forged_writes.ROWS if row.path.startswith(places) and row.ends in ends]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.who.name} {row.verb} {row.path.rpartition('/')[2]}")
def test_attempts_of_the_table_end_as_it_says(row: Row) -> None:
    """`tests/bed/forged_writes.py` has them for a real API server."""
    resource, *name = row.path.partition("/namespaces/neuron-qualification/")[2].split("/")
    subresource = name[1] if len(name) > 1 else ""
    operation = "CONNECT" if subresource in SESSIONS else OPERATIONS[row.verb]
    item = row.body if operation == "CREATE" and not subresource else None
    assert may(row.who.name, operation, resource, subresource, item) == (row.ends == "")


def test_every_operation_of_the_policy_is_attempted() -> None:
    """And each with a user whom the policy rejects."""
    attempted = set()
    for row in rows():
        resource, *name = row.path.partition("/namespaces/neuron-qualification/")[2].split("/")
        path = "/".join([resource, *name[1:]])
        is_session = name[1:] and name[1] in SESSIONS
        if row.ends:
            attempted.add(("CONNECT" if is_session else OPERATIONS[row.verb], path))
    covered = set()
    for rule in policy()["matchConstraints"]["resourceRules"]:
        covered |= {(operation, path) for operation in rule["operations"] for path in rule["resources"]}
    assert attempted == covered
