"""Detects a Neuron device plugin on this node, or its pods: it could allocate, or has allocated, the same devices.

The evidence: the plugin's socket answers, the Node offers its resources, or a pod has a device from it. Pods outlive
the plugin. The form of a device's id is not documented, and ids of neuroncore count logical cores, so such a pod may
have any device, and closes the whole node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuron_dra.core.in_use import ListedPod
from neuron_dra.node.prepare import pod_resources
from neuron_dra.node.timing import DEFAULT_TIMING, PublishTiming
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)

RESOURCE_PREFIX: Final = "aws.amazon.com/neuron"  # neuron, neuroncore, and the old neurondevice
VENDOR: Final = "aws.amazon.com/"  # of all of these, and of others that a device plugin for Neuron may have
CONNECT_TIMEOUT_S: Final = 1.0


class DevicePluginWatch:
    """Looks for a device plugin and its pods; `then` is called when what was found changes.

    `socket` is the name of a socket that answers. `pods` are the pods with devices of a plugin, as namespace/name
    (resource). `unlisted` is why the kubelet's pods cannot be listed, empty if they can; `pods` then has those of the
    last list.

    A plugin that was alive a short time ago counts too, because a failed plugin is started again after five minutes.
    """

    def __init__(
        self,
        settings: PluginSettings,
        then: Callable[[], None],
        timing: PublishTiming = DEFAULT_TIMING.publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = Path(settings.kubelet_device_plugins_directory_path)
        self._pod_resources = Path(settings.kubelet_pod_resources_socket)
        self._node_name = settings.node_name
        self._then = then
        self._timing = timing
        self._clock = clock
        self._alive_at: dict[str, float] = {}  # by socket that answered, or that was there while the Node had an offer
        self._left: str | None = None  # a socket, whether or not it answers
        self._last_evidence: tuple[object, ...] = (None, None, None, (), "")
        self.socket: str | None = None
        self.pods: tuple[str, ...] = ()
        self.unlisted = ""
        self.looked = asyncio.Event()  # set after the first look
        self._readers: list[Callable[[Sequence[ListedPod]], None]] = []

    def on_pods(self, reader: Callable[[Sequence[ListedPod]], None]) -> None:
        """Call `reader` with each list of the kubelet's pods: a list may be long, and all look for the same."""
        self._readers.append(reader)

    async def look(self) -> None:
        """Look once; call `then` if the result differs."""
        self.socket = await asyncio.to_thread(live_socket, self._folder)
        self._left = await asyncio.to_thread(any_socket, self._folder)
        if self.socket is not None:
            self._alive_at[self.socket] = self._clock()
        await self._list()
        self.looked.set()
        evidence = (self.socket, self._left, self._recently(), self.pods, self.unlisted)
        if evidence != self._last_evidence:
            self._last_evidence = evidence
            self._then()

    def _recently(self) -> str | None:
        """Return the socket of a plugin that was alive a short time ago, if there is one."""
        since = self._clock() - self._timing.device_plugin_away_s
        self._alive_at = {name: at for name, at in self._alive_at.items() if at >= since}
        return next(iter(self._alive_at), None)

    async def _list(self) -> None:
        try:
            if not await asyncio.to_thread(self._pod_resources.is_socket):
                raise ConnectionError("there is no such socket; is its folder mounted from the host?")
            pods = await pod_resources.listed(self._pod_resources, self._timing.device_plugin_pods_s)
        except (ConnectionError, OSError) as err:
            if not self.unlisted:
                log.warning("cannot look for pods of a device plugin", extra={"error": str(err)})
            self.unlisted = f"{self._pod_resources}: {err}"
            return
        self.unlisted = ""
        self.pods = pods_of_a_device_plugin(pods)
        for reader in self._readers:
            reader(pods)

    def why(self, node: Mapping[str, Any] | None) -> str:
        """Return the evidence of a device plugin or its pods, and what to do; empty if there is none."""
        offer = advertised(node)
        if offer is not None and self._left is not None:
            self._alive_at[self._left] = self._clock()
        return explanation(self.socket, offer, self._node_name, self.pods, recently=self._recently())

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._timing.device_plugin_s)
            await self.look()


def pods_of_a_device_plugin(pods: Iterable[ListedPod]) -> tuple[str, ...]:
    """Return the pods that have a device of a Neuron device plugin, as namespace/name (resource).

    The kubelet lists no ids of pods that have ended.
    """
    pod_texts: set[str] = set()
    for pod in pods:
        vendor_resources = [resource for resource in pod.plugin_resources if resource.startswith(VENDOR)]
        pod_texts.update(f"{pod.namespace}/{pod.name} ({resource})" for resource in vendor_resources)
    return tuple(sorted(pod_texts))


def live_socket(folder: Path) -> str | None:
    """Return the name of a Neuron device plugin's socket that is served, or None. Blocks up to a second.

    The names are those of AWS's plugin, neuron-devplugin.sock and neuroncore-devplugin.sock, and similar ones.
    """
    return next((path.name for path in _sockets(folder) if accepts(path)), None)


def any_socket(folder: Path) -> str | None:
    """Return the name of a Neuron device plugin's socket, whether or not it is served; None if there is none."""
    return next((path.name for path in _sockets(folder)), None)


def _sockets(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        paths = sorted(folder.iterdir())
        plugin_paths = [path for path in paths if path.name.startswith("neuron") and path.suffix == ".sock"]
        return [path for path in plugin_paths if path.is_socket()]
    return []


def accepts(path: Path) -> bool:
    """Return whether a program serves the socket; one that is stuck, and does not accept, counts as alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (BlockingIOError, TimeoutError):  # the queue of connections is full
            return True
        except OSError:
            return False
    return True


def advertised(node: Mapping[str, Any] | None) -> str | None:
    """Return the first resource of a Neuron device plugin that the Node offers, as `offered` does, or None."""
    return offered(node, lambda name: name.startswith(RESOURCE_PREFIX))


def offered(node: Mapping[str, Any] | None, is_of_plugin: Callable[[str], bool]) -> str | None:
    """Return the first resource of a device plugin that the Node offers, such as `aws.amazon.com/neuron: 16`, or None.

    The kubelet keeps an amount of 0 after a plugin has stopped; that does not count.
    """
    allocatable = ((node or {}).get("status") or {}).get("allocatable") or {}
    for name, amount in sorted(allocatable.items()):
        if is_of_plugin(name) and str(amount) not in ("0", ""):
            return f"{name}: {amount}"
    return None


def explanation(
    socket_name: str | None,
    resource: str | None,
    node_name: str,
    pods: tuple[str, ...] = (),
    *,
    recently: str | None = None,
) -> str:
    """Return the message about a device plugin that runs, or did `recently`, or its pods; empty if there is neither."""
    signs = [
        f"its socket {socket_name} answers" if socket_name else "",
        f"the Node offers {resource}" if resource else "",
    ]
    evidence = " and ".join(part for part in signs if part)
    if not evidence and recently:
        evidence = f"{recently}: it was, in the last six minutes, and may be started again"
    texts = (_of_plugin(evidence, node_name), _of_pods(pods, node_name))
    return "; ".join(text for text in texts if text)


def _of_plugin(evidence: str, node_name: str) -> str:
    if not evidence:
        return ""
    return (
        f"a Neuron device plugin is alive on node {node_name} ({evidence}), and would allocate the same devices; "
        "keep it off this node, or remove it (eksctl installs it unless --install-neuron-plugin=false is set)"
    )


def _of_pods(pods: tuple[str, ...], node_name: str) -> str:
    if not pods:
        return ""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return (
        f"pod {pods[0]}{more} on node {node_name} has devices of a Neuron device plugin, which may be those of any "
        "claim; wait until it has ended, or delete it"
    )
