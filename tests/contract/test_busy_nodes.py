"""PDS nodes while their kernel driver is busy: nobody can open their devices, and they are not unhealthy (4.03)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from neuron_dra.core import busy
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK
from tests.support.waiting import eventually


def device(item: dict[str, Any]) -> dict[str, Any]:
    [only] = item["spec"]["devices"]
    return dict(only)


def taints(item: dict[str, Any]) -> list[dict[str, str]]:
    """Return a device's taints without the time, which the API server adds."""
    return [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device(item).get("taints", [])]


async def test_devices_of_a_busy_node_are_tainted(api: EmbeddedApi, short_path: Path) -> None:
    host = PluginHost(short_path, api.url, instance_type="trn3.48xlarge", timing=QUICK, node_id=1)
    host.hardware.busy()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(host.close)
        plugin = await stack.enter_async_context(host.running())
        [item] = await api.until("resourceslices", lambda items: len(items) == 1)
        assert taints(item) == [dict(busy.TAINT)]
        assert "unhealthy" not in device(item)["attributes"]
        await eventually(lambda: {each.status.value for each in plugin.health.devices} == {"HEALTHY"}, what="health")
        host.hardware.busy(False)
        [item] = await api.until("resourceslices", lambda items: not taints(items[0]))
        assert device(item)["attributes"]["ultraserverNodeId"] == {"int": 1}
