"""Serves the page and its data on 127.0.0.1, to whoever has the token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from neuron_dra.ask.ui import files, guard
from neuron_dra.ask.ui.table import Table
from neuron_dra.ask.ui.timing import DEFAULT_TIMING, UiTiming

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
MOST_REQUEST_BYTES: Final = 16 * 1024

About = Callable[[str, str, str], Awaitable[Mapping[str, Any] | None]]
"""Answers what is to be said about an object of a kind, namespace and name."""


class Changed:
    """Wakes all who wait, each time there is something new."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake all who wait."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Wait until the next `tell`."""
        await self._event.wait()


class PageServer:
    """The page's server. `published` tells of a new version of the table."""

    def __init__(
        self, table: Table, published: Changed, about: About, token: str, timing: UiTiming = DEFAULT_TIMING
    ) -> None:
        self._table = table
        self._published = published
        self._about = about
        self._token = token
        self._timing = timing
        self._files = files.read()
        self.host = ""
        self.used = asyncio.Event()
        """Set once a page has shown the token."""

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on a port, 0 for any, and yield host and port. Raises OSError if another program has the port."""
        app = web.Application(middlewares=[self._guarded], client_max_size=MOST_REQUEST_BYTES)
        app.router.add_get("/", self._page)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/about", self._answer)
        app.router.add_get("/{name}", self._file)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=self._timing.stop_s)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port)
            await site.start()
            self.host = f"{HOST}:{runner.addresses[0][1]}"
            yield self.host
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        status, text = guard.objection(request.method, request.path, request.headers, self.host, self._token)
        if status:
            return _text(status, text)
        try:
            return await handler(request)
        except web.HTTPException as err:
            return _text(err.status, err.reason)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as err:
            log.exception("a question of the page cannot be answered")
            return _text(500, f"this cannot be answered: {type(err).__name__}: {err}")

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return self._sent(files.INDEX)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name in self._files:
            return self._sent(name)
        return _text(404, "there is no such file")

    def _sent(self, name: str) -> web.Response:
        body, kind = self._files[name], files.kind(name)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=guard.HEADERS)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        found = await self._about(*(request.query.get(each, "") for each in ("kind", "namespace", "name")))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json", headers=guard.HEADERS)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send the rows, then what changes, one line each; a line without change shows that the server is there."""
        self.used.set()
        response = web.StreamResponse(headers={**guard.HEADERS, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        version = 0
        with contextlib.suppress(ConnectionResetError):
            while True:
                line = self._table.since(version)
                version = self._table.version
                await response.write(line)
                await self._news(version)
        return response

    async def _news(self, version: int) -> None:
        """Wait until the table has another version, but no longer than pages wait for a line."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.alive_s):
                while self._table.version == version:
                    await self._published.wait()


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=guard.HEADERS)
