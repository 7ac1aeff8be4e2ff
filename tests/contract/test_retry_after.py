"""A long Retry-After does not silence a device that becomes unhealthy (31, mend 6)."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, with_timing
from tests.support.waiting import eventually

LONG_S = 30.0


@pytest.fixture
def timing() -> PluginTiming:
    return QUICK


def tainted(api: EmbeddedApi) -> list[str]:
    found: list[dict[str, Any]] = [d for item in api.objects("resourceslices") for d in item["spec"].get("devices", [])]
    return [device["name"] for device in found if device.get("taints")]


async def settled(plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result, LONG_S, "the first publish")


@with_timing(QUICK, publish={"longest_retry_after_s": 0.05})
async def test_retry_after_of_an_hour_is_capped(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(plugin)
        fault = api.faults.add(InjectedFault(verb="update", resource="resourceslices", status=429, retry_after=3600))
        host.hardware.add_ecc(5)
        await eventually(lambda: tainted(api) == ["neuron-device-5"], LONG_S, "the taint")
        assert fault.hits == 1


@with_timing(QUICK, publish={"longest_retry_after_s": 600.0})
async def test_sick_device_ends_the_wait_after_a_failure(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(plugin)
        fault = api.faults.add(InjectedFault(verb="update", resource="resourceslices", status=503, retry_after=600))
        host.hardware.add_ecc(5)
        await eventually(lambda: plugin.publish_state.error, LONG_S, "the failure")
        host.hardware.add_ecc(7)
        await eventually(lambda: tainted(api) == ["neuron-device-5", "neuron-device-7"], LONG_S, "both taints")
        assert fault.hits == 1
