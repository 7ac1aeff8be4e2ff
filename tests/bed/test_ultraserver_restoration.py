"""Reservations survive their objects, and CRDs their chart; pods keep running."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.bed import driver
from hack.bed.errors import BedError
from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import NAMESPACE
from tests.bed.fleet import in_order, job, pods, ranks, slots, submit, tags, uids, wait_available, workload


def server(bed: TestBed, name: str) -> Obj:
    return bed.get("nus", name, "--namespace", NAMESPACE)


def allocations(bed: TestBed, name: str) -> list[Obj]:
    found: list[Obj] = server(bed, name)["status"].get("allocations", [])
    return found


def without_time(entries: list[Obj]) -> list[Obj]:
    """Return the entries without allocatedAt, which differs after a restoration."""
    return [{key: value for key, value in entry.items() if key != "allocatedAt"} for entry in entries]


def problem(bed: TestBed, name: str) -> str:
    conditions = server(bed, name)["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Degraded"))


@pytest.fixture
def running(fleet: TestBed, place: Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    """An UltraServer with a workload and running pods: its name, and the pods' UIDs by node. They run on."""
    made = submit(place, workload("job", 4, 1))
    place.apply(job("job", 4, "job"))
    wait_available(place, "job")
    before = uids(pods(place, "job"))
    yield made["status"]["allocatedUltraServers"][0], before
    assert uids(pods(place, "job")) == before
    assert ranks(place, pods(place, "job")) == in_order(slots(fleet)["job"])


def test_deletion_keeps_reservations_of_running_pods(
    fleet: TestBed, place: Namespace, running: tuple[str, dict[str, str]]
) -> None:
    """13.3."""
    name, nodes = running
    before = allocations(fleet, name)
    first = server(fleet, name)["metadata"]["uid"]
    fleet.kubectl("delete", "nus", name, "--namespace", NAMESPACE, "--wait=false")
    eventually("its status names the workload", lambda: problem(fleet, name) == "DeletionWaits", 30)
    assert server(fleet, name)["metadata"]["uid"] == first

    patch = json.dumps({"metadata": {"finalizers": None}})
    fleet.kubectl("patch", "nus", name, "--namespace", NAMESPACE, "--type=merge", "--patch", patch)

    def made_again() -> bool:
        found = fleet.get("nus", "--namespace", NAMESPACE)["items"]
        again = [each for each in found if each["metadata"]["name"] == name and each["metadata"]["uid"] != first]
        return bool(again and again[0].get("status", {}).get("allocations"))

    eventually("the reservation is restored", made_again, 60)
    assert without_time(allocations(fleet, name)) == without_time(before)
    assert tags(fleet) == dict.fromkeys(nodes, "job")
    assert server(fleet, name)["metadata"]["finalizers"] == ["neuron.aws.com/ultraserver-reserved"]


def test_chart_adopts_and_keeps_existing_crds(fleet: TestBed) -> None:
    """13.5. CRDs of an earlier chart belong to no release."""
    chart = str(REPOSITORY / "deploy/helm/neuron-dra")
    words = ("upgrade", "neuron-dra", chart, "--namespace", NAMESPACE, "--reuse-values", "--set")
    enabled = "ultraserverOperator.crds.enabled=true"
    before = fleet.get("crd", "neuronultraservers.neuron.aws.com")["metadata"]
    if "meta.helm.sh/release-name" in before.get("annotations", {}):
        patch = json.dumps({"metadata": {"annotations": dict.fromkeys(before["annotations"]), "labels": None}})
        for kind in ("neuronultraservers", "neuronultraserverworkloads"):
            fleet.kubectl("patch", "crd", f"{kind}.neuron.aws.com", "--type=merge", "--patch", patch)
    with pytest.raises(BedError, match="invalid ownership metadata"):
        driver.helm(fleet.parts, *words, enabled)
    driver.helm(fleet.parts, *words, enabled, "--take-ownership")
    after = fleet.get("crd", "neuronultraservers.neuron.aws.com")["metadata"]
    assert after["uid"] == before["uid"]
    assert after["annotations"]["meta.helm.sh/release-name"] == "neuron-dra"
    driver.helm(fleet.parts, *words, "ultraserverOperator.crds.enabled=false")
    assert fleet.get("crd", "neuronultraservers.neuron.aws.com")["metadata"]["uid"] == before["uid"]
