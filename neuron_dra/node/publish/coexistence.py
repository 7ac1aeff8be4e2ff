"""Detects a running Neuron device plugin on this node, which could allocate the same devices a second time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

RESOURCE_PREFIX: Final = "aws.amazon.com/neuron"  # neuron, neuroncore, and the old neurondevice
CONNECT_TIMEOUT_S: Final = 1.0


class DevicePluginWatch:
    """Looks for a device plugin's socket in a folder, every `period_s` seconds; `socket` is its name, or None."""

    def __init__(self, folder: Path, node_name: str, then: Callable[[], None], period_s: float) -> None:
        self._folder = folder
        self._node_name = node_name
        self._then = then
        self._period_s = period_s
        self.socket: str | None = None
        self.looked = asyncio.Event()  # set after the first look

    async def look(self) -> None:
        """Look once; call `then` if the result differs."""
        found = await asyncio.to_thread(live_socket, self._folder)
        self.looked.set()
        if found != self.socket:
            self.socket = found
            self._then()

    def why(self, node: Mapping[str, Any] | None) -> str:
        """Return why a device plugin counts as running: its socket or the Node's resources; empty if none does."""
        return explanation(self.socket, advertised(node), self._node_name)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            await self.look()


def live_socket(folder: Path) -> str | None:
    """Return the name of a Neuron device plugin's socket that accepts a connection, or None. Blocks up to a second.

    The names are those of AWS's plugin, neuron-devplugin.sock and neuroncore-devplugin.sock, and similar ones.
    """
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.name.startswith("neuron") and path.suffix == ".sock" and path.is_socket() and _accepts(path):
                return path.name
    return None


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def advertised(node: Mapping[str, Any] | None) -> str | None:
    """Return the first device plugin resource that the Node offers, such as `aws.amazon.com/neuron: 16`, or None.

    The kubelet keeps an amount of 0 after a plugin has stopped; that does not count.
    """
    allocatable = ((node or {}).get("status") or {}).get("allocatable") or {}
    for name, amount in sorted(allocatable.items()):
        if name.startswith(RESOURCE_PREFIX) and str(amount) not in ("0", ""):
            return f"{name}: {amount}"
    return None


def explanation(socket_name: str | None, resource: str | None, node_name: str) -> str:
    """Return the message about a running device plugin; empty if there is none."""
    if not socket_name and not resource:
        return ""
    evidence = " and ".join(
        part
        for part in (
            f"its socket {socket_name} answers" if socket_name else "",
            f"the Node offers {resource}" if resource else "",
        )
        if part
    )
    return (
        f"a Neuron device plugin is alive on node {node_name} ({evidence}), and would allocate the same devices; "
        "keep it off this node, or remove it (eksctl installs it unless --install-neuron-plugin=false is set)"
    )
