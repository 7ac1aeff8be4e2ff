"""Serves the page and its data on 127.0.0.1, to whoever has the token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from neuron_dra.ask.ui import files, guard
from neuron_dra.ask.ui.connections import BoundedServer
from neuron_dra.ask.ui.table import Table, encoded
from neuron_dra.ask.ui.timing import DEFAULT_TIMING, UiTiming

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
TOKEN_BYTES: Final = 32
MOST_DIGITS: Final = 20
"""Of a version that a page says it has."""

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


def secret() -> str:
    """Return a text that nobody can guess, in letters that an address may have."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class PageServer:
    """The page's server. `published` tells of a new version of the table.

    `token` opens all data, `ticket` gives the token once: browsers keep the address with it in their history.
    """

    def __init__(
        self,
        table: Table,
        published: Changed,
        about: About,
        token: str,
        timing: UiTiming = DEFAULT_TIMING,
        ticket: str = "",
    ) -> None:
        self._table = table
        self._published = published
        self._about = about
        self._token = token
        self._ticket = ticket or secret()
        self._timing = timing
        self._files = files.read()
        self._answers = {
            guard.PAGE: self._page,
            guard.EXCHANGE: self._exchange,
            "/api/stream": self._stream,
            "/api/about": self._answer,
        }
        self.host = ""
        self.used = asyncio.Event()
        """Set once a page has shown the token."""

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on a port, 0 for any, and yield host and port. Raises OSError if another program has the port."""
        self._connections = BoundedServer(self._guarded, self._timing.head_s)
        runner = web.ServerRunner(self._connections, shutdown_timeout=self._timing.stop_s)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port)
            await site.start()
            self.host = f"{HOST}:{runner.addresses[0][1]}"
            yield self.host
        finally:
            await runner.cleanup()

    async def _guarded(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.spoke(request)
        token = self._ticket if request.path == guard.EXCHANGE else self._token
        status, text = guard.objection(request.method, request.path, request.headers, self.host, token)
        if status:
            return _text(status, text)
        try:
            return await self._answers.get(request.path, self._file)(request)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as err:
            log.exception("a question of the page cannot be answered")
            return _text(500, f"this cannot be answered: {type(err).__name__}: {err}")

    async def _page(self, _: web.BaseRequest) -> web.StreamResponse:
        return self._sent(files.INDEX)

    async def _file(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.removeprefix("/")
        if name in self._files:
            return self._sent(name)
        return _text(404, "there is no such file")

    def _sent(self, name: str) -> web.Response:
        body, kind = self._files[name], files.kind(name)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=guard.HEADERS)

    async def _exchange(self, _: web.BaseRequest) -> web.StreamResponse:
        """Send the token for the ticket, which is worth nothing from now on."""
        self._ticket = secret()
        self.used.set()
        return web.Response(text=self._token, headers=guard.HEADERS)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        report = await self._about(*(request.query.get(parameter, "") for parameter in ("kind", "namespace", "name")))
        return web.Response(body=encoded(report), content_type="application/json", headers=guard.HEADERS)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the rows, then what changes, one line each; a line without change shows that the server is there.

        A page that has a version gets what is newer. With `once`, the first line is the only one.
        """
        self.used.set()
        response = web.StreamResponse(headers={**guard.HEADERS, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        version_text = request.query.get("version", "")
        version = int(version_text) if version_text.isdecimal() and len(version_text) < MOST_DIGITS else 0
        with contextlib.suppress(ConnectionResetError):  # the page was closed
            while True:
                line = self._table.since(version)
                version = self._table.version
                await response.write(line)
                if "once" in request.query:
                    break
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
