"""Strange, late, huge and undecodable replies of the kubelet's pod-resources API: the double, and the plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from neuron_dra.core.in_use import ListedPod
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from neuron_dra.node.prepare import pod_resources
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import STRANGE_LISTS, UNDECODABLE, Devices, Pod, PodResources, huge_list
from tests.support.timings import quicker
from tests.support.waiting import always, eventually

MIB: Final = 2**20
LIMIT_BYTES: Final = 16 * MIB  # of the plugin's client, as of the kubelet's own


class Runs:
    """A scripted node with one pod."""

    def __init__(self) -> None:
        self.pods: list[Pod] = [
            {"metadata": {"name": "job", "namespace": "default"}, "spec": {"containers": [{"name": "main"}]}}
        ]

    def prepared(self, namespace: str, name: str) -> Devices | None:
        return None


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
async def kubelet(host: PluginHost, runs: Runs) -> AsyncIterator[PodResources]:
    async with PodResources(runs, host.pod_resources) as api:
        yield api


async def raw_list(socket: Path) -> bytes:
    """Return the message as it is on the wire."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        call: Any = channel.unary_unary("/v1.PodResourcesLister/List")
        return bytes(await call(b"", timeout=60))


# The double


@pytest.mark.parametrize("name", STRANGE_LISTS)
async def test_double_sends_each_strange_list(host: PluginHost, kubelet: PodResources, name: str) -> None:
    kubelet.body = STRANGE_LISTS[name]
    assert await raw_list(host.pod_resources) == STRANGE_LISTS[name]
    kubelet.body = None
    assert [pod.name for pod in await pod_resources.listed(host.pod_resources)] == ["job"]
    assert kubelet.asked == 2


async def test_double_sends_a_late_list_of_its_time(host: PluginHost, runs: Runs, kubelet: PodResources) -> None:
    kubelet.hold()
    late = asyncio.create_task(pod_resources.listed(host.pod_resources, 60.0))
    await eventually(lambda: kubelet.asked)
    runs.pods.clear()
    await always(lambda: not late.done(), 0.2, "the list is held")
    kubelet.release()
    assert [pod.name for pod in await late] == ["job"]
    assert await pod_resources.listed(host.pod_resources) == ()


async def test_double_sends_a_huge_list(host: PluginHost, kubelet: PodResources) -> None:
    kubelet.body = huge_list(2 * MIB)
    message = await raw_list(host.pod_resources)
    assert 2 * MIB <= len(message) < 3 * MIB
    assert {len(pod.containers) for pod in pb.ListPodResourcesResponse.FromString(message).pod_resources} == {6000}


# The plugin's reader


async def test_late_list_is_a_connection_error(host: PluginHost, kubelet: PodResources) -> None:
    kubelet.hold()
    with pytest.raises(ConnectionError, match="DEADLINE_EXCEEDED"):
        await pod_resources.listed(host.pod_resources, 0.2)


async def test_list_beyond_the_limit_is_a_connection_error(host: PluginHost, kubelet: PodResources) -> None:
    kubelet.body = huge_list(LIMIT_BYTES)
    with pytest.raises(ConnectionError, match="RESOURCE_EXHAUSTED"):
        await pod_resources.listed(host.pod_resources)


@pytest.mark.parametrize(
    ("name", "pods"),
    [
        ("no pods", ()),
        ("empty pods", (ListedPod("", "", (), frozenset()),) * 3),
        ("unknown fields", (ListedPod("default", "theirs", (), frozenset({"vendor.example.com/fpga"})),)),
    ],
)
async def test_strange_list_is_read(host: PluginHost, kubelet: PodResources, name: str, pods: Any) -> None:
    kubelet.body = STRANGE_LISTS[name]
    assert await pod_resources.listed(host.pod_resources) == pods


def test_every_strange_list_is_read_or_undecodable() -> None:
    assert {"no pods", "empty pods", "unknown fields"} | set(UNDECODABLE) == set(STRANGE_LISTS)


@pytest.mark.parametrize("name", UNDECODABLE)
async def test_undecodable_list_is_a_connection_error(host: PluginHost, kubelet: PodResources, name: str) -> None:
    kubelet.body = STRANGE_LISTS[name]
    with pytest.raises(ConnectionError):
        await pod_resources.listed(host.pod_resources)


@pytest.mark.parametrize("name", STRANGE_LISTS)
async def test_strange_list_does_not_end_the_plugin(host: PluginHost, kubelet: PodResources, name: str) -> None:
    """`running` raises the error that ends the plugin."""
    kubelet.body = STRANGE_LISTS[name]
    host.timing = quicker(host.timing, publish={"device_plugin_s": 0.05})
    socket = host.settings().registration_socket
    async with host.running():
        await eventually(lambda: kubelet.asked >= 3 or not socket.exists(), what="three looks at the kubelet's list")
