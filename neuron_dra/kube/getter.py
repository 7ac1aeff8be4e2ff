"""GET of one object, the short way: a kubelet, and a pod behind it, wait for the answer.

aiohttp's client, which sends everything else, is made for more than an API server needs (cookies, redirects,
compression, tracing) and takes half a millisecond of a prepare for it (docs/reports/speed.md). Here are connections
that are kept, each with one request at a time; llhttp reads what comes back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

import httptools

from neuron_dra.errors import SettingsError

KEEP_S: Final = 15.0  # an idle connection; one that a firewall has forgotten by then would cost a whole timeout
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024  # an object in etcd has 1.5 MiB at most
_INFORMATIONAL: Final = range(100, 200)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said: HTTP status, body, and the header Retry-After if there was one."""

    status: int
    body: bytes
    retry_after: str | None = None


class Getter:
    """Sends GETs to one server over connections that it keeps. `close()` ends them all."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, user_agent: str) -> None:
        """`url` is http or https, with a path before the API's own where the server is behind a proxy.

        Raises SettingsError if it is no URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as err:
            raise SettingsError(f"the API server's URL {url!r} is none: {err}; write it as https://host:port") from err
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = self._wanted_tls(tls)
        self._head = (
            f"Host: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: {user_agent}\r\nAccept: application/json\r\n"
        )
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def get(self, path: str, token: str | None, timeout_s: float) -> Answer:
        """Return the answer to a GET of `path`, which is not encoded yet.

        Raises TimeoutError after `timeout_s` seconds, and OSError if there is no connection or no answer on it.
        """
        authorization = f"Authorization: Bearer {token}\r\n" if token is not None else ""
        target = quote(self._prefix + path, safe="/:~")
        request = f"GET {target} HTTP/1.1\r\n{self._head}{authorization}\r\n".encode()
        async with asyncio.timeout(timeout_s):
            while self._idle:
                try:
                    return await self._ask(self._idle.pop(), request)
                except ConnectionError:  # the server had enough of it while it was idle; a GET can be sent again
                    continue
            return await self._ask(await self._connect(), request)

    def renew(self, tls: ssl.SSLContext | None) -> None:
        """Use `tls` from now on: connections made before end, those in use with their answer."""
        self._tls = self._wanted_tls(tls)
        for connection in self._all:
            connection.is_outdated = True
        for connection in list(self._idle):
            connection.close()

    def _wanted_tls(self, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
        return (tls or _trusting()) if self._is_tls else None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._ended), self._host, self._port, ssl=self._tls
        )
        self._all.add(connection)
        return connection

    async def _ask(self, connection: _Connection, request: bytes) -> Answer:
        try:
            answer = await connection.ask(request)
        except BaseException:  # the caller's timeout too: what would come now is nobody's answer
            connection.close()
            raise
        if connection.rest(KEEP_S):
            self._idle.append(connection)
        return answer

    def _ended(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """End all connections; whoever waits for an answer gets a ConnectionError."""
        for connection in list(self._all):
            connection.close()
        self._idle.clear()


def _trusting() -> ssl.SSLContext:
    """For a URL that came without an authority to check it by: no credentials are sent there either."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way. The names of llhttp's callbacks are httptools'."""

    def __init__(self, ended: Callable[[_Connection], None]) -> None:
        self._ended = ended
        self.is_outdated = False  # made with credentials that were replaced since
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._is_reusable = False
        self._begin()

    def _begin(self) -> None:
        self._body: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None
        self._has_end = False  # the answer says how long it is; otherwise it ends with the connection
        self._in_body = False

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer. Raises ConnectionError."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def rest(self, keep_s: float) -> bool:
        """Stay open for the next request, `keep_s` seconds at most; False if the server wants no other."""
        if self.is_outdated or not self._is_reusable or self._transport is None or self._transport.is_closing():
            self.close()
            return False
        self._answer = None
        self._timer = asyncio.get_running_loop().call_later(keep_s, self.close)
        return True

    def close(self) -> None:
        """End the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._fail(ConnectionAbortedError("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, err: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(err)

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream, it is nothing else
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked: a farewell, such as 408
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as err:
            self._fail(ConnectionError(f"the answer is no HTTP: {err}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._in_body and not self._has_end:
            self._complete(reusable=False)
        self._fail(ConnectionResetError(str(exc) if exc else "the server closed the connection without an answer"))
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)

    # What llhttp tells.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._fail(ConnectionError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes"))
            self.close()
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() in _INFORMATIONAL:
            self._begin()
        else:
            self._complete(reusable=self._parser.should_keep_alive())

    def _complete(self, *, reusable: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), b"".join(self._body), self._retry_after))
        self._is_reusable = reusable
        self._begin()
