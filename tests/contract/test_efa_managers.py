"""Each combination of the signs of another manager of EFA interfaces, before it appears, during, and after (4.10)."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuron_dra.core.efa import EfaReading
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from neuron_dra.node.efa.managers import OtherManagers
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.timing import DEFAULT_TIMING
from neuron_dra.settings import PluginSettings
from tests.support.pod_resources import NoPods, PodResources

SIGNS: Final = ("registration", "endpoint", "slice", "device plugin", "offer", "pod", "auto", "exclusive")
DRANET: Final = {"registration", "endpoint", "slice"}


@dataclass
class Node:
    """What the driver's other parts know of the node."""

    labels: dict[str, str] = field(default_factory=dict)
    object: dict[str, Any] = field(default_factory=dict)
    reading: EfaReading = field(default_factory=EfaReading)
    slice_names: list[str] = field(default_factory=lambda: ["node-a-dra.net-00"])

    def show(self, signs: frozenset[str]) -> None:
        self.labels = {"eks.amazonaws.com/compute-type": "auto" if "auto" in signs else "ec2"}
        amount = "16" if "offer" in signs else "0"
        self.object = {"status": {"allocatable": {"vpc.amazonaws.com/efa": amount}}}
        self.reading = EfaReading(is_exclusive="exclusive" in signs)
        self.slice_names = ["node-a-dra.net-00", *(["node-a-dra.net-x7k2p"] if "slice" in signs else [])]


def settings_of(root: Path) -> PluginSettings:
    for name in ("registry", "plugins/dra.net", "device-plugins"):
        (root / name).mkdir(parents=True)
    return PluginSettings(
        node_name="node-a",
        kubelet_registrar_directory_path=str(root / "registry"),
        kubelet_plugins_directory_path=str(root / "plugins"),
        kubelet_device_plugins_directory_path=str(root / "device-plugins"),
        kubelet_pod_resources_socket=str(root / "pods.sock"),
    )


@contextlib.contextmanager
def served(root: Path, signs: frozenset[str]) -> Iterator[None]:
    """Serve the sockets of these signs; those of the others are there, and nobody serves them."""
    paths = {
        "registration": root / "registry/dra.net-reg.sock",
        "endpoint": root / "plugins/dra.net/dra.sock",
        "device plugin": root / "device-plugins/aws-efa-device-plugin.sock",
    }
    with contextlib.ExitStack() as stack:
        for sign, path in paths.items():
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            stack.callback(path.unlink)
            if sign in signs:
                server.listen()
        yield


def pods(*, has_interface: bool) -> bytes:
    device = pb.ContainerDevices(resource_name="vpc.amazonaws.com/efa", device_ids=["rdmap86s0"])
    container = pb.ContainerResources(name="main", devices=[device] if has_interface else [])
    return pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(name="theirs", namespace="ml", containers=[container])]
    ).SerializeToString()


@dataclass
class Looks:
    """The looks of a node, as both loops take them."""

    device_plugin: DevicePluginWatch
    managers: OtherManagers

    async def look(self) -> None:
        await self.device_plugin.look()
        await self.managers.look()


def looks_of(settings: PluginSettings, node: Node) -> Looks:
    device_plugin = DevicePluginWatch(settings, lambda: None)
    managers = OtherManagers(
        settings,
        node,  # type: ignore[arg-type]  # it has the attributes that are read
        node,  # type: ignore[arg-type]
        device_plugin,
        lambda: node.slice_names,
        lambda: None,
        DEFAULT_TIMING.publish,
    )
    return Looks(device_plugin, managers)


async def test_each_combination_of_signs_is_seen_in_one_look(short_path: Path) -> None:
    settings, node = settings_of(short_path), Node()
    looks = looks_of(settings, node)
    managers = looks.managers
    combinations = [
        frozenset(signs) for count in range(len(SIGNS) + 1) for signs in itertools.combinations(SIGNS, count)
    ]
    random.Random(4).shuffle(combinations)
    assert len(combinations) == 256
    async with PodResources(NoPods(), Path(settings.kubelet_pod_resources_socket)) as kubelet:
        for signs in combinations:
            node.show(signs)
            kubelet.body = pods(has_interface="pod" in signs)
            with served(short_path, signs):
                await looks.look()
                assert bool(managers.why()) == bool(signs), (signs, managers.why())
                assert managers.why_now(node.reading) == managers.why()
                assert bool(managers.dranet) == bool(signs & DRANET), signs


async def test_pods_count_while_the_kubelet_does_not_answer(short_path: Path) -> None:
    settings, node = settings_of(short_path), Node()
    looks = looks_of(settings, node)
    managers = looks.managers
    async with PodResources(NoPods(), Path(settings.kubelet_pod_resources_socket)) as kubelet:
        kubelet.body = pods(has_interface=True)
        await looks.look()
    await looks.look()
    assert "pod ml/theirs on node node-a has EFA interfaces" in managers.why()
