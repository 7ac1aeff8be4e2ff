"""Removes the sockets that killed plugins left behind.

In a rolling update each pod has its own sockets. A plugin that is killed cannot remove its sockets. Without this loop
they would pile up, and the kubelet would try to connect to each of them again and again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

from neuron_dra.node.endpoints.sockets import inode
from neuron_dra.node.files import Files

log = logging.getLogger(__name__)


class StaleSockets:
    """Sockets of this driver's other plugins on this node.

    A socket is stale if it refused a connection in two looks, because a plugin that is about to listen refuses for a
    moment.
    """

    def __init__(self, dra_socket: Path, registration_socket: Path, registration_prefix: str, files: Files) -> None:
        """`registration_prefix` is how the names of the driver's registration sockets begin."""
        self._files = files
        self._ours = {dra_socket, registration_socket}
        self._folders = ((dra_socket.parent, "dra"), (registration_socket.parent, registration_prefix))
        self._refused: dict[Path, tuple[int, int] | None] = {}  # in the last look, with the file's inode

    async def run(self, period_s: float) -> None:
        """Look every `period_s` seconds, until cancelled."""
        while True:
            for path in await asyncio.to_thread(self.look):
                log.info("removed the socket of a plugin that was killed", extra={"path": path})
            await asyncio.sleep(period_s)

    def look(self) -> list[Path]:
        """Look once; remove stale sockets, and return them. Blocks."""
        refused = {path: inode(path) for path in self._others() if _refuses(path)}
        stale = [path for path, stamp in refused.items() if stamp is not None and self._refused.get(path) == stamp]
        self._refused = refused
        return [path for path in stale if self._removed(path)]

    def _others(self) -> Iterator[Path]:
        for folder, prefix in self._folders:
            for name in self._names(folder):
                path = folder / name
                if _is_of(name, prefix) and path not in self._ours and _is_socket(path):
                    yield path

    def _names(self, folder: Path) -> list[str]:
        try:
            return self._files.names(folder)
        except OSError:  # not readable for us: nothing to remove
            return []

    def _removed(self, path: Path) -> bool:
        try:
            return self._files.remove(path)
        except OSError as err:
            log.warning("a stale socket cannot be removed", extra={"path": path, "error": str(err)})
            return False


def _is_of(name: str, prefix: str) -> bool:
    """Return whether `name` is that of a plugin's socket, with the UID of its pod or without."""
    return name.startswith((f"{prefix}-", f"{prefix}.")) and name.endswith(".sock")


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:  # not readable for us, or the disk fails
        return False


def _refuses(path: Path) -> bool:
    """Return whether no program serves the socket; one that is stuck counts as alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
