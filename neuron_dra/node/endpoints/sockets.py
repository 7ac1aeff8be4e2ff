"""The plugin's gRPC servers: one on the DRA socket, one on the registration socket, one for health on TCP.

This file depends on how grpc.aio behaves (measured with 1.85): binding a path replaces a live socket without an error;
stopping a server unlinks its path, even if another server's socket is there by then; a path has at most 107 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from neuron_dra.errors import SocketError
from neuron_dra.network_port import PortLimits, Relay

log = logging.getLogger(__name__)

Configure = Callable[[grpc.aio.Server], None]

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two pods must not share a port unnoticed
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)
SMALL: Final = (
    ("grpc.max_receive_message_length", 1024),  # a health check has the name of a service
    ("grpc.max_metadata_size", 4 * 1024),
    ("grpc.absolute_max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 4),  # a probe has one
    ("grpc.http2.bdp_probe", 0),  # or the window, and with it what is buffered, grows
)
"""Options of a server that is open to the network."""
HEALTH_LIMITS: Final = PortLimits()


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
        is_ours = inode(self.path) == self._inode
        saved = None
        if not is_ours:
            # grpc unlinks by name: move another server's socket out of the way, if there is one.
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
    """The health service on a TCP port, open to the network: binds it as soon as another pod has released it.

    The kubelet's connections look like those of any pod, so none is refused; `limits` bound what all of them use.
    """

    def __init__(self, address: str, port: int, configure: Configure, limits: PortLimits = HEALTH_LIMITS) -> None:
        self._address = address
        self._port = port
        self._configure = configure
        self._server: grpc.aio.Server | None = None
        # An abstract socket: no file stays behind, and only processes of this network namespace reach it.
        self._inner = f"neuron-dra-health-{secrets.token_hex(16)}"
        self._relay = Relay(f"\0{self._inner}", limits)

    async def run(self, retry_s: float) -> None:
        """Bind the port, every `retry_s` seconds until that succeeds; return once it serves."""
        server = grpc.aio.server(options=SMALL)
        self._configure(server)
        server.add_insecure_port(f"unix-abstract:{self._inner}")
        await server.start()
        self._server = server
        is_waiting = False
        while not await self._bind():
            if not is_waiting:
                log.info("the health port is in use; taking it over when it is free", extra={"port": self._port})
                is_waiting = True
            await asyncio.sleep(retry_s)

    async def _bind(self) -> bool:
        try:
            await self._relay.port.listen(self._address, self._port)
        except OSError:
            return False
        return True

    async def stop(self, grace_s: float) -> None:
        """Stop serving."""
        self._relay.port.stop()
        if self._server is not None:
            await self._server.stop(grace_s)
