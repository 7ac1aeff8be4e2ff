"""Several faults at once: a rebuild without the files and the lists that it would read on a better day (4.04)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from neuron_dra.core.claims import Claim, ClaimRef
from neuron_dra.errors import ClaimError
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from tests.contract.test_recovery import Cluster, Node, claim, listing, lose_all_files
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.waiting import eventually

pytestmark = pytest.mark.contract("P20")
UID = "0f4c1c52-7a3b-4d6e-9a1b-5f2f6d7e8a90"


@pytest.fixture
async def node(short_path: Path) -> Node:
    made = Node(short_path, Cluster())
    made.cluster.claims = {c.ref.uid: c for c in map(claim, range(3))}
    return made


async def test_running_plugin_keeps_a_force_deleted_claim_whose_files_are_gone(node: Node) -> None:
    """The kubelet lists no pod that was deleted by force, while its containers end."""
    transactions, rebuild = node.process()
    await transactions.prepared.open()
    for number in range(2):
        await transactions.prepare(claim(number).ref)
    del node.cluster.claims["uid-1"]
    node.checkpoint.write_text("{")
    for name in os.listdir(node.cdi_root):
        os.unlink(node.cdi_root / name)
    await transactions.prepared.repair()
    assert transactions.prepared.damaged
    await rebuild.rebuild()
    heir = Claim(ClaimRef("ml", "heir", "uid-heir"), claim(1).devices)
    node.cluster.claims["uid-heir"] = heir
    with pytest.raises(ClaimError, match="neuron1 is held by claim ml/job-1"):
        await transactions.prepare(heir.ref)
    assert {uid: c.doubtful for uid, c in transactions.prepared.claims.items()} == {"uid-0": True, "uid-1": True}


async def test_rebuild_asks_a_kubelet_that_does_not_answer_again(node: Node) -> None:
    transactions, _ = node.process()
    await transactions.prepared.open()
    await transactions.prepare(claim(0).ref)
    lose_all_files(node)
    del node.cluster.claims["uid-0"]
    node.kubelet.listing = None
    transactions, rebuild = node.process()
    await transactions.prepared.open()
    assert transactions.prepared.damaged
    running = asyncio.create_task(rebuild.rebuild())
    async with asyncio.timeout(60):
        while not node.kubelet.asked:
            await asyncio.sleep(0)
    node.kubelet.listing = listing(0)
    async with asyncio.timeout(60):
        await running
    assert set(transactions.prepared.claims) == {"uid-0"}


async def test_rebuild_ends_without_a_list_that_never_comes(node: Node) -> None:
    transactions, _ = node.process()
    await transactions.prepared.open()
    await transactions.prepare(claim(0).ref)
    node.checkpoint.write_text("{")
    node.kubelet.listing = None
    assert set((await node.recovered()).prepared.claims) == {"uid-0"}


# Lists with names that no object can have


def a_list(namespace: str, name: str) -> bytes:
    """Return the list of a pod that has a device of this node through a claim of this name."""
    resource = pb.ClaimResource(driver_name="neuron.aws.com", pool_name="node-a", device_name="neuron-device-5")
    resource.cdi_devices.add(name=f"k8s.neuron.aws.com/claim={UID}-neuron-device-5")
    shown = pb.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=[resource])
    container = pb.ContainerResources(name="main", dynamic_resources=[shown])
    pod = pb.PodResources(name="pod", namespace="default", containers=[container])
    return pb.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("default", ""), ("", "old"), ("default", "a/b"), ("default", ".."), ("50%", "old"), ("default", "a?b=c#d")],
)
async def test_listed_claim_with_an_impossible_name_keeps_no_node_from_publishing(
    host: PluginHost, namespace: str, name: str
) -> None:
    async with PodResources(NoPods(), host.pod_resources) as kubelet:
        kubelet.body = a_list(namespace, name)
        async with host.running("pod-1") as plugin:
            await eventually(lambda: plugin.publish_state.result is not None)
            assert {uid: c.adopted for uid, c in plugin.prepared.claims.items()} == {UID: True}
