"""The kubelet's real pod-resources API, and the driver's conclusions from it (14.9)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import json_format

from hack.bed.deployed import SLOTS, checkpoint, pod, prepared, template
from hack.bed.real_cluster import REPOSITORY, BedNode, Namespace, TestBed, eventually
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.emulation.kubelet_wire import KubeletDevice
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from tests.bed.deployed import allocated
from tests.support.pod_resources import PodResources

TRN2 = "trn2.48xlarge"
ASK = """
import grpc
from google.protobuf import json_format
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb, podresources_pb2_grpc
with grpc.insecure_channel("unix:/var/lib/kubelet/pod-resources/kubelet.sock") as channel:
    answer = podresources_pb2_grpc.PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=30)
print(json_format.MessageToJson(answer))
"""


def listed(node: BedNode, namespace: str) -> dict[str, pb.PodResources]:
    """Return the part of the kubelet's list of a namespace's pods that this driver reads."""
    text = node.run("env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", ASK)
    answer = json_format.Parse(text, pb.ListPodResourcesResponse(), ignore_unknown_fields=True)
    return {each.name: each for each in answer.pod_resources if each.namespace == namespace}


class Known:
    """The kubelet's list of pods must agree with the claims in the driver's checkpoint."""

    def __init__(self, node: BedNode, place: Namespace) -> None:
        found = place.get("pods", f"--field-selector=spec.nodeName={node.name}")["items"]
        self.pods = [each for each in found if each["status"]["phase"] == "Running"]
        self._claims = checkpoint(node).claims.values()

    def prepared(self, namespace: str, name: str) -> Mapping[str, tuple[KubeletDevice, ...]] | None:
        for claim in self._claims:
            if (claim.ref.namespace, claim.ref.name) == (namespace, name):
                devices = (KubeletDevice((d.request,), d.pool, d.device, d.cdi_ids) for d in claim.devices)
                return {"neuron.aws.com": tuple(devices)}
        return None


def test_kubelet_and_scripted_list_are_equal(trn2: BedNode, namespace: Namespace) -> None:
    """The list has names of claims without UIDs, no containers without claims, and no deleted pods."""
    namespace.apply(template("two", 2))
    namespace.apply(pod("holder", "two", node=trn2.name))
    beside = pod("beside", "two", node=trn2.name)
    beside["spec"]["containers"].append({**beside["spec"]["containers"][0], "name": "plain", "resources": {}})
    namespace.apply(beside)
    namespace.run_pod("plain", trn2.name)
    for name in ("holder", "beside", "plain"):
        namespace.wait_ready(name)
    known = Known(trn2, namespace)
    double = PodResources(known, Path("unused"))
    assert listed(trn2, namespace.name) == {each["metadata"]["name"]: double._pod(each) for each in known.pods}
    namespace.delete("pod", "holder")
    eventually("the kubelet no longer lists it", lambda: set(listed(trn2, namespace.name)) == {"beside", "plain"}, 60)


@pytest.mark.long
def test_releases_orphaned_claims(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    """It takes five minutes, because one reply of the API server is not enough."""
    namespace.apply(template("one"))
    namespace.apply(pod("witness", "one", node=trn2.name))
    namespace.wait_ready("witness")
    before = prepared(trn2)
    current = checkpoint(trn2)
    [one] = (claim for claim in current.claims.values() if claim.ref.namespace == namespace.name)
    free = next(n for n in range(16) if n not in checkpoints.holders(current.claims.values()))
    device = replace(one.devices[0], device=f"neuron-device-{free}", device_ids=(free,), cdi_ids=(), edits={})
    lost = PreparedClaim(ClaimRef(one.ref.namespace, "lost", "uid-lost"), (device,), pod="lost", adopted=True)
    added = replace(current.with_claims({"uid-lost": lost}), sequence=current.sequence + 1)
    program = "import os,sys; p=sys.argv[1]; open(p+'.new','w').write(sys.argv[2]); os.rename(p+'.new', p)"
    for path in SLOTS:
        trn2.run(sys.executable, "-c", program, path, checkpoints.encode(added).decode())
    assert prepared(trn2) == {*before, "uid-lost"}
    eventually("the claim is let go", lambda: prepared(trn2) == before, 480, 5)
    assert before == allocated(driver, trn2.name)
