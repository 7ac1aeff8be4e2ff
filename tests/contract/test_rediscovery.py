"""Claims that are not in the checkpoint are held if something proves that they were prepared, and only then (4.04)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import cdi
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.contract.test_adopted_claims import Running, publish_theirs
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import PodResources
from tests.support.timings import quicker
from tests.support.waiting import always, eventually

DRIVER = "neuron.aws.com"


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(DEFAULT_TIMING, publish={"gather_s": 0.02, "list_again_s": 0.05}, prepare={"repair_s": 0.05})


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
async def pod_resources(host: PluginHost, running: Running) -> AsyncIterator[PodResources]:
    async with PodResources(running, host.pod_resources) as made:
        yield made


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@pytest.fixture
def new_kubelet(api: EmbeddedApi) -> None:
    """The node's kubelet always lists claims."""
    api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}})


async def published(plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result is not None)


def waiting_pod(running: Running, claim: Obj) -> None:
    """List the claim's pod without the claim: its volumes are not attached, so the kubelet has not prepared it."""
    pod = claim["status"]["reservedFor"][0]["name"]
    running.pods.append({"metadata": {"namespace": "default", "name": pod}, "spec": {"containers": [{"name": "main"}]}})


# A node without traces


@pytest.mark.usefixtures("pod_resources", "new_kubelet")
async def test_claim_that_was_never_prepared_holds_nothing_after_its_pod(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet, running: Running
) -> None:
    waiting = api.create(allocated_claim("waiting", "node-a", range(16), of_its_pod=True))
    waiting_pod(running, waiting)
    async with host.running("pod-1") as plugin:
        await published(plugin)
        await kubelet.registered(DRIVER)
        await always(lambda: not plugin.prepared.claims, 0.3)
        api.delete("resourceclaims", "waiting", "default")
        [answer] = (await kubelet.prepare([api.create(allocated_claim("heir", "node-a", [5]))])).values()
        assert not answer.error


@pytest.mark.usefixtures("pod_resources")
async def test_claim_that_the_kubelet_lists_is_prepared_again(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet, running: Running
) -> None:
    """The folders of the plugin and of the CDI files were emptied while it did not run."""
    made = api.create(allocated_claim("old", "node-a", [5], of_its_pod=True))
    uid = made["metadata"]["uid"]
    running.run("old", "old", "neuron-device-5", uid=uid)
    async with host.running("pod-1") as plugin:
        await published(plugin)
        await kubelet.registered(DRIVER)
        restored = plugin.prepared.claims[uid]
        assert (restored.adopted, restored.doubtful, host.specified) == (False, False, {uid})
        [answer] = (await kubelet.prepare([made])).values()
        [device] = answer.devices
        assert device.cdi_device_ids == (f"k8s.neuron.aws.com/claim={uid}-neuron-device-5",)
        await kubelet.unprepare([made])
        assert host.specified == set()


@pytest.mark.usefixtures("pod_resources")
async def test_listed_claim_with_another_allocation_is_adopted(
    host: PluginHost, api: EmbeddedApi, running: Running
) -> None:
    uid = api.create(allocated_claim("old", "node-a", [6]))["metadata"]["uid"]
    running.run("old", "old", "neuron-device-5")
    async with host.running("pod-1") as plugin:
        await published(plugin)
        claim = plugin.prepared.claims[uid]
        assert (claim.adopted, [device.device_ids for device in claim.devices], host.specified) == (True, [(5,)], set())


@pytest.mark.usefixtures("pod_resources")
async def test_listed_claim_without_object_is_adopted_by_the_uid_of_its_cdi_device(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet, running: Running
) -> None:
    uid = "0f4c1c52-7a3b-4d6e-9a1b-5f2f6d7e8a90"
    running.run("old", "old", "neuron-device-5", uid=uid)
    async with host.running("pod-1") as plugin:
        await published(plugin)
        await kubelet.registered(DRIVER)
        assert set(plugin.prepared.claims) == {uid}
        [answer] = (await kubelet.prepare([api.create(allocated_claim("rival", "node-a", [5]))])).values()
        assert "neuron5 is held by claim default/old" in answer.error


async def test_kubelet_that_does_not_answer_is_asked_again(
    host: PluginHost, api: EmbeddedApi, running: Running, pod_resources: PodResources
) -> None:
    uid = api.create(allocated_claim("old", "node-a", [5]))["metadata"]["uid"]
    running.run("old", "old", "neuron-device-5")
    pod_resources.error = grpc.StatusCode.UNAVAILABLE
    async with host.running("pod-1") as plugin:
        await published(plugin)
        assert not plugin.prepared.claims
        pod_resources.error = None
        await eventually(lambda: set(plugin.prepared.claims) == {uid}, what="the listed claim")


@pytest.mark.usefixtures("pod_resources")
async def test_list_after_a_reboot_holds_nothing(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet, running: Running
) -> None:
    """The kubelet's cache outlives the boot."""
    made = api.create(allocated_claim("old", "node-a", [5]))
    async with host.running("pod-1") as plugin:
        await published(plugin)
        await kubelet.registered(DRIVER)
        await kubelet.prepare([made])
    running.run("old", "old", "neuron-device-5")
    host.hardware.set_boot_id()
    async with host.running("pod-2") as plugin:
        await published(plugin)
        await always(lambda: not plugin.prepared.claims, 0.3)


# Another driver was here


@pytest.mark.usefixtures("pod_resources", "new_kubelet")
async def test_claim_of_a_waiting_pod_is_not_taken_over(host: PluginHost, api: EmbeddedApi, running: Running) -> None:
    publish_theirs(api)
    prepared = api.create(allocated_claim("prepared", "node-a", [4]))
    waiting_pod(running, api.create(allocated_claim("waiting", "node-a", [5])))
    async with host.running("pod-1") as plugin:
        await published(plugin)
        assert set(plugin.prepared.claims) == {prepared["metadata"]["uid"]}


@pytest.mark.usefixtures("pod_resources", "new_kubelet")
async def test_device_under_a_name_that_is_not_published_is_held(
    host: PluginHost, api: EmbeddedApi, running: Running
) -> None:
    """The scheduler does not know that it is one of the devices that are published."""
    publish_theirs(api)
    waiting = api.create(allocated_claim("waiting", "node-a", ["neurondevice5"]))
    waiting_pod(running, waiting)
    async with host.running("pod-1") as plugin:
        await published(plugin)
        assert set(plugin.prepared.claims) == {waiting["metadata"]["uid"]}


@pytest.mark.usefixtures("pod_resources")
async def test_claim_of_another_drivers_file_is_adopted_without_its_object(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    host.cdi.mkdir()
    (host.cdi / cdi.other_file_name("uid-gone")).write_text(
        "kind: k8s.neuron.aws.com/claim\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/neuron5\n"
    )
    rival = api.create(allocated_claim("rival", "node-a", [5]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    async with host.running("pod-1") as plugin:
        await published(plugin)
        await kubelet.registered(DRIVER)
        [answer] = (await kubelet.prepare([rival])).values()
        assert "neuron5 is held by claim with UID uid-gone" in answer.error
        await kubelet.unprepare([{"metadata": {"namespace": "default", "name": "gone", "uid": "uid-gone"}}])
        [answer] = (await kubelet.prepare([rival])).values()
        assert (answer.error, host.specified) == ("", {rival["metadata"]["uid"]})


# Doubt


@pytest.mark.usefixtures("pod_resources")
@pytest.mark.parametrize("others_ran", [False, True])
async def test_own_claims_are_doubted_only_after_another_driver(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet, others_ran: bool
) -> None:
    made = api.create(allocated_claim("ours", "node-a", [5]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await published(plugin)
        await kubelet.prepare([made])
    if others_ran:
        for item in api.objects("resourceslices"):
            api.delete("resourceslices", item["metadata"]["name"])
        publish_theirs(api)
    async with host.running("pod-2") as plugin:
        await published(plugin)
        assert plugin.prepared.claims[made["metadata"]["uid"]].doubtful is others_ran
