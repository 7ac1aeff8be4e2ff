"""Detection of a live device plugin: a socket that accepts connections, or resources in the Node's status."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from neuron_dra.node.publish import coexistence
from neuron_dra.settings import PluginSettings
from tests.support.pod_resources import PodResources


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nd") as name:  # short: a socket's path has at most 107 bytes
        yield Path(name)


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    return server


@pytest.mark.parametrize("name", ["neuron-devplugin.sock", "neuroncore-devplugin.sock", "neuron.sock"])
def test_live_device_plugin_socket_is_found(folder: Path, name: str) -> None:
    with listening(folder / name):
        assert coexistence.live_socket(folder) == name


def test_stuck_device_plugin_is_alive(folder: Path) -> None:
    """31.5: it accepts no connection, so its queue fills up: EAGAIN read as absence."""
    path = folder / "neuron-devplugin.sock"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        server.bind(str(path))
        server.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        waiting.connect(str(path))
        assert coexistence.live_socket(folder) == path.name


def test_unserved_socket_is_a_leftover(folder: Path) -> None:
    listening(folder / "neuron-devplugin.sock").close()
    assert (folder / "neuron-devplugin.sock").is_socket()
    assert coexistence.live_socket(folder) is None


def test_other_sockets_and_files_are_ignored(folder: Path) -> None:
    (folder / "neuron-devplugin.sock").write_text("")
    with listening(folder / "kubelet.sock"), listening(folder / "nvidia.sock"):
        assert coexistence.live_socket(folder) is None


def test_missing_folder_has_no_device_plugin(folder: Path) -> None:
    assert coexistence.live_socket(folder / "missing") is None


@pytest.mark.parametrize(
    ("allocatable", "offer"),
    [
        ({"aws.amazon.com/neuron": "16"}, "aws.amazon.com/neuron: 16"),
        ({"aws.amazon.com/neuroncore": "2"}, "aws.amazon.com/neuroncore: 2"),
        ({"aws.amazon.com/neurondevice": "1"}, "aws.amazon.com/neurondevice: 1"),
        ({"aws.amazon.com/neuron": "0", "cpu": "8"}, None),
        ({"aws.amazon.com/neuron": "0", "aws.amazon.com/neuroncore": "4"}, "aws.amazon.com/neuroncore: 4"),
        ({"cpu": "8", "vpc.amazonaws.com/efa": "16"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_zero_resources_are_no_evidence(allocatable: Any, offer: str | None) -> None:
    assert coexistence.advertised({"status": {"allocatable": allocatable}}) == offer


@pytest.mark.parametrize("node", [None, {}, {"status": None}, {"status": {}}])
def test_node_without_resources_offers_nothing(node: Any) -> None:
    assert coexistence.advertised(node) is None


def test_message_names_evidence_and_remedy() -> None:
    assert coexistence.explanation(None, None, "a") == ""
    both = coexistence.explanation("neuron.sock", "aws.amazon.com/neuron: 16", "a")
    assert "its socket neuron.sock answers and the Node offers aws.amazon.com/neuron: 16" in both
    assert "node a" in both
    assert "--install-neuron-plugin=false" in both


# What was seen over time


class Node:
    """The kubelet's folders of a node, and its pods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.changes = 0
        self.pods: list[Any] = []
        settings = PluginSettings(
            node_name="a",
            kubelet_device_plugins_directory_path=str(folder),
            kubelet_pod_resources_socket=str(folder / "pod-resources.sock"),
        )
        self.watch = coexistence.DevicePluginWatch(settings, self.changed, clock=lambda: self.now)
        self.kubelet = PodResources(self, folder / "pod-resources.sock")

    def changed(self) -> None:
        self.changes += 1

    def prepared(self, namespace: str, name: str) -> None:
        return None

    def add(self, name: str, given: dict[str, list[str]]) -> None:
        self.pods.append({"metadata": {"name": name, "namespace": "ml"}, "spec": {"containers": [{"name": "main"}]}})
        self.kubelet.of_plugin[name] = given

    async def why(self, offer: str = "0") -> str:
        await self.watch.look()
        return self.watch.why({"status": {"allocatable": {"aws.amazon.com/neuron": offer}}})


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


async def test_pod_of_a_device_plugin_that_is_gone_closes_the_node(node: Node) -> None:
    async with node.kubelet:
        node.add("old", {"aws.amazon.com/neuroncore": ["7"]})
        assert await node.why() == (
            "pod ml/old (aws.amazon.com/neuroncore) on node a has devices of a Neuron device plugin, which may be "
            "those of any claim; wait until it has ended, or delete it"
        )
        node.pods.clear()
        assert (await node.why(), node.changes) == ("", 2)


async def test_pods_without_ids_of_a_neuron_device_plugin_do_not_count(node: Node) -> None:
    """Kubelets before 1.34 list pods that have ended, without ids."""
    async with node.kubelet:
        node.add("ended", {})
        node.add("ended-too", {"aws.amazon.com/neuron": []})
        node.add("network", {"vpc.amazonaws.com/efa": ["0"]})
        assert (await node.why(), node.watch.unlisted) == ("", "")


async def test_missing_pod_resources_socket_is_said(node: Node) -> None:
    assert await node.why() == ""
    assert node.watch.unlisted == (
        f"{node.folder}/pod-resources.sock: there is no such socket; is its folder mounted from the host?"
    )
    async with node.kubelet:
        await node.why()
    assert node.watch.unlisted == ""


async def test_kubelet_that_does_not_answer_frees_no_node(node: Node) -> None:
    async with node.kubelet:
        node.add("old", {"aws.amazon.com/neuron": ["0"]})
        before = await node.why()
        node.kubelet.error = grpc.StatusCode.UNAVAILABLE
        assert (await node.why(), "ml/old" in before) == (before, True)
        assert node.watch.unlisted == f"{node.folder}/pod-resources.sock: UNAVAILABLE: as the test says"


async def test_device_plugin_counts_for_six_minutes_after_it_was_alive(node: Node) -> None:
    """One that fails is started again after five minutes, and is then alive for a moment."""
    with listening(node.folder / "neuron-devplugin.sock"):
        assert "its socket neuron-devplugin.sock answers" in await node.why()
    (node.folder / "neuron-devplugin.sock").unlink()
    node.now += 360.0
    assert "(neuron-devplugin.sock: it was, in the last six minutes, and may be started again)" in await node.why()
    node.now += 1.0
    assert await node.why() == ""
    assert node.changes == 3  # it answers; not any more; its time is over


async def test_offer_counts_for_six_minutes_while_a_socket_is_left(node: Node) -> None:
    listening(node.folder / "neuron-devplugin.sock").close()
    assert "the Node offers aws.amazon.com/neuron: 16" in await node.why("16")
    node.now += 300.0
    assert "it was, in the last six minutes" in await node.why()
    node.now += 61.0
    assert await node.why() == ""
