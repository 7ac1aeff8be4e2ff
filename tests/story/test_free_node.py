"""The invariant at the end of each story (4.01)."""

from __future__ import annotations

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import names
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.support.free_node import ends_free
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import quicker

PUBLISHES = 20


async def prepared(api: EmbeddedApi, host: PluginHost, kubelet: ScriptedKubelet) -> None:
    claim = api.create(allocated_claim("job", host.node_name, range(16), of_its_pod=True))
    await kubelet.registered(names.DRIVER)
    assert not (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error


async def test_claim_that_the_kubelet_knows_is_let_go(api: EmbeddedApi, host: PluginHost) -> None:
    async with ScriptedKubelet(host.registry) as kubelet, host.running():
        await prepared(api, host, kubelet)
        assert host.checkpointed == set(kubelet.remembered)
    assert len(ScriptedKubelet(host.registry).remembered) == 1  # as after a restart of the kubelet
    await ends_free(host)
    assert (host.checkpointed, ScriptedKubelet(host.registry).remembered) == (set(), {})


async def test_kubelet_forgets_a_claim_with_its_unprepare(api: EmbeddedApi, host: PluginHost) -> None:
    async with ScriptedKubelet(host.registry) as kubelet, host.running():
        await prepared(api, host, kubelet)
        assert set((await kubelet.unprepare_all()).values()) == {""}
        assert (kubelet.remembered, await kubelet.unprepare_all()) == ({}, {})


async def test_claim_that_nobody_knows_breaks_the_invariant(api: EmbeddedApi, host: PluginHost) -> None:
    async with ScriptedKubelet(host.registry) as kubelet, host.running():
        await prepared(api, host, kubelet)
        remembered = dict(kubelet.remembered)
        kubelet.remembered.clear()
    with pytest.raises(AssertionError, match="node-a holds claims that no pod and no kubelet has"):
        await ends_free(host)
    ScriptedKubelet(host.registry).remembered.update(remembered)  # for the check at the end of this story


async def test_faulty_hardware_does_not_break_the_invariant(host: PluginHost) -> None:
    host.hardware.break_link(0, 1)
    await ends_free(host)


@pytest.mark.unchecked_end("the test checks it")
async def test_pod_deleted_before_it_starts_leaves_nothing(api: EmbeddedApi, host: PluginHost) -> None:
    """Its volumes attach slowly, so a new node has its allocation alone, which proves nothing."""
    host.timing = quicker(host.timing, publish={"gather_s": 0.02})
    api.create(allocated_claim("first", host.node_name, range(16), of_its_pod=True))
    async with host.running() as plugin:
        for _ in range(PUBLISHES):
            await published_again(plugin)
    api.delete("resourceclaims", "first", "default")
    await ends_free(host)
