"""The kernel driver loads, leaves and loads again beside a plugin process, with pods that run and that wait (4.03)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_node import INITSTATE
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"
LONG_S = 60


def is_live(root: Path) -> bool:
    try:
        return (root / INITSTATE).read_text() == "live\n"
    except FileNotFoundError:
        return False


async def fake_node(root: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start `neuron-dra fake-node` on a node."""
    command = (sys.executable, "-m", "neuron_dra.cli", "fake-node", "--root", str(root), *arguments)
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)


async def test_pods_wait_for_the_driver_and_run_through_its_reload(host: PluginHost, api: EmbeddedApi) -> None:
    """No claim is rejected that a wait serves, no part of the devices is published, and none is unhealthy."""
    root = host.root / "host"
    early, late = (api.create(allocated_claim(name, "node-a", [i])) for name, i in (("early", 12), ("late", 8)))
    assert await (await fake_node(root, "--unload")).wait() == 0
    async with ScriptedKubelet(host.registry) as kubelet:
        process = await host.start_process("pod-1")
        await kubelet.registered(DRIVER)
        waiting = asyncio.create_task(kubelet.prepare([early]))
        load = await fake_node(root, "--loading", "--probe-seconds", "0.1", "--silent", "4:2")
        assert not (await waiting)[early["metadata"]["uid"]].error
        assert await load.wait() == 0
        before = await api.until("resourceslices", lambda items: len(items) == 1)
        assert [len(each["spec"]["devices"]) for each in before] == [16]
        assert [each["spec"]["pool"]["generation"] for each in before] == [1]

        load = await fake_node(root, "--loading", "--probe-seconds", "0.1")
        await eventually(lambda: not is_live(root), LONG_S, "the unload")
        waiting = asyncio.create_task(kubelet.prepare([late]))
        assert await kubelet.unprepare([early]) == {early["metadata"]["uid"]: ""}
        assert not (await waiting)[late["metadata"]["uid"]].error
        assert await load.wait() == 0
        assert api.objects("resourceslices") == before
        assert not [each for each in api.objects("events") if "Unhealthy" in each["reason"]]
        assert await process.stop() == 0
