"""Device metadata on a real kubelet and container runtime: each container has the file of its claim. 18.6."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.bed.deployed import lnc, neurons, pod, template
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.core import metadata
from tests.bed.deployed import plugin_pod, settled, with_setting

FILE = f"{metadata.CONTAINER_FOLDER}/resourceclaimtemplates/neurons/neurons/neuron.aws.com-metadata.json"
HOST_FOLDER = f"/var/run/cdi/{metadata.FOLDER}"


@pytest.fixture
def on(trn2: BedNode, driver: TestBed) -> Iterator[BedNode]:
    """A trn2.48xlarge whose driver writes metadata."""
    with_setting(driver, "DEVICE_METADATA=true")
    try:
        plugin_pod(driver, trn2.name)
        yield trn2
    finally:
        with_setting(driver, "DEVICE_METADATA-")
        settled(trn2)


@pytest.mark.contract("P33")
def test_container_reads_its_devices_from_the_file(on: BedNode, namespace: Namespace) -> None:
    """(18.6) With a read-only root file system and another user; the file is gone with the claim."""
    namespace.apply(template("four", 4, group=4, config=lnc(1)))
    wanted = pod("reader", "four", node=on.name)
    wanted["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True, "runAsUser": 1000}
    namespace.apply(wanted)
    namespace.wait_ready("reader")
    newest, older = (json.loads(line) for line in namespace.exec("reader", "cat", FILE).splitlines())
    assert (newest["apiVersion"], older["apiVersion"]) == metadata.VERSIONS
    assert (newest["podClaimName"], newest["metadata"]["namespace"]) == ("neurons", namespace.name)
    attributes = [each["attributes"] for each in newest["requests"][0]["devices"]]
    assert sorted(each["deviceId"]["int"] for each in attributes) == neurons(namespace, "reader")
    assert {each["logicalNeuronCore"]["int"] for each in attributes} == {1}
    uid = newest["metadata"]["uid"]
    assert f"{uid}_neurons.json" in on.run("ls", HOST_FOLDER).split()
    namespace.kubectl("delete", "pod", "reader", "--wait=true")
    eventually("the file is removed", lambda: f"{uid}_neurons.json" not in on.run("ls", HOST_FOLDER).split(), 120)
