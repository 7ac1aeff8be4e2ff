"""A folder at one claim's CDI path concerns that claim alone (31, mend 12)."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import cdi
from neuron_dra.core.claims import ClaimRef
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker
from tests.support.waiting import eventually


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(QUICK, prepare={"repair_s": 0.05})


def ref(claim: dict[str, Any]) -> ClaimRef:
    return ClaimRef("default", claim["metadata"]["name"], claim["metadata"]["uid"])


async def published(plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result, what="the first publish")


async def test_folder_at_a_cdi_path_concerns_one_claim(api: EmbeddedApi, host: PluginHost) -> None:
    blocked, other, new = (api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(3))
    async with host.running() as plugin:
        await published(plugin)
        for each in (blocked, other):
            await plugin.transactions.prepare(ref(each))
    path = host.cdi / cdi.file_name(ref(blocked).uid)
    path.unlink()
    path.mkdir()
    (host.cdi / cdi.file_name(ref(other).uid)).unlink()
    (host.cdi / cdi.file_name("uid-of-nothing")).mkdir()

    async with host.running() as plugin:
        await published(plugin)
        assert host.spec(ref(other).uid)["kind"], "the other claim's file is written again"
        await plugin.transactions.prepare(ref(new))
        with pytest.raises(IsADirectoryError):
            await plugin.transactions.prepare(ref(blocked))
        await plugin.transactions.unprepare(ref(other))
        path.rmdir()
        await eventually(path.is_file, what="the blocked claim's file")
        assert await plugin.transactions.prepare(ref(blocked))
    assert host.checkpointed == {ref(blocked).uid, ref(new).uid}
