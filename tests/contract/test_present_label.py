"""The label neuron.amazonaws.com/present of AWS's device plugin, if the setting asks for it (32.9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.api.objects import node_object
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.node.timing import PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker
from tests.support.waiting import always, eventually

LABEL = "neuron.amazonaws.com/present"


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(QUICK, publish={"label_retry_s": 0.1})


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a", labels={"a": "b"}))
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    made = PluginHost(short_path, api.url, instance_type="trn2.48xlarge", timing=timing)
    yield made
    await made.close()


def labels(api: EmbeddedApi) -> dict[str, str]:
    [node] = api.objects("nodes")
    return dict(node["metadata"]["labels"])


async def test_a_node_that_publishes_gets_the_label_once(api: EmbeddedApi, host: PluginHost) -> None:
    before = labels(api)
    async with host.running(present_label=True):
        await eventually(lambda: labels(api) == {**before, LABEL: "true"})
    async with host.running(present_label=True) as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
    assert len(api.requests(verb="patch", resource="nodes")) == 1


async def test_without_the_setting_no_node_is_written(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        await always(lambda: LABEL not in labels(api), 0.3)
    assert api.requests(verb="patch", resource="nodes") == []


async def test_a_refused_label_is_tried_again_and_disturbs_nothing(api: EmbeddedApi, host: PluginHost) -> None:
    refused = api.faults.add(InjectedFault(verb="patch", resource="nodes", status=403, times=3))
    async with host.running(present_label=True) as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        await eventually(lambda: labels(api).get(LABEL) == "true")
        assert (refused.hits, plugin.publish_state.error) == (3, "")
