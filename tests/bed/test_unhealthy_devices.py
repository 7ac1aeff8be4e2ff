"""An unhealthy device on a real cluster: new pods do not get it, pods that have it show it, and it returns when
repaired.

API servers up to 1.35 drop taints and their kubelets report no device health; there unhealthy devices leave the slice.
"""

from __future__ import annotations

from typing import Any

import pytest

from hack.bed.deployed import neurons, pod, prepared, template
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import all_healthy, devices, metrics

DETECTED_S = 30  # documented in docs/health.md
REPAIRED_S = 40  # one reading, the test bed's hold of 5 s, and one more reading
TAINT = "neuron.aws.com/unhealthy"

HELD, COMPONENT, INVALID, GONE = "0", "1", "2", "3"
FAULTS = [("ecc", HELD), ("component", f"{COMPONENT}:link_efa"), ("reset", INVALID), ("device", GONE)]

Marks = dict[str, tuple[str, list[str]]]


@pytest.fixture
def minor(bed: TestBed) -> int:
    """The minor version of Kubernetes."""
    return int(bed.parts.state.kubernetes.split(".")[1])


def marks(node: BedNode) -> Marks:
    """Return number, attribute and taints of each published unhealthy device."""
    return {
        device["name"].removeprefix("neuron-device-"): (
            device["attributes"]["unhealthy"]["string"],
            [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in device.get("taints", [])],
        )
        for device in devices(node.bed, node.name)
        if "unhealthy" in device["attributes"]
    }


def numbers(node: BedNode) -> set[int]:
    return {device["attributes"]["deviceId"]["int"] for device in devices(node.bed, node.name)}


def expected(minor: int) -> tuple[Marks, set[int]]:
    """Return the faults' attributes and taints, and the numbers of the published devices, once the faults are seen."""
    if minor < 36:
        return {HELD: ("hbm_ecc", [])}, set(range(16)) - {1, 2, 3}
    reasons = {HELD: "hbm_ecc", COMPONENT: "link_efa", INVALID: "invalid"}
    return {n: (reason, [f"{TAINT}={reason}:NoSchedule"]) for n, reason in reasons.items()}, set(range(16)) - {3}


def device_health(place: Namespace, name: str) -> list[tuple[str, str, str]]:
    """Return the devices in the pod's status: CDI id, health and message."""
    containers = place.get("pod", name)["status"].get("containerStatuses", [])
    return [
        (resource["resourceID"], resource["health"], resource.get("message", ""))
        for container in containers
        for status in container.get("allocatedResourcesStatus", [])
        for resource in status["resources"]
    ]


def healths(place: Namespace, name: str) -> list[str]:
    return [health for _, health, _ in device_health(place, name)]


def start(place: Namespace, name: str, node: BedNode, wants: str = "one") -> list[int]:
    """Start a pod and return the numbers of the devices that it got."""
    place.apply(pod(name, wants, node=node.name))
    place.wait_ready(name)
    return neurons(place, name)


def tolerant(name: str) -> dict[str, Any]:
    """Return a template for one device that tolerates the taint."""
    made = template(name)
    [request] = made["spec"]["spec"]["devices"]["requests"]
    request["exactly"]["tolerations"] = [{"key": TAINT, "operator": "Exists"}]
    return made


@pytest.mark.contract("T1")
@pytest.mark.contract("T3")
@pytest.mark.contract("H5")
def test_unhealthy_device_is_not_allocated_until_repair(
    driver: TestBed, trn2: BedNode, namespace: Namespace, minor: int
) -> None:
    namespace.apply(template("one"))
    assert start(namespace, "holder", trn2) == [0]
    if minor >= 36:
        eventually(
            "the pod's devices are reported healthy", lambda: healths(namespace, "holder") == ["Healthy"], DETECTED_S
        )

    for what, which in FAULTS:
        trn2.break_(what, which)
    eventually("the faults are seen", lambda: (marks(trn2), numbers(trn2)) == expected(minor), DETECTED_S)

    assert start(namespace, "next", trn2) == [4]
    assert 'neuron_dra_device_fault{device="neuron-device-3",neuron_device="3",reason="missing"} 1.0' in metrics(trn2)
    about = f"--field-selector=involvedObject.name={trn2.name},reason=NeuronDeviceUnhealthy"
    events = [item["message"].split(":")[0] for item in driver.get("events", "--namespace=default", about)["items"]]
    assert set(events) >= {
        "neuron-device-0 is unhealthy (hbm_ecc)",
        "neuron-device-1 is unhealthy (link_efa)",
        "neuron-device-2 is unhealthy (invalid)",
        "neuron-device-3 is unhealthy (missing)",
    }
    if minor >= 36:
        eventually(
            "the pod's device is reported unhealthy", lambda: healths(namespace, "holder") == ["Unhealthy"], DETECTED_S
        )
        [(cdi_id, _, message)] = device_health(namespace, "holder")
        assert cdi_id.startswith("k8s.neuron.aws.com/")
        assert message == "1 uncorrectable HBM error"
        namespace.apply(tolerant("any"))
        assert start(namespace, "undaunted", trn2, "any") == [1]

    for what, which in FAULTS:
        trn2.repair(what, which)
    eventually("all devices are healthy again", lambda: all_healthy(trn2), REPAIRED_S)
    assert start(namespace, "last", trn2) == [2 if minor >= 36 else 1]
    if minor >= 36:
        eventually(
            "the pod's device is reported healthy", lambda: healths(namespace, "holder") == ["Healthy"], DETECTED_S
        )


@pytest.mark.contract("T4")
def test_taint_rule_evicts_and_unprepares(driver: TestBed, trn2: BedNode, namespace: Namespace, minor: int) -> None:
    if minor < 37:
        pytest.skip(f"DeviceTaintRules are served by default from Kubernetes 1.37 on, this is 1.{minor}")
    namespace.apply(template("one"))
    start(namespace, "victim", trn2)
    [uid] = [item["metadata"]["uid"] for item in namespace.get("resourceclaims")["items"]]
    assert uid in prepared(trn2)
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": namespace.name},
        "spec": {
            "deviceSelector": {"driver": "neuron.aws.com", "pool": trn2.name, "device": "neuron-device-0"},
            "taint": {"key": "example.com/out-for-repair", "effect": "NoExecute"},
        },
    }
    namespace.apply(rule)
    try:
        namespace.kubectl("wait", "--for=delete", "pod/victim", "--timeout=180s", timeout_s=190)
        eventually("the claim is unprepared", lambda: uid not in prepared(trn2), 30)
        assert start(namespace, "next", trn2) == [1]
    finally:
        driver.kubectl("delete", "devicetaintrule", namespace.name)
