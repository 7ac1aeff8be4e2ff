"""An unhealthy device across restarts of the plugin's process."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.support.plugin_host import PluginHost

START_S = 120.0  # a process on a loaded machine, and a reading of the hardware


async def published(api: EmbeddedApi, sick: dict[str, Any]) -> None:
    """Wait until the slice has all 16 devices, of which these have these taints."""

    def is_so(items: list[dict[str, Any]]) -> bool:
        devices = [device for item in items for device in item["spec"].get("devices", [])]
        found = {d["name"]: [t["value"] for t in d["taints"]] for d in devices if "taints" in d}
        return len(devices) == 16 and found == sick

    await api.until("resourceslices", is_so, timeout_s=START_S)


@pytest.mark.contract("T1")
@pytest.mark.contract("H7")
async def test_faults_survive_a_crash(host: PluginHost, api: EmbeddedApi) -> None:
    host.hardware.set_unhealthy_components(5, "link_efa")
    sick = {"neuron-device-5": ["link_efa"]}
    async with ScriptedKubelet(host.registry) as kubelet:
        process = await host.start_process("one", unhealthy_device_hold_seconds=1)
        await kubelet.registered("neuron.aws.com", START_S)
        await published(api, sick)
        held, other = (api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in (0, 5))
        assert not (await kubelet.prepare([held]))[held["metadata"]["uid"]].error
        refused = (await kubelet.prepare([other]))[other["metadata"]["uid"]]
        assert refused.error.startswith("claim default/job-5: neuron-device-5 is unhealthy: component link_efa")
        await process.kill()
        host.hardware.set_unhealthy_components(5, "")

        await host.start_process("two", unhealthy_device_hold_seconds=1)
        await kubelet.registered("neuron.aws.com", START_S, endpoint=str(host.settings("two").dra_socket))
        stream = kubelet.health()
        while "link_efa" not in (await anext(stream))[5].message:
            pass
        await published(api, sick)
        await published(api, {})
        while (await anext(stream))[5].health != "HEALTHY":
            pass
        await stream.aclose()
        assert not (await kubelet.prepare([other]))[other["metadata"]["uid"]].error
