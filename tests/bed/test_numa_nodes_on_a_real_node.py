"""31.14 on a real node: one claim aligns Neuron devices with the CPUs of a NUMA node, of another driver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.bed.real_cluster import REPOSITORY, BedNode, Namespace, TestBed, eventually
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.bed.deployed import devices

CPU_DRIVER = "dra.cpu"
CPUS = 8
EXAMPLE = REPOSITORY / "deploy/examples/aligned-cpu-neuron.yaml"


def numa_nodes(node: BedNode) -> dict[str, int]:
    """Return the NUMA node of each published device."""
    return {each["name"]: each["attributes"][names.NUMA_NODE]["int"] for each in devices(node.bed, node.name)}


def cpus(node: BedNode, numa_node: int) -> Obj:
    """Return a slice of a CPU driver with CPUs of one NUMA node."""
    attributes = {names.NUMA_NODE: {"int": numa_node}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-{CPU_DRIVER}"},
        "spec": {
            "driver": CPU_DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"cpu-{number}", "attributes": attributes} for number in range(CPUS)],
        },
    }


@pytest.fixture
def cpu_class(bed: TestBed) -> Iterator[None]:
    """The DeviceClass of the CPU driver."""
    spec = {"selectors": [{"cel": {"expression": f"device.driver == '{CPU_DRIVER}'"}}]}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CPU_DRIVER}, "spec": spec}
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    yield
    bed.kubectl("delete", "deviceclass", CPU_DRIVER)


def allocated(place: Namespace) -> dict[str, list[str]]:
    """Return the devices of the only claim by their drivers; empty while it has none."""
    found: dict[str, list[str]] = {}
    [claim] = place.get("resourceclaims")["items"] or [{}]
    results: list[dict[str, Any]] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    for each in results:
        found.setdefault(each["driver"], []).append(each["device"])
    return found


@pytest.mark.usefixtures("cpu_class")
@pytest.mark.parametrize("numa_node", [0, 1])
def test_a_claim_gets_devices_beside_its_cpus(trn2: BedNode, namespace: Namespace, numa_node: int) -> None:
    published = numa_nodes(trn2)
    assert Counter(published.values()) == {0: 8, 1: 8}
    trn2.bed.kubectl("apply", "-f", "-", stdin=json.dumps(cpus(trn2, numa_node)))
    try:
        for each in yaml.safe_load_all(EXAMPLE.read_text()):
            if each["kind"] == "Pod":
                each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": trn2.name}
            namespace.apply(each)
        found = eventually("the claim is allocated", lambda: allocated(namespace), 60)
        assert len(found[CPU_DRIVER]) == len(found[names.DRIVER]) == 4
        assert {published[device] for device in found[names.DRIVER]} == {numa_node}
    finally:
        trn2.bed.kubectl("delete", "resourceslice", f"{trn2.name}-{CPU_DRIVER}")
