"""/metrics, /healthz and /readyz over plain HTTP, without a web framework."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

log = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 5.0


class HttpServer:
    """Serves GET requests, one per connection.

    `ready` returns why the program is not ready, or an empty string. `refresh` is called before the metrics are read.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Callable[[], str],
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._registry = registry
        self._ready = ready
        self._refresh = refresh
        self._server: asyncio.Server | None = None

    async def run(self, bind_address: str, retry_s: float = 2.0) -> None:
        """Listen on `host:port`; while another process has the port, try again every `retry_s` seconds.

        On the host's network, that is the older pod of a rolling update.
        """
        host, _, port = bind_address.rpartition(":")
        waiting = False
        while self._server is None:
            try:
                self._server = await asyncio.start_server(self._serve, host.strip("[]") or None, int(port))
            except OSError as err:
                if not waiting:
                    log.warning("metrics are not served yet", extra={"address": bind_address, "error": str(err)})
                    waiting = True
                await asyncio.sleep(retry_s)

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 before that."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else 0

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
            status, kind, body = await self._answer(request.decode("latin-1").split(" "))
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: list[str]) -> tuple[str, str, bytes]:
        text = "text/plain; charset=utf-8"
        path = request[1].split("?")[0] if len(request) == 3 and request[0] == "GET" else ""
        if path == "/metrics":
            if self._refresh is not None:
                await self._refresh()
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/healthz":
            return "200 OK", text, b"ok\n"
        if path == "/readyz":
            why = self._ready()
            return ("503 Service Unavailable" if why else "200 OK"), text, (why or "ok").encode() + b"\n"
        return "404 Not Found", text, b"paths: /metrics /healthz /readyz\n"
