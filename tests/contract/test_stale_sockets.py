"""Sockets that killed plugins left behind are removed, and no others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from neuron_dra.core.names import DRIVER
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node.endpoints.stale_sockets import StaleSockets
from neuron_dra.node.files import Files
from neuron_dra.node.timing import DEFAULT_TIMING
from neuron_dra.settings import PluginSettings
from tests.support.plugin_host import PluginHost
from tests.support.timings import quicker
from tests.support.waiting import eventually


@pytest.fixture
def settings(short_path: Path) -> PluginSettings:
    made = PluginSettings(
        node_name="node-a",
        pod_uid="pod-1",
        kubelet_registrar_directory_path=str(short_path / "registry"),
        kubelet_plugins_directory_path=str(short_path / "plugins"),
    )
    made.data_folder.mkdir(parents=True)
    made.registration_socket.parent.mkdir()
    return made


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    return made


def names(settings: PluginSettings) -> list[str]:
    folders = (settings.data_folder, settings.registration_socket.parent)
    return sorted(name for folder in folders for name in os.listdir(folder))


@pytest.mark.contract("R22")
def test_sockets_of_killed_plugins_are_removed_at_the_second_look(settings: PluginSettings) -> None:
    left = [settings.data_folder / name for name in ("dra-pod-0.sock", "dra.sock")]
    left += [settings.registration_socket.parent / f"neuron.aws.com{name}-reg.sock" for name in ("-pod-0", "")]
    for path in left:
        bound(path).close()
    stale = StaleSockets(settings.dra_socket, settings.registration_socket, DRIVER, Files())
    assert stale.look() == []
    assert sorted(stale.look()) == sorted(left)
    assert names(settings) == []


@pytest.mark.contract("R22")
def test_other_files_stay(settings: PluginSettings, opened: ExitStack) -> None:
    registry = settings.registration_socket.parent
    for path in (settings.dra_socket, settings.registration_socket, registry / "gpu.nvidia.com-pod-0-reg.sock"):
        bound(path).close()
    (settings.data_folder / "dra-file.sock").write_text("")
    served = opened.enter_context(closing(bound(settings.data_folder / "dra-pod-2.sock")))
    served.listen()
    full = opened.enter_context(closing(bound(registry / "neuron.aws.com-pod-3-reg.sock")))
    full.listen(0)
    for _ in range(3):  # a program that is stuck: its queue of connections is full
        waiting = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        waiting.setblocking(False)
        waiting.connect_ex(str(registry / "neuron.aws.com-pod-3-reg.sock"))
    before = names(settings)
    stale = StaleSockets(settings.dra_socket, settings.registration_socket, DRIVER, Files())
    assert [stale.look() for _ in range(3)] == [[], [], []]
    assert names(settings) == before


@pytest.mark.contract("R22")
def test_socket_that_is_bound_anew_is_not_stale(settings: PluginSettings, opened: ExitStack) -> None:
    """Its plugin is about to listen."""
    path = settings.data_folder / "dra-pod-2.sock"
    bound(path).close()
    stale = StaleSockets(settings.dra_socket, settings.registration_socket, DRIVER, Files())
    stale.look()
    os.rename(path, settings.data_folder / "kept")  # or the new file may get its inode
    opened.enter_context(closing(bound(path)))
    assert stale.look() == []


QUICK = quicker(DEFAULT_TIMING, kubelet={"stale_sockets_s": 0.05})


@pytest.mark.contract("R22")
async def test_plugin_removes_stale_sockets(short_path: Path, api: EmbeddedApi) -> None:
    host = PluginHost(short_path, api.url, timing=QUICK)
    host.data.mkdir()
    left = [host.data / "dra-pod-0.sock", host.registry / "neuron.aws.com-pod-0-reg.sock"]
    for path in left:
        bound(path).close()
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1"):
        await kubelet.registered("neuron.aws.com", endpoint=str(host.settings("pod-1").dra_socket))
        await eventually(lambda: not any(path.exists() for path in left))
        assert host.settings("pod-1").dra_socket.exists()


class LongNames(Files):
    """Lists a name that no file system has."""

    def names(self, folder: Path) -> list[str]:
        return [f"dra-{'x' * 300}.sock", *super().names(folder)]


def test_socket_that_cannot_be_looked_at_stays(settings: PluginSettings) -> None:
    """31, mend 12: the error of one path ended the plugin."""
    left = settings.data_folder / "dra-pod-0.sock"
    bound(left).close()
    stale = StaleSockets(settings.dra_socket, settings.registration_socket, DRIVER, LongNames())
    assert stale.look() == []
    assert stale.look() == [left]
