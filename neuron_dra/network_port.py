"""TCP ports that are open to the network, where any pod may connect.

The kubelet's connections look like those of any pod, so each one is accepted. In return, the number of connections, how
long they last and what they send are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

BACKLOG: Final = 512  # connections that wait in the kernel while the event loop is busy
PIECE_BYTES: Final = 16 * 1024
ALL_IPV4: Final = "0.0.0.0"
ANYWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of the documentation's blocks, RFC 5737 and RFC 3849."""


def routed_families() -> frozenset[socket.AddressFamily]:
    """Return the address families with a route beyond this machine in this network namespace. Sends nothing."""
    found = []
    for family, address in ANYWHERE.items():
        if _has_route(family, address):
            found.append(family)
    return frozenset(found)


def _has_route(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What the clients of one port may use: connections in all and of one address, seconds and bytes of each."""

    connections: int = 64
    of_one_source: int = 16
    lifetime_s: float = 60.0
    received_bytes: int = 64 * 1024


class Connections:
    """The open connections of one port, by the address that they come from, oldest first."""

    def __init__(self, limits: PortLimits) -> None:
        self._limits = limits
        self._open: dict[str, dict[int, Callable[[], None]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(len(each) for each in self._open.values())

    def add(self, source: str, close: Callable[[], None]) -> int:
        """Record a new connection and return its number; if there are too many, close another one.

        That is the oldest one of the same source if this has too many, and else of the source that has most.
        """
        number = next(self._numbers)
        self._open.setdefault(source, {})[number] = close
        if len(self._open[source]) > self._limits.of_one_source:
            self._close_oldest(source)
        elif len(self) > self._limits.connections:
            self._close_oldest(self._source_with_most())
        return number

    def remove(self, source: str, number: int) -> None:
        """Record that a connection has ended."""
        of_source = self._open.get(source, {})
        of_source.pop(number, None)
        if not of_source:
            self._open.pop(source, None)

    def close(self) -> None:
        """Close all connections."""
        for source in list(self._open):
            while source in self._open:
                self._close_oldest(source)

    def _source_with_most(self) -> str:
        """Return the source with most connections; of several, the one with the oldest connection."""

        def order(source: str) -> tuple[int, int]:
            of_source = self._open[source]
            return len(of_source), -next(iter(of_source))

        return max(self._open, key=order)

    def _close_oldest(self, source: str) -> None:
        number, close = next(iter(self._open[source].items()))
        self.remove(source, number)
        close()


class NetworkPort:
    """Listens on a TCP port and calls `serve` for each connection, within `limits`."""

    def __init__(self, serve: Serve, limits: PortLimits) -> None:
        self._serve = serve
        self._limits = limits
        self._connections = Connections(limits)
        self._server: asyncio.Server | None = None

    async def listen(
        self, host: str, port: int, families: Callable[[], frozenset[socket.AddressFamily]] = routed_families
    ) -> None:
        """Bind the port; an empty `host` means all addresses. Raises OSError.

        Where pods have IPv6 addresses, 0.0.0.0 means all addresses, too. The kubelet sends its probes to the pod's main
        address, which may be the IPv6 one of two.
        """
        if host == ALL_IPV4 and families() != {socket.AF_INET} and socket.has_dualstack_ipv6():
            both = socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
            self._server = await asyncio.start_server(self._connected, sock=both, limit=PIECE_BYTES, backlog=BACKLOG)
            return
        self._server = await asyncio.start_server(
            self._connected, host or None, port, limit=PIECE_BYTES, backlog=BACKLOG
        )

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 before that."""
        if self._server:
            return int(self._server.sockets[0].getsockname()[1])
        return 0

    def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        self._connections.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        source = str(peer[0]) if peer else ""
        number = self._connections.add(source, writer.transport.abort)
        try:
            async with asyncio.timeout(self._limits.lifetime_s):
                await self._serve(reader, writer)
        except (OSError, TimeoutError, EOFError, ValueError):
            pass  # the client left, was too slow, or sent something else
        finally:
            self._connections.remove(source, number)
            writer.transport.abort()


class Relay:
    """Passes connections on to a server in this process that listens on a Unix socket.

    gRPC's server cannot limit its connections. It also reads what a client sends before it counts it.
    """

    def __init__(self, target: str, limits: PortLimits) -> None:
        """`target` is the socket's path, or an abstract name that begins with a zero byte."""
        self._socket = target
        self._received_bytes = limits.received_bytes
        self.port = NetworkPort(self._serve, limits)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._socket, limit=PIECE_BYTES)
        passing = [
            asyncio.create_task(_pass_on(reader, inner_writer, self._received_bytes)),
            asyncio.create_task(_pass_on(inner_reader, writer, None)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            inner_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
    """Copy bytes until the end, or until there were more than `most`."""
    passed = 0
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            passed += len(piece)
            if most is not None and passed > most:
                return
            writer.write(piece)
            await writer.drain()
