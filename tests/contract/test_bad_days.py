"""Several faults at once: a rebuild without the files and the lists that it would read on a better day (4.04)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_driver import SimulatedDriver
from neuron_dra.errors import ClaimError, DeviceInUse
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from neuron_dra.node.files import Files
from neuron_dra.node.prepare.host_folders import MOUNTINFO
from tests.contract.test_adopted_claims import Running
from tests.contract.test_recovery import Cluster, Node, claim, decided, listing, lose_all_files
from tests.support import slots
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.single_store import SingleStore
from tests.support.timings import QUICK, quicker
from tests.support.waiting import eventually

pytestmark = pytest.mark.contract("P20")
DRIVER = "neuron.aws.com"
UID = "0f4c1c52-7a3b-4d6e-9a1b-5f2f6d7e8a90"


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture
async def node(short_path: Path) -> Node:
    made = Node(short_path, Cluster())
    made.cluster.claims = {c.ref.uid: c for c in map(claim, range(3))}
    return made


@pytest.mark.parametrize("is_between", [False, True])
async def test_running_plugin_keeps_a_force_deleted_claim_whose_files_are_gone(node: Node, is_between: bool) -> None:
    """The kubelet lists no pod that was deleted by force, while its containers end."""
    transactions, _ = node.process()
    await transactions.prepared.open()
    for number in range(2):
        await transactions.prepare(claim(number).ref)
    del node.cluster.claims["uid-1"]
    empty(node.cdi_root)
    if is_between:
        await transactions.prepare(claim(2).ref)
    slots.tear_all(node.data)
    await transactions.prepared.repair()
    heir = Claim(ClaimRef("ml", "heir", "uid-heir"), claim(1).devices)
    node.cluster.claims["uid-heir"] = heir
    with pytest.raises(ClaimError, match="neuron1 is held by claim ml/job-1"):
        await transactions.prepare(heir.ref)
    assert transactions.prepared.claims["uid-1"].doubtful is not is_between, "its file was written again in between"


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
    slots.tear_all(node.data)
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


# A kernel driver that is not there


async def test_rebuild_that_waits_for_the_kernel_driver_says_so(host: PluginHost, api: EmbeddedApi) -> None:
    host.timing = quicker(QUICK, prepare={"rebuild_retry_s": (0.05, 0.1)}, kubelet={"supervise_s": 0.1})
    driver = SimulatedDriver(host.hardware)
    old = api.create(allocated_claim("old", "node-a", [0]))
    async with ScriptedKubelet(host.registry) as kubelet:
        async with host.running("pod-1"):
            await kubelet.registered(DRIVER)
            await kubelet.prepare([old])
        driver.unload()
        slots.tear_all(host.data)
        async with host.running("pod-2") as plugin:
            await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-2.sock"))
            await eventually(lambda: "kernel driver is not loaded" in plugin.why_not_ready(), 20)
            assert "kernel driver is not loaded" in (await kubelet.unprepare([old]))[old["metadata"]["uid"]]
            [answer] = (await kubelet.prepare([old])).values()
            assert "kernel driver is not loaded" in answer.error
            driver.load()
            await eventually(lambda: plugin.prepared.damaged is None, 20)
            assert await kubelet.unprepare([old]) == {old["metadata"]["uid"]: ""}


@pytest.mark.parametrize("has_files", [True, False])
async def test_device_that_a_load_lost_stays_with_its_claim_over_a_rebuild(
    host: PluginHost, api: EmbeddedApi, has_files: bool
) -> None:
    host.timing = quicker(QUICK, prepare={"rebuild_retry_s": (0.05, 0.1)}, kubelet={"supervise_s": 0.1})
    driver = SimulatedDriver(host.hardware)
    old = api.create(allocated_claim("old", "node-a", [7]))
    rival = api.create(allocated_claim("rival", "node-a", [7]))
    running = Running()
    running.run("old", "old", "neuron-device-7", uid=old["metadata"]["uid"])
    async with ScriptedKubelet(host.registry) as kubelet, PodResources(running, host.pod_resources):
        async with host.running("pod-1"):
            await kubelet.registered(DRIVER)
            await kubelet.prepare([old])
        driver.unload()
        driver.load(missing=[7])
        slots.tear_all(host.data)
        if not has_files:
            for path in host.cdi.iterdir():
                path.unlink()
        async with host.running("pod-2") as plugin:
            await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-2.sock"))
            await eventually(lambda: plugin.prepared.damaged is None, 20)
            driver.unload()
            driver.load()
            await eventually(lambda: len(plugin.hardware.node.devices) == 16, 20)
            [answer] = (await kubelet.prepare([rival])).values()
            assert "neuron7 is held by claim default/old" in answer.error


# Both folders are emptied, and something is prepared in between


ONE, TWO, HEIR, ADMIN = (
    Claim(ClaimRef("ml", name, f"uid-{name}"), (AllocatedDevice("r", "a", f"neuron-device-{number}", is_admin),))
    for name, number, is_admin in (("one", 1, False), ("two", 2, False), ("heir", 1, False), ("admin", 1, True))
)


@pytest.mark.parametrize("is_between", [False, True])
def test_claim_is_held_after_both_folders_were_emptied(short_path: Path, is_between: bool) -> None:
    """A file that was written in between is no evidence that the others were removed by an unprepare."""
    store = SingleStore(short_path / "data", short_path / "cdi", "boot-1", Files())
    store.open()
    store.prepare(ONE, decided)
    empty(short_path / "cdi")
    if is_between:
        store.prepare(TWO, decided)
    empty(short_path / "data")
    with pytest.raises(DeviceInUse):
        store.prepare(HEIR, decided)


def test_claim_with_admin_access_that_is_found_by_its_file_holds_nothing(short_path: Path) -> None:
    ours, others = (SingleStore(short_path / "data", short_path / "cdi", "boot-1", Files()) for _ in range(2))
    for store in (ours, others):
        store.open()
    ours.prepare(TWO, decided)
    others.prepare(ADMIN, decided)
    slots.remove_all(short_path / "data")
    assert ours.prepare(HEIR, decided)


# The program itself has no means


class NoDescriptors(Files):
    """While `fails`, the list of mounts cannot be opened."""

    fails = False
    asked = 0

    def read(self, path: Path) -> bytes | None:
        if path == MOUNTINFO and self.fails:
            self.asked += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().read(path)


async def test_plugin_that_cannot_list_its_mounts_goes_on(host: PluginHost) -> None:
    host.timing = quicker(QUICK, prepare={"repair_s": 0.02})
    files = NoDescriptors()
    async with host.running("pod-1", files=files) as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        files.fails = True
        await eventually(lambda: files.asked > 2, 10)
