"""A set whose links fail while the driver publishes: tainted, then withdrawn, and back after a while (32.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import divided
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.timing import PluginTiming
from tests.contract.sets_node import closing, prepare, server_with_a_node
from tests.support.plugin_host import PluginHost
from tests.support.published_slices import is_complete
from tests.support.timings import QUICK, quicker
from tests.support.waiting import always, eventually

ON: dict[str, Any] = {"connected_sets": True, "unhealthy_device_hold_seconds": 1}
EVERYTHING = 223
CROSSING = "neuron-set-6-4"  # devices 4 to 9
APART = "neuron-set-3-0"


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(QUICK, publish={"leaving": {"withdraw_s": 1.0}, "sets_check_s": (0.1, 0.3)})


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with server_with_a_node() as server:
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    async with closing(PluginHost(short_path, api.url, instance_type="inf2.48xlarge", timing=timing)) as made:
        yield made


def published(api: EmbeddedApi) -> dict[str, bool]:
    """Return for each published device whether it has the taint of a withdrawn one."""
    return {
        device["name"]: any(taint["key"] == divided.TAINT_KEY for taint in device.get("taints") or ())
        for item in api.objects("resourceslices")
        for device in item["spec"].get("devices", [])
    }


def writes(api: EmbeddedApi) -> int:
    asked = api.requests(resource="resourceslices")
    return len([e for e in asked if e.verb in ("create", "update", "delete") and "dryRun" not in e.query])


async def test_a_set_over_a_dead_link_is_tainted_then_removed_and_returns(api: EmbeddedApi, host: PluginHost) -> None:
    held = api.create(allocated_claim("held", "node-a", [CROSSING]))
    async with host.running(**ON) as plugin:
        await eventually(lambda: len(published(api)) == EVERYTHING)
        await prepare(plugin, held)
        host.hardware.break_link(8, 9)
        await eventually(lambda: published(api).get("neuron-set-2-8"), what="the taint")
        assert len(published(api)) == EVERYTHING  # what an unpublished device consumes would be given out again
        await eventually(lambda: "neuron-set-2-8" not in published(api), what="the withdrawal")
        assert published(api)[CROSSING]
        assert published(api)[APART] is False
        assert published(api)["neuron-set-12-0"] is False  # the ring is a line now, and still connected
        host.hardware.break_link(2, 3)
        await eventually(lambda: "neuron-set-12-0" not in published(api), what="the ring in two parts")
        host.hardware.repair_link(2, 3)
        host.hardware.repair_link(8, 9)
        await eventually(lambda: len(published(api)) == EVERYTHING, what="the sets again")
        await eventually(lambda: not any(published(api).values()), what="no taint")


async def test_a_flapping_link_causes_no_more_writes_than_a_dead_one(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**{**ON, "unhealthy_device_hold_seconds": 600}):
        await eventually(lambda: len(published(api)) == EVERYTHING)
        host.hardware.break_link(8, 9)
        await eventually(lambda: "neuron-set-2-8" not in published(api) and is_complete(api), what="the withdrawal")
        before = writes(api)
        assert before <= 20
        for _ in range(10):
            host.hardware.repair_link(8, 9)
            await always(lambda: writes(api) == before, 0.15)
            host.hardware.break_link(8, 9)
            await always(lambda: writes(api) == before, 0.15)
