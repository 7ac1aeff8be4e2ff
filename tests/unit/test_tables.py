"""The tables in which the embedded API server answers `kubectl get`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_dra.emulation.embedded_api import columns, tables
from neuron_dra.emulation.embedded_api.columns import OF_KIND, Column
from tests.support import fast_yaml

CRDS = Path(__file__).resolve().parents[2] / "deploy/crds"
NOW = 1_767_610_800.0  # 2026-01-05T11:00:00Z
MADE = "2026-01-05T10:59:30Z"


def cells(plural: str, item: dict[str, Any]) -> list[Any]:
    meta = {"name": "a", "creationTimestamp": MADE, **item.get("metadata", {})}
    shown = [each for each in OF_KIND[plural] if not each.wide]
    return tables.cells(shown, {"spec": {}, **item, "metadata": meta}, NOW)


def containers(*states: dict[str, Any], of: str = "containerStatuses") -> dict[str, Any]:
    statuses = [{"name": f"c{n}", "restartCount": 1, **state} for n, state in enumerate(states)]
    return {"spec": {"containers": [{}] * len(states)}, "status": {"phase": "Running", of: statuses}}


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (-2, "<invalid>"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86_400, "8d"),
        (729 * 86_400, "729d"),
        (730 * 86_400, "2y"),
        (735 * 86_400, "2y5d"),
        (2925 * 86_400, "8y"),
    ],
)
def test_an_age_has_at_most_two_units(ago: int, text: str) -> None:
    assert tables.age(MADE, NOW - 30 + ago) == text


def test_an_absent_time_is_unknown() -> None:
    assert tables.age(None, NOW) == "<unknown>"


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Pending", "conditions": [{"reason": "SchedulingGated"}]}}, "SchedulingGated"),
        ({"metadata": {"deletionTimestamp": MADE}, "status": {"phase": "Running"}}, "Terminating"),
        (containers({"ready": True, "state": {"running": {}}}), "Running"),
        (containers({"state": {"waiting": {"reason": "ContainerCreating"}}}), "ContainerCreating"),
        (containers({"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}), "OOMKilled"),
        (
            containers({"state": {"waiting": {"reason": "ErrImagePull"}}}, of="initContainerStatuses"),
            "Init:ErrImagePull",
        ),
        (containers({"state": {"running": {}}}, {}, of="initContainerStatuses"), "Init:0/2"),
        (containers({"state": {"terminated": {"exitCode": 3}}}, of="initContainerStatuses"), "Init:ExitCode:3"),
        (containers({"state": {"terminated": {"exitCode": 0}}}, of="initContainerStatuses"), "Running"),
    ],
)
def test_a_pod_shows_what_it_waits_for(pod: dict[str, Any], status: str) -> None:
    assert cells("pods", pod)[2] == status


def test_a_pod_shows_ready_containers_and_restarts() -> None:
    pod = containers({"ready": True, "state": {"running": {}}}, {"ready": False, "state": {"running": {}}})
    assert cells("pods", pod) == ["a", "1/2", "Running", 2, "30s"]


@pytest.mark.parametrize(
    ("ready", "spec", "status"),
    [
        ("True", {}, "Ready"),
        ("False", {}, "NotReady"),
        ("Unknown", {"unschedulable": True}, "NotReady,SchedulingDisabled"),
        (None, {}, "Unknown"),
    ],
)
def test_a_node_shows_readiness_and_cordon(ready: str | None, spec: dict[str, Any], status: str) -> None:
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    labels = {"node-role.kubernetes.io/worker": ""}
    node = {"metadata": {"labels": labels}, "spec": spec, "status": {"conditions": conditions}}
    assert cells("nodes", node) == ["a", status, "worker", "30s", None]


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        ({}, "pending"),
        ({"status": {"allocation": {"devices": {}}}}, "allocated"),
        ({"status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "p"}]}}, "allocated,reserved"),
        ({"metadata": {"deletionTimestamp": MADE}, "status": {"allocation": {"devices": {}}}}, "deleted,allocated"),
    ],
)
def test_a_claim_shows_its_state(claim: dict[str, Any], state: str) -> None:
    assert cells("resourceclaims.resource.k8s.io", claim)[1] == state


@pytest.mark.parametrize(
    ("plural", "have"),
    [("neuronultraservers", columns.ULTRASERVER), ("neuronultraserverworkloads", columns.WORKLOAD)],
)
def test_custom_kinds_have_the_columns_of_their_crd(plural: str, have: tuple[Column, ...]) -> None:
    crd = fast_yaml.load((CRDS / f"neuron.aws.com_{plural}.yaml").read_text())
    wanted = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    expected = [("Name", "string", 0), *((c["name"], c["type"], c.get("priority", 0)) for c in wanted)]
    assert [(each.name, each.type, int(each.wide)) for each in have] == expected


def test_lists_of_a_custom_kind_are_printed_as_json() -> None:
    status = {"state": "Ready", "supportedSizes": [1, 2, 4], "allocations": [{"workloadRef": "ml/a"}]}
    server = {"metadata": {"name": "u", "creationTimestamp": MADE}, "spec": {"instanceType": "t"}, "status": status}
    shown = dict(
        zip([c.name for c in columns.ULTRASERVER], tables.cells(columns.ULTRASERVER, server, NOW), strict=True)
    )
    assert (shown["Sizes"], shown["Workloads"], shown["Reason"], shown["Age"]) == ("[1,2,4]", "ml/a", None, "30s")


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", True),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json;as=Table;g=meta.k8s.io;v=v1", True),
        ("application/json", False),
        ("*/*", False),
        ("", False),
        ("application/json,application/json;as=Table;v=v1;g=meta.k8s.io", False),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", False),
    ],
)
def test_the_first_type_that_is_served_decides(accept: str, is_wanted: bool) -> None:
    assert tables.wanted(accept) is is_wanted
