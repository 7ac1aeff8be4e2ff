"""One node whose plugin publishes connected sets, and what the API server has of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from neuron_dra.api import objects
from neuron_dra.api.objects import node_object
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.plugin import Plugin
from tests.support.plugin_host import PluginHost


@contextlib.asynccontextmanager
async def server_with_a_node() -> AsyncIterator[EmbeddedApi]:
    """An API server with a Node and the DeviceClasses, without Kubernetes' controllers."""
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a"))
        for each in objects.DEVICE_CLASSES:
            server.create(each)
        yield server


@contextlib.asynccontextmanager
async def closing(host: PluginHost) -> AsyncIterator[PluginHost]:
    """Close the node of a plugin at the end."""
    try:
        yield host
    finally:
        await host.close()


async def prepare(plugin: Plugin, claim: Obj) -> None:
    """Prepare a claim that the API server has."""
    meta = claim["metadata"]
    await plugin.transactions.prepare(ClaimRef(meta["namespace"], meta["name"], meta["uid"]))


def whole_pool(api: EmbeddedApi) -> dict[str, dict[str, Any]]:
    """Return the devices of the newest generation by name, none if it is not complete."""
    items = api.objects("resourceslices")
    newest = max((item["spec"]["pool"]["generation"] for item in items), default=0)
    whole = [item for item in items if item["spec"]["pool"]["generation"] == newest]
    if not whole or len(whole) != whole[0]["spec"]["pool"]["resourceSliceCount"]:
        return {}
    return {device["name"]: device for item in whole for device in item["spec"].get("devices", [])}
