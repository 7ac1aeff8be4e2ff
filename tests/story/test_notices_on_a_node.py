"""A container of a workload finds out why its pod ends, and when; on the node's plugin, with a scripted controller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.core import cdi, notice
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.notice import UNTOLD, Notice
from neuron_dra.core.ultraserver import Allocation, Phase
from neuron_dra.emulation.cdi_runtime import CdiRuntime
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.plugin import Plugin
from tests.story.test_reserved_node import BLOCK, SLOT, ours, reserve, tagged
from tests.story.test_reserved_node import api as api
from tests.story.test_reserved_node import host as host
from tests.story.test_reserved_node import timing as timing
from tests.support.faulty_files import FaultyFiles, disk_error
from tests.support.plugin_host import PluginHost
from tests.support.waiting import always, eventually

ENDS = Notice("CapacityBlockEnds", "2026-12-01T10:30:00Z")
LATER = Notice("CapacityBlockEnds", "2026-12-02T10:30:00Z")
MOVES = Notice("Migrating", "2026-11-26T12:00:00Z")


@contextlib.asynccontextmanager
async def prepared(
    api: EmbeddedApi, host: PluginHost, files: FaultyFiles | None = None, *, slot: Allocation = SLOT
) -> AsyncIterator[tuple[Plugin, ClaimRef]]:
    """The plugin of a node that is reserved, and a claim of the workload that it has prepared."""
    reserve(api, slot)
    async with host.running(files=files) as plugin:
        await tagged(api, slot)
        ref = ours(api)
        await plugin.transactions.prepare(ref)
        yield plugin, ref


def read(host: PluginHost, ref: ClaimRef) -> bytes | None:
    """Return the file as a container of the claim reads it."""
    name = f"{cdi.KIND}={ref.uid}-neuron-node-0"
    container = CdiRuntime([host.cdi]).create([name])
    path = Path(container.env[notice.VARIABLE])
    source = Path(container.mounts[str(path.parent)].host_path) / path.name
    return source.read_bytes() if source.exists() else None


async def test_container_is_told_of_the_end_and_of_its_extension(api: EmbeddedApi, host: PluginHost) -> None:
    async with prepared(api, host) as (_, ref):
        assert read(host, ref) is None
        for found in (ENDS, LATER, None):
            reserve(api, replace(SLOT, notice=found))
            wanted = None if found is None else found.encode()
            await eventually(lambda wanted=wanted: read(host, ref) == wanted, what=f"notice {found}")


async def test_claim_that_comes_late_is_told_too(api: EmbeddedApi, host: PluginHost) -> None:
    async with prepared(api, host, slot=replace(SLOT, notice=ENDS)) as (_, ref):
        await eventually(lambda: read(host, ref) == ENDS.encode())


@pytest.mark.parametrize("found", [MOVES, None])
async def test_notice_precedes_the_draining_tag(api: EmbeddedApi, host: PluginHost, found: Notice | None) -> None:
    """The controller evicts nothing before nodes show that they are closed."""
    files = FaultyFiles()
    async with prepared(api, host, files) as (_, ref):
        files.changes.clear()
        leaving = replace(SLOT, phase=Phase.DRAINING, notice=found)
        reserve(api, leaving)
        await tagged(api, leaving)
        assert read(host, ref) == (found or UNTOLD).encode()
        order = [each for each in files.changes if each in ("rename notice.json", "overwrite checkpoint")]
        assert order == ["rename notice.json", "overwrite checkpoint"]


async def test_full_disk_does_not_keep_a_node_open(api: EmbeddedApi, host: PluginHost) -> None:
    """The notice comes when the disk takes it."""
    files = FaultyFiles()
    async with prepared(api, host, files) as (_, ref):
        files.fail(1, disk_error(28), times=None)
        leaving = replace(SLOT, phase=Phase.DRAINING, notice=MOVES)
        reserve(api, leaving)
        await tagged(api, leaving)
        assert read(host, ref) is None
        files.heal()
        await eventually(lambda: read(host, ref) == MOVES.encode())


async def test_plugin_that_starts_late_tells_and_takes_back(api: EmbeddedApi, host: PluginHost) -> None:
    """The notice was due, and later withdrawn, while no plugin ran."""
    async with prepared(api, host) as (_, ref):
        pass
    for found in (ENDS, None):
        reserve(api, replace(SLOT, notice=found))
        async with host.running():
            wanted = None if found is None else found.encode()
            await eventually(lambda wanted=wanted: read(host, ref) == wanted, what=f"notice {found}")


async def test_notice_stays_while_its_object_is_gone(api: EmbeddedApi, host: PluginHost) -> None:
    async with prepared(api, host, slot=replace(SLOT, notice=ENDS)) as (plugin, ref):
        await eventually(lambda: read(host, ref) == ENDS.encode())
        api.delete("neuronultraservers", f"us-{BLOCK}", "neuron-dra-driver")
        await always(lambda: read(host, ref) == ENDS.encode(), 0.4, "the notice")
        await plugin.transactions.unprepare(ref)
        assert list((host.cdi / notice.FOLDER).iterdir()) == []
