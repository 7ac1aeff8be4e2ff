"""When an UltraServer's node publishes sets and cores beside its one device (32.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core import names
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.timing import PluginTiming
from tests.contract.sets_node import closing, server_with_a_node
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker
from tests.support.waiting import eventually

ON: dict[str, Any] = {"connected_sets": True}


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(
        QUICK,
        publish={"leaving": {"withdraw_s": 0.2}, "sets_check_s": (0.1, 0.3)},
        ultraserver={"first_answer_s": 0.2, "probe_s": (0.1, 0.3), "expected_probe_s": 0.1},
    )


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with server_with_a_node() as server:
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    async with closing(PluginHost(short_path, api.url, instance_type="trn2u.48xlarge", timing=timing)) as made:
        yield made


def kinds(api: EmbeddedApi) -> set[str]:
    """Return the published names without their last number."""
    items = api.objects("resourceslices")
    return {device["name"].rpartition("-")[0] for item in items for device in item["spec"].get("devices", [])}


def has_counters(api: EmbeddedApi) -> bool:
    return any(item["spec"].get("sharedCounters") for item in api.objects("resourceslices"))


ALONE = {"neuron-node"}
PARTS = ALONE | {f"neuron-set-{size}" for size in (1, 4, 8)} | {f"neuron-cores-{number}" for number in (1, 2, 3)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, PARTS),
        ({"ultraserver_parts": "on", "enable_ultraserver_operator": True}, PARTS),
        ({"enable_ultraserver_operator": True}, ALONE),
        ({"ultraserver_parts": "off"}, ALONE),
    ],
)
async def test_the_setting_and_the_controller_decide(
    api: EmbeddedApi, host: PluginHost, settings: dict[str, Any], expected: set[str]
) -> None:
    async with host.running(**ON, **settings):
        await eventually(lambda: (kinds(api), has_counters(api)) == (expected, expected == PARTS))


async def test_the_labels_of_a_controller_withdraw_the_parts(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await eventually(lambda: kinds(api) == PARTS)
        api.patch("nodes", "node-a", {"metadata": {"labels": {f"{names.ULTRASERVER_LABELS}mode": "1"}}})
        await eventually(lambda: kinds(api) == ALONE)
