"""Other programs that manage EFA interfaces on this node: DRANET, AWS's device plugin, EKS Auto Mode.

Two managers could give one interface to two pods, each without knowing of the other. So this driver stands down while
there is a sign of another one: it publishes nothing and prepares no claim. Beside DRANET it is not registered either:
the kubelet calls the driver of a name that registered last, and DRANET prepared the node's claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core import names, slices
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.efa import DEVICE_PLUGIN_RESOURCE, EfaReading
from neuron_dra.core.in_use import ListedPod
from neuron_dra.core.wire import Wire
from neuron_dra.node.efa.hardware import EfaHardware
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.publish import coexistence
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.timing import PublishTiming
from neuron_dra.settings import PluginSettings

RESOURCE: Final = DEVICE_PLUGIN_RESOURCE
DEVICE_PLUGIN_SOCKET: Final = "aws-efa-device-plugin.sock"
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Sockets:
    """The signs of other managers by their sockets; empty if no such socket answers."""

    dranet: str = ""
    device_plugin: str = ""


def look_at_sockets(settings: PluginSettings) -> Sockets:
    """Return the signs of other managers by their sockets. Blocks."""
    device_plugin = Path(settings.kubelet_device_plugins_directory_path) / DEVICE_PLUGIN_SOCKET
    is_plugin_alive = coexistence.accepts(device_plugin)
    return Sockets(_dranet_socket(settings), f"its socket {DEVICE_PLUGIN_SOCKET} answers" if is_plugin_alive else "")


def _dranet_socket(settings: PluginSettings) -> str:
    """Return the sign of a DRANET that runs: a socket under the driver's name, as this driver has none."""
    endpoint = Path(settings.kubelet_plugins_directory_path) / EFA.name / "dra.sock"
    if coexistence.accepts(endpoint):
        return f"its socket {endpoint} answers"
    registry = Path(settings.kubelet_registrar_directory_path)
    try:
        paths = sorted(registry.glob(f"{EFA.name}*.sock"))
    except OSError as err:
        return f"{registry} cannot be read ({err}), so its socket cannot be ruled out"
    return next((f"its socket {path} answers" for path in paths if coexistence.accepts(path)), "")


@dataclass(frozen=True, slots=True)
class Signs:
    """All that shows another manager on a node, or that the driver cannot serve it.

    - `slice_names`: of all slices of dra.net of the node.
    - `node`: the Node; None if it is unknown. `labels`: those of the Node.
    - `pods`: which pods have interfaces of the device plugin; empty if none has.
    - `is_exclusive`: RDMA devices belong to one network namespace.
    """

    node_name: str
    sockets: Sockets
    slice_names: Iterable[str]
    node: Wire | None
    labels: Mapping[str, str]
    pods: str
    is_exclusive: bool

    @property
    def dranet(self) -> str:
        """The sign of DRANET on the node; empty if there is none."""
        if self.sockets.dranet:
            return self.sockets.dranet
        foreign_names = [name for name in self.slice_names if not slices.is_ours(name, self.node_name, EFA.name)]
        return f"ResourceSlice {min(foreign_names)} is its" if foreign_names else ""

    def why(self) -> str:
        """Return why this driver stands down, and what to do; empty if it does not."""
        if sign := self.dranet:
            return (
                f"DRANET manages the EFA interfaces of node {self.node_name} ({sign}); keep one of the two drivers "
                "off this node, and drain it before (docs/efa.md)"
            )
        if offer := self.sockets.device_plugin or self._offer():
            return (
                f"the EFA device plugin manages the EFA interfaces of node {self.node_name} ({offer}); keep it off "
                "this node, or turn efa.enabled off"
            )
        if self.pods:
            return (
                f"{self.pods} on node {self.node_name} has EFA interfaces of the EFA device plugin, which may be "
                "those of any claim; wait until it has ended, or delete it"
            )
        if self.labels.get(names.COMPUTE_TYPE_LABEL) == AUTO:
            return f"EKS Auto Mode manages the EFA interfaces of node {self.node_name}, and has its own driver for them"
        if self.is_exclusive:
            return (
                f"RDMA devices of node {self.node_name} belong to one network namespace (netns_mode is exclusive), so "
                "pods cannot use an interface by its file; set it to shared with rdma system set netns shared"
            )
        return ""

    def _offer(self) -> str:
        resource = coexistence.offered(self.node, lambda name: name == RESOURCE)
        return f"the Node offers {resource}" if resource else ""


class OtherManagers:
    """Looks for other managers of EFA interfaces; `then` is called when what was found changes.

    `slice_names` returns the names of all slices of this driver's name and this node. `looked` is set after a first
    look that could see everything that it looks for. The kubelet's pods are those that `device_plugin` lists.
    """

    def __init__(
        self,
        settings: PluginSettings,
        node: OwnNode,
        hardware: EfaHardware,
        device_plugin: DevicePluginWatch,
        slice_names: Callable[[], Iterable[str]],
        then: Callable[[], None],
        timing: PublishTiming,
    ) -> None:
        self._settings = settings
        self._timing = timing
        self._node_name = settings.node_name
        self._node = node
        self._hardware = hardware
        self._neuron_plugin = device_plugin
        self._slice_names = slice_names
        self._then = then
        self._sockets = Sockets()
        self._pods = ""
        self.looked = asyncio.Event()
        device_plugin.on_pods(self._take_pods)

    async def look(self) -> None:
        """Look once at sockets; the rest is known from watches, and from the kubelet's pods."""
        await self._neuron_plugin.looked.wait()
        sockets = await asyncio.to_thread(look_at_sockets, self._settings)
        is_changed = sockets != self._sockets or not self.looked.is_set()
        self._sockets = sockets
        self.looked.set()
        if is_changed:
            self._then()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._timing.device_plugin_s)
            await self.look()

    def _take_pods(self, pods: Iterable[ListedPod]) -> None:
        """Find pods with interfaces of the device plugin. Without an answer of the kubelet, those of the last count."""
        pods_before, self._pods = self._pods, pods_with_interfaces(pods)
        if self._pods != pods_before:
            self._then()

    @property
    def dranet(self) -> str:
        """The sign of DRANET on this node; empty if there is none."""
        return self._signs(self._sockets, self._hardware.reading).dranet

    def why(self) -> str:
        """Return why this driver stands down, and what to do; empty if it does not."""
        return self._signs(self._sockets, self._hardware.reading).why()

    def why_now(self, reading: EfaReading) -> str:
        """Look at the sockets again, and return why this driver stands down; `reading` is of this moment. Blocks.

        Called in a thread before a claim is committed: another manager may have appeared since the last look.
        """
        return self._signs(look_at_sockets(self._settings), reading).why()

    def _signs(self, sockets: Sockets, reading: EfaReading) -> Signs:
        return Signs(
            self._node_name,
            sockets,
            self._slice_names(),
            self._node.object,
            self._node.labels,
            self._pods,
            reading.is_exclusive,
        )


def pods_with_interfaces(pods: Iterable[ListedPod]) -> str:
    """Return the first pod that has an interface of the device plugin, and how many more; empty if there is none."""
    found = sorted(f"{pod.namespace}/{pod.name}" for pod in pods if RESOURCE in pod.plugin_resources)
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"pod {found[0]}{more}"
