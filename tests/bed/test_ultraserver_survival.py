"""Reservations outlive their objects, AWS's operator and its CRDs; pods run on through all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bed import driver
from bed.errors import BedError
from deployed import CONTROLLER, MANIFESTS, NAMESPACE, Object
from fleet import in_order, job, pods, ranks, said, slots, submit, tags, uids, wait_available, workload
from real_cluster import REPOSITORY, Namespace, TestBed, eventually

OURS = str(REPOSITORY / "deploy/crds")
OFFICIAL = str(MANIFESTS / "official-crds.yaml")
KEPT = ("workloadRef", "phase", "nodeCount", "allocatedNodes", "leaderNodeName", "ultraserverIndex", "allocatedAt")
"""What AWS's operator writes of an allocation."""


def server(bed: TestBed, name: str) -> Object:
    return bed.get("nus", name, "--namespace", NAMESPACE)


def allocations(bed: TestBed, name: str) -> list[Object]:
    found: list[Object] = server(bed, name)["status"].get("allocations", [])
    return found


def without_time(entries: list[Object]) -> list[Object]:
    """Leave out when it was reserved: the workload knows when it was Allocated first."""
    return [{key: value for key, value in entry.items() if key != "allocatedAt"} for entry in entries]


def problem(bed: TestBed, name: str) -> str:
    conditions = server(bed, name)["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Degraded"))


def patched(bed: TestBed, name: str, *words: str) -> bool:
    """Patch a NeuronUltraServer in the only version that AWS's CRD serves, as soon as that is served."""
    try:
        bed.kubectl("patch", "neuronultraservers.v1beta1.neuron.aws.com", name, *words)
    except BedError:
        return False
    return True


def waits_for_crds(place: Namespace) -> str:
    """What a workload says about the CRDs; kubectl asks for the version that AWS's CRD serves."""
    try:
        text = place.kubectl("get", "neuronultraserverworkloads.v1beta1.neuron.aws.com", "job", "-o", "json")
    except BedError:
        return ""
    reason, words = said(json.loads(text))
    return words if reason == "CustomResourcesOutdated" else ""


def stop(bed: TestBed) -> None:
    """End the controller."""
    bed.kubectl("scale", "deployment", CONTROLLER, "--namespace", NAMESPACE, "--replicas=0")
    selector = f"--selector=app={CONTROLLER}"
    eventually("no controller", lambda: not bed.get("pods", "--namespace", NAMESPACE, selector)["items"], 120)


def start(bed: TestBed) -> None:
    bed.kubectl("scale", "deployment", CONTROLLER, "--namespace", NAMESPACE, "--replicas=2")
    words = ("rollout", "status", "deployment", CONTROLLER, "--namespace", NAMESPACE, "--timeout=120s")
    bed.kubectl(*words, timeout_s=130)


@pytest.fixture
def running(fleet: TestBed, place: Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    """An UltraServer with a workload whose pods run; its name, and the pods' UIDs by node. They run on."""
    made = submit(place, workload("job", 4, 1))
    place.apply(job("job", 4, "job"))
    wait_available(place, "job")
    before = uids(pods(place, "job"))
    yield made["status"]["allocatedUltraServers"][0], before
    assert uids(pods(place, "job")) == before
    assert ranks(place, pods(place, "job")) == in_order(slots(fleet)["job"])


def test_a_deletion_waits_and_one_by_force_takes_no_reservation(
    fleet: TestBed, place: Namespace, running: tuple[str, dict[str, str]]
) -> None:
    """13.3."""
    name, nodes = running
    before = allocations(fleet, name)
    first = server(fleet, name)["metadata"]["uid"]
    fleet.kubectl("delete", "nus", name, "--namespace", NAMESPACE, "--wait=false")
    eventually("it says for whom it waits", lambda: problem(fleet, name) == "DeletionWaits", 30)
    assert server(fleet, name)["metadata"]["uid"] == first

    patch = json.dumps({"metadata": {"finalizers": None}})
    fleet.kubectl("patch", "nus", name, "--namespace", NAMESPACE, "--type=merge", "--patch", patch)

    def made_again() -> bool:
        found = fleet.get("nus", "--namespace", NAMESPACE)["items"]
        again = [each for each in found if each["metadata"]["name"] == name and each["metadata"]["uid"] != first]
        return bool(again and again[0].get("status", {}).get("allocations"))

    eventually("the reservation is made again", made_again, 60)
    assert without_time(allocations(fleet, name)) == without_time(before)
    assert tags(fleet) == dict.fromkeys(nodes, "job")
    assert server(fleet, name)["metadata"]["finalizers"] == ["neuron.aws.com/ultraserver-reserved"]


def test_reservations_of_awss_operator_are_taken_over_while_their_pods_run(
    fleet: TestBed, place: Namespace, running: tuple[str, dict[str, str]]
) -> None:
    """13.3. Its CRDs and its entries are there; then our CRDs come, and our controller."""
    name, nodes = running
    before = allocations(fleet, name)
    stop(fleet)
    try:
        fleet.kubectl("replace", "-f", OFFICIAL)
        reduced = [{key: entry[key] for key in KEPT} for entry in before]
        patch = json.dumps({"status": {"allocations": reduced}})
        words = ("--namespace", NAMESPACE, "--subresource=status", "--type=merge", "--patch", patch)
        eventually("the entry in the form of AWS's operator", lambda: patched(fleet, name, *words), 60)
    finally:
        fleet.kubectl("apply", "-f", OURS)
        start(fleet)
    eventually("the entry has its ids again", lambda: "allocationId" in allocations(fleet, name)[0], 60)
    assert allocations(fleet, name) == before
    assert tags(fleet) == dict.fromkeys(nodes, "job")


def test_with_awss_crds_nothing_is_reserved_until_ours_are_there(fleet: TestBed, place: Namespace) -> None:
    """13.5."""
    fleet.kubectl("replace", "-f", OFFICIAL)
    try:
        place.apply(workload("job", 4, 1) | {"apiVersion": "neuron.aws.com/v1beta1"})
        words = eventually("the workload says why it waits", lambda: waits_for_crds(place), 120)
        assert "apply the CRDs of this release" in words
        assert tags(fleet) == {}
    finally:
        fleet.kubectl("apply", "-f", OURS)
    eventually("it goes on by itself", lambda: said(place.get("nusw", "job"))[0] == "Allocated", 120)


def test_the_chart_takes_over_the_crds_of_an_earlier_one_and_keeps_them(fleet: TestBed) -> None:
    """13.5. Those that an earlier chart put there belong to no release."""
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
