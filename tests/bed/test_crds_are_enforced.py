"""The real API server accepts the CRDs, and rejects invalid workloads with a helpful message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.bed.errors import BedError
from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import AS_CONTROLLER, CONTROLLER, NAMESPACE
from tests.support.invalid_workloads import JOB, REJECTED, changed


@pytest.fixture(scope="module")
def without_controller(running_bed: TestBed) -> Iterator[None]:
    """No controller runs: it would overwrite the states that these tests write."""
    deployment = ("deployment", CONTROLLER, "--namespace", NAMESPACE)
    found = running_bed.kubectl("get", *deployment, "--ignore-not-found", "-o", "name")
    if not found:
        yield
        return
    running_bed.kubectl("scale", *deployment, "--replicas=0")
    pods = ("pods", "--namespace", NAMESPACE, f"--selector=app={CONTROLLER}")
    eventually("no controller", lambda: not running_bed.get(*pods)["items"], 120)
    yield
    running_bed.kubectl("scale", *deployment, "--replicas=2")
    running_bed.kubectl("rollout", "status", *deployment, "--timeout=300s", timeout_s=310)


@pytest.fixture
def kinds(bed: TestBed, without_controller: None) -> TestBed:
    """The test bed with our custom resources."""
    bed.kubectl("apply", "-f", str(REPOSITORY / "deploy" / "crds"))
    eventually("the custom resources are served", lambda: served(bed), 60)
    return bed


def served(bed: TestBed) -> bool:
    try:
        bed.kubectl("get", "nus,nusw", "-A")
    except BedError:
        return False
    return True


@pytest.fixture
def place(kinds: TestBed, namespace: Namespace) -> Iterator[Namespace]:
    """A namespace; its workloads are deleted first, including those with a controller's finalizer."""
    yield namespace
    namespace.kubectl("delete", "nusw", "--all", "--timeout=60s")


def apply(place: Namespace, workload: Obj) -> None:
    place.apply(workload)


def stored(place: Namespace, version: str) -> Obj:
    resource = f"neuronultraserverworkloads.{version}.neuron.aws.com"
    return place.get(resource, "my-training-job")


@pytest.mark.parametrize(("changes", "message"), REJECTED, ids=[next(iter(changes)) for changes, _ in REJECTED])
def test_crd_rejects_invalid_workload(place: Namespace, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BedError) as refusal:
        apply(place, changed(**changes))
    assert message in str(refusal.value)


@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll", "MigrateAffected", "ReplaceAffected"])
def test_all_four_strategies_are_accepted(place: Namespace, strategy: str) -> None:
    apply(place, changed(spec__allocationPolicy__failureStrategy=strategy))
    assert stored(place, "v1")["spec"]["allocationPolicy"] == {"failureStrategy": strategy}


def test_versions_and_defaults_round_trip(place: Namespace) -> None:
    apply(place, changed(apiVersion="neuron.aws.com/v1"))
    old, new = stored(place, "v1beta1"), stored(place, "v1")
    assert old["spec"] == new["spec"]
    assert new["spec"]["config"] == {"logicalNeuronCore": 2}


LOCKED: list[tuple[dict[str, Any], str]] = [
    ({"spec__instanceType": "trn2u.48xlarge"}, "spec.instanceType cannot be changed while the workload is Allocated"),
    ({"spec__topologySize": 2}, "spec.topologySize cannot be changed while the workload is Allocated"),
    ({"spec__config__logicalNeuronCore": 1}, "spec.config.logicalNeuronCore cannot be changed"),
    ({"spec__resourceClaimTemplate__name": "another"}, "spec.resourceClaimTemplate.name cannot be changed"),
    ({"spec__resourceClaimTemplate": {}}, "spec.resourceClaimTemplate.name cannot be changed"),
]


@pytest.mark.parametrize(("changes", "message"), LOCKED, ids=[str(changes) for changes, _ in LOCKED])
def test_reserved_fields_are_immutable(place: Namespace, changes: dict[str, Any], message: str) -> None:
    apply(place, JOB)
    set_state(place, "Allocated")
    with pytest.raises(BedError) as refusal:
        apply(place, changed(**changes))
    assert message in str(refusal.value)
    assert "delete the workload and create it again" in str(refusal.value)


def test_count_and_strategy_are_mutable(place: Namespace) -> None:
    apply(place, JOB)
    set_state(place, "Allocated")
    apply(place, changed(spec__serverCount=5, spec__allocationPolicy__failureStrategy="RestartAll"))
    assert stored(place, "v1")["spec"]["serverCount"] == 5


def test_pending_workload_is_mutable(place: Namespace) -> None:
    apply(place, JOB)
    set_state(place, "Pending")
    apply(place, changed(spec__instanceType="trn2u.48xlarge", spec__topologySize=2))
    assert stored(place, "v1")["spec"]["topologySize"] == 2


def set_state(place: Namespace, state: str) -> None:
    """Write the state as a controller does."""
    patch = json.dumps({"status": {"state": state}})
    words = ("patch", "nusw", "my-training-job", "--subresource=status", "--type=merge", "-p", patch)
    place.kubectl(*words, *AS_CONTROLLER)
