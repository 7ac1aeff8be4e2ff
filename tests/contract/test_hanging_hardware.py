"""A hanging read of the hardware blocks nothing else (14.1)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.health import DeviceHealth, Health
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.hanging import (
    children,
    hang,
    release,
    stopped,
)
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.gen.kubelet.health.v1 import health_pb2
from neuron_dra.node.hardware import hardware as hardware_module
from neuron_dra.node.hardware import helper
from neuron_dra.node.health import HealthSource
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.prepare.kubelet import HealthService
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import quicker
from tests.support.waiting import always, eventually

DRIVER = "neuron.aws.com"
LONG_S = 120  # on a busy machine


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(DEFAULT_TIMING, hardware={"period_s": 0.1, "deadline_s": 1.0, "probe_s": 0.1})


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


HELPER = helper.__file__.encode()


def helpers() -> list[int]:
    """Return the ids of this process's helpers that read sysfs; other tests may have left other children."""
    return [pid for pid in children(os.getpid()) if HELPER in Path(f"/proc/{pid}/cmdline").read_bytes()]


def states(plugin: Plugin) -> dict[str, str]:
    """Return the health of the devices that are not healthy."""
    return {d.name: d.status.value for d in plugin.health.devices if d.status.value != "HEALTHY"}


async def well(plugin: Plugin) -> None:
    await eventually(lambda: len(plugin.health.devices) == 16 and not states(plugin), LONG_S, "all devices are healthy")


async def test_hanging_device_does_not_block_others(host: PluginHost, api: EmbeddedApi) -> None:
    async with host.running("pod-1") as plugin:
        await well(plugin)
        hang(host.hardware.folder(3) / "reset")
        await eventually(lambda: states(plugin) == {"neuron-device-3": "UNKNOWN"}, LONG_S, "only device 3 is unknown")
        unknown = next(d for d in plugin.health.devices if d.name == "neuron-device-3")
        assert unknown.message == "the last reading failed: the kernel driver hangs or is gone"
        host.hardware.add_ecc(5)
        seen = {"neuron-device-3": "UNKNOWN", "neuron-device-5": "UNHEALTHY"}
        await eventually(lambda: states(plugin) == seen, LONG_S, "a fault of another device is seen")
        event = await api.until("events", lambda items: any("neuron3/reset" in e["message"] for e in items))
        (found,) = (e for e in event if "neuron3/reset" in e["message"])
        assert found["reason"] == "NeuronReadingHangs"
        assert "a read of /sys/class/neuron_device/neuron3/reset does not end" in found["message"]
        (slices,) = api.objects("resourceslices")
        assert len(slices["spec"]["devices"]) == 16
        release(host.hardware.folder(3) / "reset")
        await eventually(lambda: states(plugin) == {"neuron-device-5": "UNHEALTHY"}, LONG_S, "device 3 is known again")
        await eventually(lambda: not plugin.hardware.node.findings, LONG_S, "the finding is over")


async def test_unhealthy_device_stays_so_while_reads_hang(host: PluginHost) -> None:
    async with host.running("pod-1") as plugin:
        host.hardware.add_ecc(3)
        await eventually(lambda: states(plugin) == {"neuron-device-3": "UNHEALTHY"}, LONG_S)
        hang(host.hardware.folder(3) / "reset")
        await eventually(lambda: plugin.hardware.facts.hanging, LONG_S, "the hang is found")
        await always(lambda: states(plugin)["neuron-device-3"] == "UNHEALTHY", 0.5)


async def test_no_result_reports_no_device_healthy(
    host: PluginHost, kubelet: ScriptedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.running("pod-1") as plugin:
        await well(plugin)
        await eventually(lambda: plugin.slices.items, LONG_S, "the slice is published")
        read_at = plugin.hardware.read_at
        assert time.time() - read_at < LONG_S
        monkeypatch.setattr("neuron_dra.node.hardware.reader.helper.__file__", str(host.root / "no helper"))
        for pid in helpers():
            os.kill(pid, 9)
        everything = {f"neuron-device-{i}": "UNKNOWN" for i in range(16)}
        await eventually(lambda: states(plugin) == everything, LONG_S, "nothing is known")
        stays = plugin.hardware.read_at
        await always(lambda: plugin.hardware.read_at == stays, 0.3)
        (slices,) = plugin.slices.items.values()
        assert len(slices["spec"]["devices"]) == 16


async def test_healthy_devices_have_the_time_of_the_reading() -> None:
    """14.1. A new time would report the device as healthy now."""
    source = HealthSource(lambda: 1000.0)
    source.set((DeviceHealth("neuron-device-0", Health.HEALTHY), DeviceHealth("neuron-device-1", Health.UNKNOWN)))
    watch = HealthService(source, "node-a").watch(health_pb2.NodeWatchResourcesRequest(), None)
    before = int(time.time())
    well, unknown = (await anext(watch)).devices
    assert (well.last_updated_time, unknown.last_updated_time >= before) == (1000, True)


async def test_stopped_helper_is_replaced(host: PluginHost) -> None:
    async with host.running("pod-1") as plugin:
        await well(plugin)
        (first,) = helpers()
        with stopped(first):
            await eventually(lambda: helpers() not in ([first], []), LONG_S, "another helper")
            host.hardware.add_ecc(5)
            await eventually(lambda: states(plugin) == {"neuron-device-5": "UNHEALTHY"}, LONG_S)
    assert helpers() == []


@pytest.mark.parametrize("file", ["product_name", "version", "ultraserver_mode"])
async def test_hanging_node_file_keeps_its_last_value(host: PluginHost, file: str) -> None:
    simulated_node.write(host.root / "host", "trn2u.48xlarge", node_id=2)
    paths = {
        "product_name": simulated_node.DMI,
        "version": "sys/module/neuron",
        "ultraserver_mode": simulated_node.CLASS,
    }
    async with host.running("pod-1") as plugin:
        await eventually(lambda: plugin.health.devices, LONG_S)
        before = plugin.hardware.node
        hang(host.root / "host" / paths[file] / file)
        await eventually(lambda: f"{paths[file]}/{file}" in plugin.hardware.facts.hanging, LONG_S)
        host.hardware.add_ecc(5)
        await eventually(lambda: states(plugin) == {"neuron-node-0": "UNHEALTHY"}, LONG_S, "the devices are read")
        for _ in range(2):  # every later reading leaves the file out, too
            read_at = plugin.hardware.read_at
            await eventually(lambda read_at=read_at: plugin.hardware.read_at != read_at, LONG_S, "another reading")
        assert {finding.kind for finding in plugin.hardware.node.findings} == {"reading-hangs"}
        facts = plugin.hardware.node
        assert (facts.instance_type_name, facts.driver_version, facts.ultraserver) == (
            before.instance_type_name,
            before.driver_version,
            before.ultraserver,
        )


@pytest.mark.parametrize("file", ["core_count", "dev"])
async def test_start_on_hung_hardware_keeps_slices(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, file: str
) -> None:
    old, new = (api.create(allocated_claim(name, "node-a", [i])) for i, name in enumerate(("old", "new")))
    async with host.running("pod-1"):
        await kubelet.registered(DRIVER)
        answer = await kubelet.prepare([old])
        (before,) = await api.until("resourceslices", lambda items: len(items) == 1)
    hang(host.hardware.folder(3) / file)
    async with host.running("pod-2") as plugin:
        await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-2.sock"))
        assert not plugin.hardware.known.is_set()
        assert await kubelet.prepare([old]) == answer
        assert await kubelet.unprepare([old]) == {old["metadata"]["uid"]: ""}
        stream = kubelet.health()
        await eventually(lambda: states(plugin) == {"neuron-device-3": "UNKNOWN"}, LONG_S)
        async with asyncio.timeout(LONG_S):
            listed = {device.device_name: device.health for device in await anext(stream)}
        assert {name for name, state in listed.items() if state != "HEALTHY"} == {"neuron-device-3"}
        assert not (await kubelet.prepare([new]))[new["metadata"]["uid"]].error
        await eventually(lambda: plugin.publish_state.result, LONG_S)
        assert api.objects("resourceslices") == [before]
        await stream.aclose()


async def test_claims_wait_for_the_first_reading(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_dra.node.hardware.reader.helper.__file__", str(host.root / "no helper"))
    claim = api.create(allocated_claim("new", "node-a", [0]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        error = (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error
        assert error.startswith("claim default/new: a read of /sys/class/neuron_device does not end: the kernel driver")
        assert "does not end" in plugin.why_not_ready()
        assert api.objects("resourceslices") == []


async def test_plugin_stops_in_time_while_a_read_hangs(host: PluginHost, kubelet: ScriptedKubelet) -> None:
    hang(host.hardware.folder(0) / "core_count")
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.hardware.facts.hanging, LONG_S)
    assert list(host.registry.iterdir()) == []
    assert list(host.data.glob("*.sock")) == []
    assert helpers() == []


def test_marker_file_identifies_simulated_hardware() -> None:
    assert hardware_module.SIMULATED == simulated_node.WRITTEN


def test_helper_imports_only_what_it_needs() -> None:
    """It must be small: its memory counts as the plugin's."""
    code = (
        "import sys; before = set(sys.modules); "
        f"exec(open({helper.__file__!r}).read(), {{'__name__': 'loaded'}}); "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    known = "__future__ _collections_abc _stat genericpath os os.path posixpath stat"
    assert loaded.stdout.split() == [name for name in known.split() if name in loaded.stdout.split()]
