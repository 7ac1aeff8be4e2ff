"""The plugin's gRPC servers: one on the DRA socket, one on the registration socket, one for health on TCP.

This file depends on how grpc.aio behaves (measured with 1.85): binding a path replaces a live socket without an error;
stopping a server unlinks its path, even if another server's socket is there by then; a path has at most 107 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from neuron_dra.errors import SocketError

log = logging.getLogger(__name__)

Configure = Callable[[grpc.aio.Server], None]

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two pods must not share a port unnoticed
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)


class UnixServer:
    """A gRPC server on one socket path, recreated when the path is removed or replaced."""

    def __init__(self, path: Path, configure: Configure) -> None:
        self.path = path
        self._configure = configure
        self._server: grpc.aio.Server | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Serve; replace a stale socket. Raises SocketError."""
        server = grpc.aio.server(options=OPTIONS)
        self._configure(server)
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as err:
            raise SocketError(f"cannot bind {self.path}: {_why(self.path)}") from err
        # Only the owner may connect. Not set by umask, which applies to the whole process and other files too.
        self.path.chmod(0o600)
        await server.start()
        self._server, self._inode = server, inode(self.path)

    async def stop(self, grace_s: float) -> None:
        """Stop serving; running calls get `grace_s` seconds. Removes the socket only if it is ours."""
        server, self._server = self._server, None
        if server is None:
            return
        ours = inode(self.path) == self._inode
        saved = None
        if not ours:
            # grpc unlinks by name: move another server's socket out of the way.
            saved = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            with contextlib.suppress(OSError):
                os.rename(self.path, saved)
        await server.stop(grace_s)
        if saved is not None:
            with contextlib.suppress(OSError):
                os.rename(saved, self.path)

    async def restart(self) -> None:
        """Serve on a fresh socket file. Raises SocketError."""
        await self.stop(0)
        await self.start()

    @property
    def intact(self) -> bool:
        """Whether the path still leads to our socket."""
        return self._inode is not None and inode(self.path) == self._inode


def inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at `path`; None if there is none."""
    try:
        stat = os.lstat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _why(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist; is it mounted from the host?"
    if path.exists() and not path.is_socket():
        return "the path is a file, not a socket; remove it"
    if not os.access(path.parent, os.W_OK):
        return f"the folder {path.parent} is not writable for this user"
    return "the system rejected the path (it may have at most 107 bytes)"


class TcpHealthServer:
    """The health service on a TCP port: binds it as soon as another pod has released it."""

    def __init__(self, address: str, port: int, configure: Configure) -> None:
        self._address = address
        self._port = port
        self._configure = configure
        self._server: grpc.aio.Server | None = None

    async def run(self, retry_s: float) -> None:
        """Bind the port, every `retry_s` seconds until that succeeds; return once it serves."""
        waiting = False
        while not await self._bind():
            if not waiting:
                log.info("the health port is in use; taking it over when it is free", extra={"port": self._port})
                waiting = True
            await asyncio.sleep(retry_s)

    async def _bind(self) -> bool:
        if not _is_free(self._address, self._port):
            return False
        server = grpc.aio.server(options=OPTIONS)
        self._configure(server)
        host = f"[{self._address}]" if ":" in self._address else self._address
        try:
            server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError:
            return False
        await server.start()
        self._server = server
        return True

    async def stop(self, grace_s: float) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(grace_s)


def _is_free(address: str, port: int) -> bool:
    """Return whether the port can be bound; tested here, because grpc logs a failed bind in its own format."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
