"""32.4 on real kubelets: nodes of an UltraServer that publish parts, beside the controller's reservations."""

from __future__ import annotations

from typing import Any

import pytest

from hack.bed.deployed import neurons
from hack.bed.deployed import pod as claiming
from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.bed.deployed import devices, slices, started
from tests.bed.fleet import condition, end_workloads, job, ranks, submit, wait_available, wait_state, workload
from tests.bed.fleet import pods as pods_of
from tests.bed.limited import CORE, NEURON, ended, pod, waits

ULTRA = "trn2u.48xlarge"
NODES = [f"u-{position}" for position in range(4)]
ON_ULTRA = {"nodeSelector": {"node.kubernetes.io/instance-type": ULTRA}}
KIND = "device.attributes['neuron.aws.com'].resourceType"


def on(node: str) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def aws_template(name: str, mode: str, *, selects: bool) -> Obj:
    """A template as AWS's documents have it, with or without the selector for whole nodes."""
    exactly: Obj = {"deviceClassName": "neuron.aws.com", "allocationMode": mode}
    if mode == "ExactCount":
        exactly["count"] = 1
    if selects:
        exactly["selectors"] = [{"cel": {"expression": f"{KIND} == 'neuron_node'"}}]
    spec = {"devices": {"requests": [{"name": "neurons", "exactly": exactly}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def allocated(place: Namespace) -> list[str]:
    """Return the devices of the namespace's claims."""
    found = []
    for claim in place.get("resourceclaims")["items"]:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        found += [each["device"] for each in results]
    return found


def tagged(bed: TestBed, node: str) -> set[str]:
    """Return the workloads in the tags of all devices of a node; empty text for a device without one."""
    found = set()
    for device in devices(bed, node):
        found.add(device["attributes"].get("workloadId", {}).get("string", ""))
    return found


@pytest.mark.long
def test_aws_claims_get_whole_nodes_beside_parts(sets_place: Namespace) -> None:
    place = sets_place
    assert [len(slices(place.bed, node)) for node in NODES] == [4] * 4
    for mode in ("All", "ExactCount"):
        for selects in (True, False):
            name = f"{mode.lower()}-{'kind' if selects else 'any'}"
            place.apply(aws_template(name, mode, selects=selects))
            assert started(place, claiming(name, name, node="u-0")) == list(range(16))
            assert allocated(place) == [names.NODE_DEVICE]
            ended(place, name)
            eventually("the claim to be gone", lambda: not place.get("resourceclaims")["items"], 60)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_parts_and_reservations_keep_apart(sets_place: Namespace) -> None:
    place, bed = sets_place, sets_place.bed
    of_device = started(place, pod("device", {NEURON: 1}, **on("u-0")))
    of_cores = started(place, pod("cores", {CORE: 1}, **on("u-1")))
    assert [len(of_device), len(of_cores)] == [1, 1]

    reason, message = condition(submit(place, workload("whole", 4, 1, instance_type=ULTRA), "Pending"))
    assert (reason, "2 of 4 nodes are free" in message) == ("InsufficientCapacity", True), message
    pair = submit(place, workload("pair", 2, 1, instance_type=ULTRA))
    assert pair["status"]["state"] == "Allocated"
    assert [tagged(bed, node) for node in NODES] == [{""}, {""}, {"pair"}, {"pair"}]
    place.apply(pod("late", {NEURON: 1}, **on("u-2")))
    eventually("a pod with a part of a reserved node waits", lambda: waits(place, "late"), 60)
    place.apply(job("pair", 2, "pair"))
    wait_available(place, "pair")
    assert ranks(place, pods_of(place, "pair")) == {"u-2": 0, "u-3": 1}
    assert [neurons(place, "device"), neurons(place, "cores")] == [of_device, of_cores]

    place.kubectl("delete", "deployment/pair", "--wait=true", timeout_s=120)
    place.kubectl("delete", "nusw/pair", "--timeout=180s", timeout_s=190)
    place.wait_ready("late", 180)
    ended(place, "device", "cores", "late")
    wait_state(place, "whole", "Allocated", 120)
    assert [tagged(bed, node) for node in NODES] == [{"whole"}] * 4
    place.apply(pod("device", {NEURON: 1}, **ON_ULTRA))
    eventually("a pod with a device waits", lambda: waits(place, "device"), 60)
    end_workloads(place)
    place.wait_ready("device", 180)
    assert [tagged(bed, node) for node in NODES] == [{""}] * 4
    ended(place, "device")
