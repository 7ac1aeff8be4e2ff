"""One strange reply at a time: each verb and resource that the plugin requests, in each situation (31, net 1).

A fault on everything at once hides most of the calls: the first one that fails keeps the others from being made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from neuron_dra.api import objects
from neuron_dra.api.objects import node_object
from neuron_dra.emulation.embedded_api import STRANGE, EmbeddedApi
from neuron_dra.node.plugin import Plugin
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker
from tests.support.waiting import eventually

LONG_S: Final = 12.0
NAME: Final = "node-a-neuron.aws.com-00"


SWIFT: Final = quicker(
    QUICK,
    client={"watch": {"retry_s": (0.01, 0.02), "short_s": 0.01}},
    publish={"retry_s": (0.01, 0.02), "sets_check_s": (0.05, 720.0)},
    version_retry_s=(0.01, 0.02),
)


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a"))
        for each in objects.DEVICE_CLASSES:
            server.create(each)
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path) -> AsyncIterator[PluginHost]:
    made = PluginHost(short_path, api.url, instance_type="inf2.24xlarge", timing=SWIFT)
    yield made
    await made.close()


def devices(api: EmbeddedApi) -> dict[str, dict[str, Any]]:
    """Return the devices of the newest generation."""
    items = [item for item in api.objects("resourceslices") if item["spec"]["driver"] == "neuron.aws.com"]
    newest = max((item["spec"]["pool"]["generation"] for item in items), default=0)
    current = [item for item in items if item["spec"]["pool"]["generation"] == newest]
    return {device["name"]: device for item in current for device in item["spec"].get("devices", [])}


async def settled(api: EmbeddedApi, plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result and not plugin.publish_state.error, LONG_S, "a publish")
    await eventually(lambda: len(devices(api)) >= 6, LONG_S, "the devices")


class Broken:
    """One fault for each strange reply to one verb and resource."""

    def __init__(self, api: EmbeddedApi, verb: str, resource: str) -> None:
        # A deletion that the server reports as done, and has not done, shows at the next comparison.
        believed = {"success"} if verb == "delete" else set()
        chosen = [strange for name, strange in STRANGE.items() if name not in believed]
        self._api = api
        self._faults = [strange.fault(verb=verb, resource=resource) for strange in chosen]
        # An Event that seems to be posted is not posted again.
        self._expected = 1 if resource == "events" else len(chosen)

    def begin(self) -> None:
        for fault in self._faults:
            self._api.faults.add(fault)

    async def used(self) -> None:
        """Return when the plugin has received every reply."""
        await eventually(lambda: sum(fault.hits for fault in self._faults) >= self._expected, LONG_S, "every reply")


# Situations. Each begins the faults, and returns when the plugin has received them and done what it should.


async def start(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    broken.begin()
    async with host.running() as plugin:
        await broken.used()
        await settled(api, plugin)


async def start_with_a_finding(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    host.hardware.break_link(0, 1)
    await start(api, host, broken)


async def idle(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    """The watches end, the server has forgotten their versions, and the Node changes afterwards."""
    async with host.running() as plugin:
        await settled(api, plugin)
        await api.refuse_connections()
        api.patch("nodes", "node-a", {"metadata": {"annotations": {"example.com/later": "yes"}}})
        api.compact()
        broken.begin()
        await api.resume()
        await broken.used()
        api.patch("nodes", "node-a", {"metadata": {"labels": {"example.com/new": "yes"}}})
        await eventually(lambda: plugin.node.labels.get("example.com/new"), LONG_S, "the label")
        await settled(api, plugin)


async def sick_device(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        broken.begin()
        host.hardware.add_ecc(1)
        await broken.used()
        await eventually(lambda: devices(api)["neuron-device-1"].get("taints"), LONG_S, "the taint")


async def sets(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    broken.begin()
    async with host.running(connected_sets=True):
        await broken.used()
        await eventually(lambda: any("set" in name for name in devices(api)), LONG_S, "connected sets")


async def rival(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    """Another program's slice has the name of ours."""
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": NAME},
        "spec": {
            "driver": "other.example.com",
            "nodeName": "node-a",
            "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "other"}],
        },
    }
    before = api.create(theirs)
    broken.begin()
    async with host.running() as plugin:
        await broken.used()
        await settled(api, plugin)
    assert api.get("resourceslices", NAME) == before


async def another_driver(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    """Another driver left a CDI file, so its claims are adopted before the first publish."""
    host.cdi.mkdir()
    (host.cdi / "k8s.neuron.aws.com-claim_uid-old.yaml").write_text("")
    broken.begin()
    async with host.running() as plugin:
        await broken.used()
        await settled(api, plugin)


async def second_slice(api: EmbeddedApi, host: PluginHost, broken: Broken) -> None:
    """An earlier release of this driver left a slice that has to go."""
    async with host.running() as plugin:
        await settled(api, plugin)
        extra = api.get("resourceslices", NAME)
        extra["metadata"] = {"name": "node-a-neuron.aws.com-07"}
        extra["spec"]["pool"] = {**extra["spec"]["pool"], "generation": 1}
        broken.begin()
        api.create(extra)
        await broken.used()
        await eventually(lambda: len(api.objects("resourceslices")) == 1, LONG_S, "one slice")


Situation = Callable[[EmbeddedApi, PluginHost, Broken], Awaitable[None]]

CALLS: Final[Mapping[str, tuple[Situation, str, str]]] = {
    "start, list nodes": (start, "list", "nodes"),
    "start, watch nodes": (start, "watch", "nodes"),
    "start, list slices": (start, "list", "resourceslices"),
    "start, watch slices": (start, "watch", "resourceslices"),
    "start, create slice": (start, "create", "resourceslices"),
    "start, get version": (start, "get", "/version"),
    "start, get groups": (start, "get", "/apis"),
    "finding, create Event": (start_with_a_finding, "create", "events"),
    "idle, list nodes": (idle, "list", "nodes"),
    "idle, watch nodes": (idle, "watch", "nodes"),
    "idle, list slices": (idle, "list", "resourceslices"),
    "idle, watch slices": (idle, "watch", "resourceslices"),
    "sick, dry run": (sick_device, "create", "resourceslices"),
    "sick, update slice": (sick_device, "update", "resourceslices"),
    "sick, create Event": (sick_device, "create", "events"),
    "sets, get class": (sets, "get", "deviceclasses"),
    "sets, create slice": (sets, "create", "resourceslices"),
    "rival, get slice": (rival, "get", "resourceslices"),
    "rival, create slice": (rival, "create", "resourceslices"),
    "another driver, list claims": (another_driver, "list", "resourceclaims"),
    "second slice, delete": (second_slice, "delete", "resourceslices"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_each_strange_reply_costs_one_retry(api: EmbeddedApi, host: PluginHost, call: str) -> None:
    """`running` raises the error that ends the plugin."""
    situation, verb, resource = CALLS[call]
    await situation(api, host, Broken(api, verb, resource))
