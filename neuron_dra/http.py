"""/metrics, /healthz and /readyz over plain HTTP, without a web framework."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from neuron_dra.network_port import NetworkPort, PortLimits

log = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 5.0
HEAD_BYTES: Final = 16 * 1024  # of a request: its first line and its headers
PIECE_BYTES: Final = 64 * 1024  # of an answer that one connection holds
ANSWERS: Final = 3  # different ones in memory at a time
TEXT: Final = "text/plain; charset=utf-8"
LIMITS: Final = PortLimits(connections=32, of_one_source=8, lifetime_s=15.0)


class HttpServer:
    """Serves GET requests, one per connection.

    `ready` returns why the program is not ready, or an empty string. `refresh` is called before the metrics are read.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Callable[[], str],
        refresh: Callable[[], Awaitable[None]] | None = None,
        limits: PortLimits = LIMITS,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._registry = registry
        self._ready = ready
        self._refresh = refresh
        self._read_timeout_s = read_timeout_s
        self._listening = NetworkPort(self._serve, limits)
        self._rendering: asyncio.Task[bytes] | None = None
        self._sending: dict[int, int] = {}  # connections that still receive a large answer, by its identity

    async def run(self, bind_address: str, retry_s: float = 2.0) -> None:
        """Listen on `host:port`; while another process has the port, try again every `retry_s` seconds.

        On the host's network, that is the older pod of a rolling update.
        """
        host, _, port = bind_address.rpartition(":")
        waiting = False
        while not self.port:
            try:
                await self._listening.listen(host.strip("[]"), int(port))
            except OSError as err:
                if not waiting:
                    log.warning("metrics are not served yet", extra={"address": bind_address, "error": str(err)})
                    waiting = True
                await asyncio.sleep(retry_s)

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 before that."""
        return self._listening.port

    async def stop(self) -> None:
        """Stop listening."""
        self._listening.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._read_timeout_s):
            first = await _first_line(reader)
        if first is None:
            status, kind, body = "431 Request Header Fields Too Large", TEXT, b"the request is too large\n"
        else:
            status, kind, body = await self._answer(first.split(" "))
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with self._counted(body):
            await _send(writer, head.encode(), body)
        writer.close()
        await writer.wait_closed()

    @contextlib.contextmanager
    def _counted(self, body: bytes) -> Iterator[None]:
        """Count the connections that receive this answer, if one connection does not hold all of it anyway."""
        if len(body) <= PIECE_BYTES:
            yield
            return
        self._sending[id(body)] = self._sending.get(id(body), 0) + 1
        try:
            yield
        finally:
            self._sending[id(body)] -= 1
            if not self._sending[id(body)]:
                del self._sending[id(body)]

    async def _answer(self, request: list[str]) -> tuple[str, str, bytes]:
        path = ""
        if len(request) == 3 and request[0] == "GET":
            path = request[1].split("?")[0]
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await self._metrics()
        if path == "/healthz":
            return "200 OK", TEXT, b"ok\n"
        if path == "/readyz":
            why = self._ready()
            return ("503 Service Unavailable" if why else "200 OK"), TEXT, (why or "ok").encode() + b"\n"
        return "404 Not Found", TEXT, b"paths: /metrics /healthz /readyz\n"

    async def _metrics(self) -> bytes:
        """Return the metrics; requests that arrive during a refresh share its result.

        They share the last one, too, while slow clients still receive others: an answer may have megabytes.
        """
        if self._rendering is None or (self._rendering.done() and len(self._sending) < ANSWERS):
            self._rendering = asyncio.create_task(self._render(), name="render metrics")
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        if self._refresh is not None:
            await self._refresh()
        return generate_latest(self._registry)


async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    """Send an answer at the client's pace, so that what a slow client has not read is not copied."""
    writer.write(head)
    view = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        writer.write(view[start : start + PIECE_BYTES])
        await writer.drain()


async def _first_line(reader: asyncio.StreamReader) -> str | None:
    """Read the head of a request and return its first line; None if the head is too large."""
    try:
        first = line = await reader.readline()
        size = len(line)
        while line.strip():
            line = await reader.readline()
            size += len(line)
            if size > HEAD_BYTES:
                return None
    except ValueError:  # a line longer than the reader's limit
        return None
    return first.decode("latin-1")
