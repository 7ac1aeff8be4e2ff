"""The event loop makes no call to the disk (31, mend 9): a slow one would stop health, watches and sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.api import objects
from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.core.checkpoint import SLOTS
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.support.plugin_host import PluginHost
from tests.support.thread_checking_files import ThreadCheckingFiles
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"


@pytest.fixture(autouse=True)
def quick_checks(quick: None) -> None:
    """Read hardware, and gather changes, within fractions of a second."""


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a"))
        for each in objects.DEVICE_CLASSES:
            server.create(each)
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path) -> AsyncIterator[PluginHost]:
    made = PluginHost(short_path, api.url, instance_type="inf2.24xlarge")
    yield made
    await made.close()


async def test_event_loop_calls_no_file(api: EmbeddedApi, host: PluginHost) -> None:
    files = ThreadCheckingFiles()
    async with (
        ScriptedKubelet(host.registry) as kubelet,
        host.running("pod-1", files=files, connected_sets=True) as plugin,
    ):
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result, what="the first publish")
        await eventually(lambda: (host.data / "connected-sets").exists(), what="the marker of connected sets")
        claim = api.create(allocated_claim("job", "node-a", [0]))
        uid = claim["metadata"]["uid"]
        assert not (await kubelet.prepare([claim]))[uid].error
        assert await kubelet.unprepare([claim]) == {uid: ""}
        assert plugin.publisher_lock.holding
    assert files.calls > 10
    # A prepare asks for the checkpoint's stamp, which is in the kernel's memory, to save a switch of threads.
    assert {call for call, _ in files.in_the_loop} <= {"stamp"}
    assert {Path(path).name for _, path in files.in_the_loop} <= set(SLOTS)


async def test_end_of_connected_sets_calls_no_file_in_the_loop(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running("pod-1", connected_sets=True):
        await eventually(lambda: (host.data / "connected-sets").exists(), what="the marker of connected sets")
    files = ThreadCheckingFiles()
    async with host.running("pod-1", files=files):
        await eventually(lambda: not (host.data / "connected-sets").exists(), what="the end of connected sets")
    assert files.in_the_loop == []
