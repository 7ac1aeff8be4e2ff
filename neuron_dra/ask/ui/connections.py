"""The connections of the page's server: a stranger on this machine can open them, and say nothing or never end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

MOST: Final = 100
"""Connections at once; a browser opens six at most. Each takes one of the files that a process may have open."""
_UNREADABLE: Final = logging.getLogger(f"{__name__}.unreadable")
"""Of requests that cannot be parsed: any program on this machine can send them, and fill a terminal."""
_UNREADABLE.setLevel(logging.CRITICAL)


class BoundedServer(web.Server):
    """Serves a bounded number of connections, and ends those without a whole request in `head_s` seconds."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], head_s: float) -> None:
        super().__init__(
            handler,
            access_log=None,
            logger=_UNREADABLE,
            keepalive_timeout=head_s,
            lingering_time=0.0,  # no question has a body: what follows one is not read
        )
        self._head_s = head_s
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection; end it at once if there are too many."""
        super().connection_made(handler, transport)
        if len(self.connections) > MOST:
            transport.abort()
            return
        self._silent[handler] = asyncio.get_running_loop().call_later(self._head_s, transport.abort)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        self._forget(handler)
        super().connection_lost(handler, exc)

    def spoke(self, request: web.BaseRequest) -> None:
        """Note that a connection has made a request: from now on, the limit is that of idle ones."""
        self._forget(request.protocol)

    def _forget(self, handler: web.RequestHandler) -> None:
        timer = self._silent.pop(handler, None)
        if timer is not None:
            timer.cancel()
