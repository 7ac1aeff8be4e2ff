"""A kernel driver that loads, leaves or is not loaded: its devices are unknown, and never zero or some (31, 4.03)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import topology
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_driver import LoadStep, SimulatedDriver
from neuron_dra.node.plugin import Plugin
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import QUICK, quicker
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"
LONG_S = 60
NOT_LOADED = topology.NOT_LOADED.message
IMPATIENT = quicker(QUICK, prepare={"fetch_patience_s": 0.0})
"""A plugin whose claims do not wait for the kernel driver."""

WAITING = quicker(QUICK, prepare={"look_again_s": 0.05})


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@pytest.fixture
def driver(host: PluginHost) -> SimulatedDriver:
    host.timing = WAITING
    return SimulatedDriver(host.hardware)


def loaded_until(steps: Iterator[LoadStep], devices: int) -> None:
    """Go on with a load until it has this number of devices."""
    for step in steps:
        devices -= step.what == "device"
        if devices == 0:
            return


def finish(steps: Iterator[LoadStep]) -> None:
    for _ in steps:
        pass


async def says(plugin: Plugin, text: str) -> None:
    """Wait until the last reading says this of the kernel driver."""
    await eventually(lambda: text in plugin.hardware.why_unknown, LONG_S, f"{text}: {plugin.hardware.why_unknown}")


async def all_unknown(plugin: Plugin, why: str) -> None:
    """Wait until the kubelet is told that the health of every device is unknown; the reason begins with `why`."""

    def is_told() -> bool:
        states = plugin.health.devices
        return bool(states) and all(each.status.value == "UNKNOWN" and each.message.startswith(why) for each in states)

    await eventually(is_told, LONG_S, f"unknown health: {why}")


async def test_nothing_is_published_until_the_driver_is_loaded(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    host.timing = IMPATIENT
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


async def test_part_of_a_load_is_never_published(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    host.timing = IMPATIENT
    claim = api.create(allocated_claim("new", "node-a", [5]))  # the first device that appears
    driver.unload()
    steps = driver.loading()
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        loaded_until(steps, 5)
        await says(plugin, "the kernel driver is loading, 5 devices so far, for ")
        await published_or_waiting(plugin)
        assert api.objects("resourceslices") == []
        await eventually(lambda: plugin.hardware.why_unknown in plugin.why_not_ready(), what="the last look")
        rejected = (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error
        assert rejected.startswith("claim default/new: the kernel driver is loading, 5 devices so far, for ")
        finish(steps)
        stored = await api.until("resourceslices", lambda items: len(items) == 1)
        assert [len(each["spec"]["devices"]) for each in stored] == [16]
        assert [each["spec"]["pool"]["generation"] for each in stored] == [1]


async def published_or_waiting(plugin: Plugin) -> None:
    """Let the publishing loop look twice."""
    for _ in range(2):
        plugin.dirty.notify()
        await eventually(lambda: "driver is" in plugin.publish_state.error, LONG_S, "a look of the publishing loop")


async def test_claims_wait_for_the_end_of_a_load(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    claim = api.create(allocated_claim("new", "node-a", [12]))  # the last device that appears
    driver.unload()
    steps = driver.loading()
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await says(plugin, "is not loaded")
        waiting = asyncio.create_task(kubelet.prepare([claim]))
        loaded_until(steps, 3)
        await says(plugin, "3 devices so far")
        assert not waiting.done()
        finish(steps)
        assert not (await waiting)[claim["metadata"]["uid"]].error


async def test_claim_notices_a_driver_that_has_just_left(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    """The hardware is read every ten seconds; until then a claim would get devices that are not there."""
    host.timing = quicker(WAITING, hardware={"period_s": 600.0, "driver_s": 0.05})
    claim = api.create(allocated_claim("new", "node-a", [12]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await api.until("resourceslices", lambda items: len(items) == 1)
        driver.unload()
        steps = driver.loading()
        loaded_until(steps, 3)
        waiting = asyncio.create_task(kubelet.prepare([claim]))
        await says(plugin, "3 devices so far")
        assert not waiting.done()
        finish(steps)
        assert not (await waiting)[claim["metadata"]["uid"]].error


async def test_driver_that_loads_again_changes_nothing(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    """Prepared claims are answered as usual meanwhile, and no device is unhealthy before, during or after it."""
    old, other = (api.create(allocated_claim(name, "node-a", [i])) for name, i in (("old", 0), ("other", 1)))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        answer = await kubelet.prepare([old, other])
        before = await api.until("resourceslices", lambda items: len(items) == 1)
        driver.unload()
        await says(plugin, "is not loaded")
        await all_unknown(plugin, "the kernel driver is not loaded")
        assert [finding.kind for finding in plugin.hardware.node.findings] == ["no-class-folder"]
        steps = driver.loading()
        loaded_until(steps, 2)
        await says(plugin, "2 devices so far")
        await published_again(plugin)
        await all_unknown(plugin, "the kernel driver is loading, 2 devices so far, for ")
        assert await kubelet.prepare([old, other]) == answer
        assert await kubelet.unprepare([other]) == {other["metadata"]["uid"]: ""}
        finish(steps)
        await eventually(lambda: {each.status.value for each in plugin.health.devices} == {"HEALTHY"}, LONG_S)
        await published_again(plugin)
        assert plugin.hardware.node.findings == ()
        assert api.objects("resourceslices") == before
        assert not [each for each in api.objects("events") if "Unhealthy" in each["reason"]]


async def test_device_that_is_missing_after_the_load_is_missing(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    """Control: what is wrong after a load is told."""
    async with host.running("pod-1", unhealthy_device_hold_seconds=0.3):
        await kubelet.registered(DRIVER)
        await api.until("resourceslices", lambda items: len(items) == 1)
        driver.unload()
        driver.load(missing=[7])
        found = await api.until("events", lambda items: any(e["reason"] == "NeuronDeviceUnhealthy" for e in items))
        about_devices = [each["message"] for each in found if each["reason"] == "NeuronDeviceUnhealthy"]
        assert [text.split(" ")[0] for text in about_devices] == ["neuron-device-7"]
        [stored] = await api.until("resourceslices", lambda items: len(items[0]["spec"]["devices"]) == 15)
        assert "neuron-device-7" not in {device["name"] for device in stored["spec"]["devices"]}


async def test_restart_without_the_driver_withdraws_nothing(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    old = api.create(allocated_claim("old", "node-a", [0]))
    async with host.running("pod-1", unhealthy_device_hold_seconds=0.3):
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


async def test_device_that_one_load_missed_comes_back_with_the_next(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, driver: SimulatedDriver
) -> None:
    host.timing = IMPATIENT
    async with host.running("pod-1", unhealthy_device_hold_seconds=0.3):
        await kubelet.registered(DRIVER)
        await api.until("resourceslices", publishes(16))
        for missing in ({5}, set[int]()):
            driver.unload()
            driver.load(missing)
            await api.until("resourceslices", publishes(16 - len(missing)))


def publishes(devices: int) -> Callable[[list[Obj]], bool]:
    return lambda slices: [len(each["spec"]["devices"]) for each in slices] == [devices]
