"""Steps of tests with a plugin process: start, publish, prepare, unprepare."""

from __future__ import annotations

import asyncio
from typing import Any

from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.support.plugin_host import PluginHost, PluginProcess

DRIVER = "neuron.aws.com"
NAME = "node-a-neuron.aws.com-00"
START_S = 120.0  # a process on a loaded machine


async def started(host: PluginHost, kubelet: ScriptedKubelet, pod_uid: str = "", **more: Any) -> PluginProcess:
    """Start a plugin and return when the kubelet has registered it."""
    process = await host.start_process(pod_uid, **more)
    await accepted(host, kubelet, process, pod_uid)
    return process


async def accepted(host: PluginHost, kubelet: ScriptedKubelet, process: PluginProcess, pod_uid: str) -> None:
    """Return when the kubelet has registered this plugin."""
    endpoint = str(host.settings(pod_uid).dra_socket)
    registered = asyncio.create_task(kubelet.registered(DRIVER, START_S, endpoint=endpoint))
    ended = asyncio.create_task(process.ended(START_S))
    await asyncio.wait([registered, ended], return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not registered.done():
        registered.cancel()
        raise AssertionError(f"the plugin ended before it was registered:\n{process.log}")
    registered.result()


async def published(api: EmbeddedApi, count: int = 16) -> dict[str, Any]:
    """Wait until the node has one slice with `count` devices, and return it."""
    (found,) = await api.until(
        "resourceslices",
        lambda items: len(items) == 1 and len(items[0]["spec"].get("devices", [])) == count,
        timeout_s=START_S,
    )
    return found


async def prepared(kubelet: ScriptedKubelet, claim: dict[str, Any]) -> Any:
    """Prepare one claim, which must succeed."""
    answer = (await kubelet.prepare([claim]))[claim["metadata"]["uid"]]
    assert not answer.error
    return answer


async def refused(kubelet: ScriptedKubelet, claim: dict[str, Any]) -> str:
    """Prepare one claim, which must fail, and return the reason."""
    error: str = (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error
    assert error
    return error


async def unprepared(kubelet: ScriptedKubelet, claim: dict[str, Any]) -> None:
    """Unprepare one claim, which must succeed."""
    assert await kubelet.unprepare([claim]) == {claim["metadata"]["uid"]: ""}


def slice_writes(api: EmbeddedApi) -> list[str]:
    """Return the verbs of all writes of slices so far."""
    return [e.verb for e in api.requests(resource="resourceslices") if e.verb in ("create", "update", "delete")]
