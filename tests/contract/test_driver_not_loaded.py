"""A plugin that starts before the kernel driver is loaded: its devices are unknown, and never zero (issue 31)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_node import CLASS, DEVICES
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"
LONG_S = 60
NOT_LOADED = (
    "/sys/class/neuron_device does not exist: the kernel driver (aws-neuronx-dkms) is not loaded, or keeps its files "
    "elsewhere. Nothing is published or prepared until it is there; what was published stays. Load the kernel driver, "
    "or update this driver"
)


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


class KernelDriver:
    """The folders of the kernel driver, which appear when it is loaded."""

    def __init__(self, root: Path) -> None:
        self._folders = [root / CLASS, root / DEVICES]

    def unload(self) -> None:
        for folder in self._folders:
            folder.rename(folder.with_name(".unloaded"))

    def load(self) -> None:
        for folder in reversed(self._folders):
            folder.with_name(".unloaded").rename(folder)


@pytest.fixture
def driver(host: PluginHost, quick: None) -> KernelDriver:
    return KernelDriver(host.root / "host")


async def test_nothing_is_published_until_the_driver_is_loaded(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: KernelDriver
) -> None:
    claim = api.create(allocated_claim("new", "node-a", [0]))
    driver.unload()
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        found = await api.until("events", lambda items: any(e["reason"] == "NeuronNoClassFolder" for e in items))
        about_devices = ("NeuronNoClassFolder", "NeuronNoDevices", "NeuronDeviceUnhealthy")
        assert [each["message"] for each in found if each["reason"] in about_devices] == [NOT_LOADED]
        await eventually(lambda: plugin.why_not_ready() == NOT_LOADED, what="the reason, once it is registered")
        assert plugin.metrics.registry.get_sample_value("neuron_dra_findings", {"kind": "no-class-folder"}) == 1
        assert (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error == f"claim default/new: {NOT_LOADED}"
        assert plugin.health.devices == ()
        assert api.objects("resourceslices") == []
        driver.load()
        [stored] = await api.until("resourceslices", lambda items: len(items) == 1)
        assert len(stored["spec"]["devices"]) == 16
        await eventually(lambda: not plugin.why_not_ready(), LONG_S, "the plugin is ready")
        assert plugin.hardware.node.findings == ()
        assert not (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error


async def test_restart_without_the_driver_withdraws_nothing(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: KernelDriver
) -> None:
    old = api.create(allocated_claim("old", "node-a", [0]))
    async with host.running("pod-1"):
        await kubelet.registered(DRIVER)
        answer = await kubelet.prepare([old])
        before = await api.until("resourceslices", lambda items: len(items) == 1)
    driver.unload()
    async with host.running("pod-2") as plugin:
        await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-2.sock"))
        await eventually(lambda: plugin.why_not_ready() == NOT_LOADED, LONG_S, "the driver is missing")
        assert await kubelet.prepare([old]) == answer
        assert api.objects("resourceslices") == before
        driver.load()
        await eventually(lambda: plugin.publish_state.result, LONG_S, "a publish")
        assert api.objects("resourceslices") == before
        assert await kubelet.unprepare([old]) == {old["metadata"]["uid"]: ""}
