"""Detection of a live device plugin: a socket that accepts connections, or resources in the Node's status."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.node.publish import coexistence


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
