"""Reads what a node has, for a program beside the plugin: hardware, sockets, pods and claims. It changes nothing.

This is all of the node that other programs use: `doctor --local`, which runs in the driver's container, judges what it
returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from neuron_dra.api.claims import ResourceClaim
from neuron_dra.core.checkpoint import SLOTS
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.efa import EfaReading
from neuron_dra.core.facts import NodeFacts
from neuron_dra.core.in_use import ListedPod
from neuron_dra.core.wire import Wire
from neuron_dra.kube.client import KubeClient
from neuron_dra.node import boot
from neuron_dra.node.efa import managers
from neuron_dra.node.efa.hardware import interface_reader
from neuron_dra.node.endpoints.liveness import Liveness
from neuron_dra.node.hardware import sysfs
from neuron_dra.node.hardware.reader import Overdue, Reader
from neuron_dra.node.prepare import pod_resources
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.publish import coexistence
from neuron_dra.node.timing import LivenessTiming
from neuron_dra.settings import PluginSettings

T = TypeVar("T")
__all__ = ["Overdue", "Survey", "SurveyedInterfaces", "in_thread"]


@dataclass(frozen=True, slots=True)
class SurveyedInterfaces:
    """The EFA interfaces of the host, and why this driver stands down for another manager of them (or is empty).

    `unread` names what could not be read, where another manager may be.
    """

    reading: EfaReading
    why_not: str = ""
    unread: tuple[str, ...] = ()


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """Return `work(*args)` of a thread that does not keep this process from exiting, should the work hang."""
    return await Worker("survey").do(work, *args)


class Survey:
    """Reads a node, by the settings of its plugin."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self.checkpoint_slots = [settings.data_folder / name for name in SLOTS]
        self.pods_socket = Path(settings.kubelet_pod_resources_socket)
        self.device_plugins = Path(settings.kubelet_device_plugins_directory_path)

    async def hardware(self, limit_s: float) -> NodeFacts:
        """Return the facts of the hardware. Raises Overdue, which names the file whose reading hangs."""
        root = Path(self._settings.host_root or "/")
        dev = sysfs.device_folder(root, self._settings.host_dev)
        reader = Reader(root, dev=dev.path)
        try:
            return sysfs.facts(await reader.read(limit_s), is_hosts_dev=dev.is_hosts)
        finally:
            await reader.abandon()

    async def answers(self, limit_s: float) -> bool:
        """Return True if the plugin answers the kubelet's calls at both of its sockets."""
        settings = self._settings
        return await Liveness(settings.dra_socket, settings.registration_socket, LivenessTiming(call_s=limit_s)).alive()

    def boot_id(self) -> str:
        """Return the id of the host's current boot. Raises SettingsError."""
        return boot.boot_id(self._settings)

    async def pods(self) -> tuple[ListedPod, ...]:
        """Return the pods that the kubelet lists. Raises ConnectionError."""
        return await pod_resources.listed(self.pods_socket)

    async def device_plugin(self, node: Wire | None, name: str) -> str:
        """Return the evidence of a Neuron device plugin or of its pods, and what to do; empty if there is none.

        `node` is the Node with this name, None if it cannot be read.
        """
        socket = await in_thread(coexistence.live_socket, self.device_plugins)
        pods: tuple[str, ...] = ()
        with contextlib.suppress(ConnectionError):  # that the kubelet does not list them is another check's to report
            pods = coexistence.pods_of_a_device_plugin(await self.pods())
        return coexistence.explanation(socket, coexistence.advertised(node), name, pods)

    async def interfaces(
        self, node: Wire | None, node_name: str, slice_names: Collection[str] | None
    ) -> SurveyedInterfaces:
        """Return the EFA interfaces of the host, and who else manages them. Raises OSError.

        `node` is the Node with this name, `slice_names` are those of its slices of dra.net; None if they are unknown.
        """
        reading = await in_thread(interface_reader(self._settings).read)
        sockets = await in_thread(managers.look_at_sockets, self._settings)
        pods, unread = "", []
        try:
            pods = managers.pods_with_interfaces(await self.pods())
        except ConnectionError:
            unread.append("the kubelet's pods")
        if node is None:
            unread.append("the Node")
        if slice_names is None:
            unread.append("ResourceSlices")
        labels = ((node or {}).get("metadata") or {}).get("labels") or {}
        signs = managers.Signs(node_name, sockets, slice_names or (), node, labels, pods, reading.is_exclusive)
        return SurveyedInterfaces(reading, signs.why(), tuple(unread))

    async def claim(self, client: KubeClient, node: str, ref: ClaimRef) -> ResourceClaim | None:
        """Return a claim as the API server has it, None if it is gone.

        Raises ApiError, ClaimError if that is not certain.
        """
        return await ClaimReader(client, node).find(ref)
