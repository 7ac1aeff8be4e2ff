"""The counters of devices and cores at /metrics, with the pods that have them (17.6)."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation import hanging, simulated_load
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node.endpoints import telemetry
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import quicker, with_timing
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"
Samples = dict[tuple[str, ...], float]


ALWAYS_FRESH = quicker(DEFAULT_TIMING, counters={"fresh_s": 0.0})


@pytest.fixture
def timing() -> PluginTiming:
    return ALWAYS_FRESH


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


async def page(plugin: Plugin) -> str:
    await eventually(lambda: plugin.http.port)
    url = f"http://127.0.0.1:{plugin.http.port}/metrics"
    return await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())


async def samples(plugin: Plugin, name: str, *labels: str) -> Samples:
    """Return the samples of a metric by the values of these labels."""
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in text_string_to_metric_families(await page(plugin))
        for sample in family.samples
        if sample.name == name
    }


async def test_counters_name_the_pod_that_has_the_core(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    simulated_load.set_core(
        host.hardware, 3, 0, busy_us=2_500_000, results={"success": 9, "timeout": 1}, memory={"tensors": 64}
    )
    simulated_load.set_core(host.hardware, 4, 1, busy_us=1)
    simulated_load.set_device(host.hardware, 3, power=(1, 50, 20), host_memory={"dma_rings": 8})
    async with host.running("pod-1", metrics_bind_address="127.0.0.1:0") as plugin:
        await kubelet.registered(DRIVER)
        made = api.create(allocated_claim("job", "node-a", [3], pod="job-pod"))
        await kubelet.prepare([made])
        who = ("neuron_device", "core", "namespace", "pod", "claim")
        job = ("default", "job-pod", "job")
        assert await samples(plugin, "neuron_dra_core_busy_seconds_total", *who) == {
            ("3", "0", *job): 2.5,
            ("4", "1", "", "", ""): 1e-6,
        }
        assert await samples(plugin, "neuron_dra_core_executions_total", *who, "result") == {
            ("3", "0", *job, "success"): 9,
            ("3", "0", *job, "timeout"): 1,
            ("4", "1", "", "", "", "success"): 0,
        }
        assert await samples(plugin, "neuron_dra_core_memory_bytes", *who, "category") == {
            ("3", "0", *job, "tensors"): 64
        }
        power = await samples(plugin, "neuron_dra_device_power_ratio", "neuron_device", "claim", "statistic")
        assert power == {("3", "job", "min"): 0.01, ("3", "job", "max"): 0.5, ("3", "job", "avg"): 0.2}
        host_memory = await samples(plugin, "neuron_dra_device_host_memory_bytes", "neuron_device", "pod", "category")
        assert host_memory[("3", "job-pod", "dma_rings")] == 8
        await kubelet.unprepare([made])
        busy = await samples(plugin, "neuron_dra_core_busy_seconds_total", *who)
        assert busy == {("3", "0", "", "", ""): 2.5, ("4", "1", "", "", ""): 1e-6}


@with_timing(ALWAYS_FRESH, counters={"deadline_s": 2.5})
async def test_hanging_counter_costs_only_its_device(host: PluginHost, kubelet: ScriptedKubelet) -> None:
    for device_id in (3, 4):
        simulated_load.set_core(host.hardware, device_id, 0, busy_us=1_000_000)
    file = host.hardware.folder(3) / "neuron_core0/stats/other_info/flop_count/total"
    hanging.hang(file)
    try:
        async with host.running("pod-1", metrics_bind_address="127.0.0.1:0") as plugin:
            await kubelet.registered(DRIVER)
            await eventually(lambda: plugin.publish_state.result)
            assert "neuron_dra_registered 1.0" in await page(plugin)
            busy = await samples(plugin, "neuron_dra_core_busy_seconds_total", "neuron_device")
            assert busy == {("4",): 1.0}
            assert await samples(plugin, "neuron_dra_counters_unread_devices") == {(): 1}
            assert plugin.hardware.hanging == ()
    finally:
        hanging.release(file)


OF_DEVICES = {each.name for each in telemetry.ALL if "core" not in each.labels}


@pytest.mark.parametrize(("detail", "there"), [("devices", OF_DEVICES), ("none", set())])
async def test_setting_limits_the_counters(host: PluginHost, detail: str, there: set[str]) -> None:
    simulated_load.set_core(host.hardware, 3, 0, busy_us=1, memory={"tensors": 1})
    simulated_load.set_device(host.hardware, 3, power=(1, 2, 3))
    async with host.running("pod-1", metrics_bind_address="127.0.0.1:0", device_counters=detail) as plugin:
        text = await page(plugin)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert {series.name for series in telemetry.ALL if any(line.startswith(series.name) for line in lines)} == there


async def test_every_series_is_documented(host: PluginHost) -> None:
    simulated_load.set_core(host.hardware, 3, 0, busy_us=1, results={"timeout": 1}, memory={"tensors": 1})
    simulated_load.set_device(host.hardware, 3, power=(1, 2, 3))
    async with host.running("pod-1", metrics_bind_address="127.0.0.1:0") as plugin:
        families = {family.name: family for family in text_string_to_metric_families(await page(plugin))}
    for series in telemetry.ALL:
        labels = {tuple(sample.labels) for sample in families[series.name].samples}
        assert (series.text, {frozenset(each) for each in labels}) == (
            families[series.name].documentation,
            {frozenset(series.labels)},
        )
