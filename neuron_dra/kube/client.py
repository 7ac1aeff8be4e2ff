"""A thin transport to the API server: bytes in, bytes out, with this package's errors.

It has no typed models, which would cost 80 times the CPU and 40 times the memory (docs/adr/0003).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from neuron_dra import __version__
from neuron_dra.errors import ApiError, Forbidden, TooLarge, Unavailable, api_error
from neuron_dra.kube import lines, objects
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.connections import make_socket
from neuron_dra.kube.objects import Page
from neuron_dra.kube.replies import check_deleted, check_done, check_list, decode_object, names, stored
from neuron_dra.kube.requests import PODS, Resource
from neuron_dra.kube.server_clock import ServerClock
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING, ClientTiming

__all__ = ["KubeClient", "decode_object"]

PAGE_SIZE: Final = 250  # objects: of the largest Nodes, 16 KB each, a page is 4 MB
LARGE_PAGE_BYTES: Final = 8 * 1024 * 1024  # a page of the largest Nodes has 4 MB; 250 claims can have 160 MB
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a list goes on: the token of its next page, empty for the first, and how many objects it may have."""

    token: str = ""
    limit: int = PAGE_SIZE


class KubeClient:
    """Requests to one API server over persistent connections; use it as an async context manager.

    `timing` also has the waits of the client's users, such as Reflector and EventRecorder.
    """

    def __init__(
        self,
        config: KubeConfig,
        *,
        user_agent: str = f"neuron-dra/{__version__}",
        timing: ClientTiming = DEFAULT_CLIENT_TIMING,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.timing = timing
        self._page_size = page_size
        self._config = config
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.date = ""  # of the last response, as in HTTP: the API server's clock
        self.clock = ServerClock(timing.clock_s)

    async def __aenter__(self) -> KubeClient:
        if self._config.credentials is not None:
            self._keeping = asyncio.create_task(self._config.credentials.keep(), name="keep credentials")
        self._session = self._new_session()
        return self

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=make_socket),
            headers={"User-Agent": self._user_agent},
            read_bufsize=2**20,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._session is not None:
            await self._session.close()

    async def get(self, resource: Resource, namespace: str, name: str, *, timeout_s: float | None = None) -> bytes:
        """Return one object as JSON, without opaque values that cannot be decoded.

        Raises NotFound if it does not exist, or another ApiError.
        """
        return objects.readable(await self.request("GET", resource.path(namespace, name), timeout_s=timeout_s))

    async def get_apart(self, path: str) -> bytes:
        """GET a path over a new connection, for which a load balancer may choose another server. Raises ApiError."""
        apart = KubeClient(self._config, user_agent=self._user_agent, timing=self.timing)
        async with self._new_session() as apart._session:
            return await apart.request("GET", path)

    async def read(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Return one object. Raises NotFound or another ApiError; Unavailable if the reply is not this object."""
        return stored(await self.get(resource, namespace, name), name)

    async def list(
        self, resource: Resource, namespace: str = "", *, most_bytes: int = LARGE_PAGE_BYTES, **selectors: str
    ) -> AsyncGenerator[Page, None]:
        """Yield the pages of a list; `selectors` are `labelSelector` and `fieldSelector`. Raises ApiError.

        A page of more than `most_bytes` is requested again with half as many objects; after small pages they grow
        again.
        """
        cursor: Cursor | None = Cursor(limit=self._page_size)
        while cursor is not None:
            page, cursor = await self.list_page(resource, namespace, cursor, selectors, most_bytes=most_bytes)
            yield page

    async def list_page(
        self,
        resource: Resource,
        namespace: str,
        cursor: Cursor,
        selectors: Mapping[str, str],
        *,
        most_bytes: int,
    ) -> tuple[Page, Cursor | None]:
        """Return one page of a list, and the cursor of the next; None behind the last. Raises ApiError.

        The page has at most `most_bytes`, unless a single object has more. Raises Gone if the cursor is too old.
        """
        limit = cursor.limit
        while True:
            params = {**selectors, "limit": str(limit), **({"continue": cursor.token} if cursor.token else {})}
            allowed_bytes = most_bytes if limit > 1 else MAX_ANSWER_BYTES
            try:
                raw = await self.request("GET", resource.path(namespace), params=params, most_bytes=allowed_bytes)
                break
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2
        check_list(raw)
        page = _page(raw)
        if not page.token:
            return page, None
        if page.token == cursor.token:
            raise Unavailable(f"the API server's list of {resource.plural} repeats the same page")
        if len(raw) * 4 < most_bytes:
            limit = min(self._page_size, limit * 2)
        return page, Cursor(page.token, limit)

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object and return it as stored. Raises AlreadyExists, Invalid or another ApiError.

        With `dry_run` the server returns what it would store, and stores nothing.
        """
        params = {"dryRun": "All"} if dry_run else None
        raw = await self.request("POST", resource.path(namespace), params=params, body=body)
        return stored(raw, body["metadata"]["name"], body.get("kind", ""))

    async def replace(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        """Replace an object, or a part such as "status", guarded by its resourceVersion; return it as stored.

        Raises Conflict, Invalid or another ApiError.
        """
        name = body["metadata"]["name"]
        path = resource.path(namespace, name, subresource)
        return stored(await self.request("PUT", path, body=body), name, body.get("kind", ""))

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> dict[str, Any]:
        """Merge `patch` into an object and return it as stored. Raises NotFound, Invalid or another ApiError."""
        path = resource.path(namespace, name, subresource)
        return stored(await self.request("PATCH", path, body=patch, content_type=MERGE_PATCH), name)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str | None = None, version: str | None = None
    ) -> None:
        """Delete an object, if it still has this UID and resourceVersion. Raises Conflict or another ApiError."""
        conditions = {k: v for k, v in (("uid", uid), ("resourceVersion", version)) if v}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **({"preconditions": conditions} if conditions else {})}
        check_deleted(await self.request("DELETE", resource.path(namespace, name), body=body), name)

    async def evict(self, namespace: str, name: str, **conditions: str) -> None:
        """Evict a pod, if it still has the `uid` and the `resourceVersion` in `conditions`.

        Raises TooManyRequests if a disruption budget does not allow it, or another ApiError.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": conditions},
        }
        check_done(await self.request("POST", PODS.path(namespace, name, "eviction"), body=body))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout_s: float | None = None,
        most_bytes: int | None = None,
    ) -> bytes:
        """Send one request and return the body of the response. Raises ApiError; without a response, Unavailable.

        `timeout_s` is by default that of the client's timing. A response of more than `most_bytes`, by default
        MAX_ANSWER_BYTES, raises TooLarge.

        A request that gets a 401 is sent once more, with new credentials if there are any: the old ones may have
        expired, or the token on disk may just have been rotated. So is a GET that gets a 408, which a proxy sends on a
        connection that was idle for too long, perhaps just when the request is sent.
        """
        limit_s = self.timing.request_s if timeout_s is None else timeout_s
        for attempt in (1, 2):
            number = self._credentials_number
            try:
                return await self._send(method, path, params, body, content_type, limit_s, most_bytes)
            except Forbidden as err:
                if err.status != 401 or attempt == 2 or not await self._may_try_again(number):
                    raise
            except ApiError as err:
                if err.status != 408 or attempt == 2 or method != "GET":
                    raise
        raise AssertionError("unreachable")

    @property
    def _credentials_number(self) -> int:
        if self._config.credentials is not None:
            return self._config.credentials.number
        return 0

    async def _may_try_again(self, number: int) -> bool:
        renewed = self._config.credentials is not None and await self._config.credentials.refused(number)
        return renewed or self._config.proof.token is not None

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout_s: float,
        most_bytes: int | None = None,
    ) -> bytes:
        if body is None:
            payload = None
        else:
            payload = json.dumps(body, separators=(",", ":")).encode()
        try:
            headers = self._headers()
            if payload is not None:
                headers["Content-Type"] = content_type
            async with self._http.request(
                method,
                self._url(path),
                params=params,
                data=payload,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                raw = await _body(response, most_bytes)
                self.date = response.headers.get("Date", "")
                self.clock.hear(self.date)
                if response.status >= 300:
                    raise _error(method, path, response.status, raw, response.headers.get("Retry-After"))
                return raw
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise Unavailable(f"{method} {path}: the API server does not answer ({_reason(err, timeout_s)})") from err

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str,
        params: Mapping[str, str],
        *,
        idle_timeout_s: float,
        gather_s: float = 0.0,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield an iterator of its events, one JSON line each.

        Raises ApiError, and Unavailable after `idle_timeout_s` seconds without a byte. With `gather_s`, events are read
        in batches, that many seconds after the first of them, because waking up costs more than reading an event.
        """
        path = resource.path(namespace)
        number = self._credentials_number
        try:
            async with self._http.get(
                self._url(path),
                params={**params, "watch": "true", "allowWatchBookmarks": "true"},
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timing.request_s, sock_read=idle_timeout_s),
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                if response.status == 401:  # renew the credentials for the next watch
                    await self._may_try_again(number)
                if response.status >= 300:
                    raise _error("WATCH", path, response.status, await _body(response), None)
                yield lines.of(response, gather_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise Unavailable(f"WATCH {path}: the connection broke ({_reason(err, idle_timeout_s)})") from err

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, params: Sequence[tuple[str, str]], protocol: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a WebSocket and yield an iterator of the messages that it receives. Raises ApiError."""
        try:
            async with self._http.ws_connect(
                self._url(path),
                params=list(params),
                protocols=(protocol,),
                headers={**self._headers(), "Accept": "*/*"},  # the API server answers JSON with 406
                ssl=self._tls,
                max_msg_size=MAX_ANSWER_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=self.timing.request_s),
            ) as socket:
                yield _messages(socket)
        except aiohttp.WSServerHandshakeError as err:
            raise api_error(err.status, "", f"GET {path}: {err.status}: {err.message}", None, ()) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise Unavailable(f"GET {path}: the connection broke ({_reason(err, self.timing.request_s)})") from err

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("KubeClient is used outside of its context")
        return self._session

    def _url(self, path: str) -> URL:
        """Return the URL of a path, with names quoted so that they cannot end the path or begin a query."""
        return URL(self._config.url.rstrip("/") + quote(path, safe="/:~"), encoded=True)

    @property
    def _tls(self) -> ssl.SSLContext | bool:
        """The TLS context for aiohttp, which keeps separate connections per context; False skips verification."""
        return self._config.proof.tls or False

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": JSON}
        if (token := self._token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _token(self) -> str | None:
        """Return the bearer token. Raises OSError, and Unavailable for a text that no header may have."""
        token = self._config.proof.token
        if token is None:
            return None
        text = token()
        if not (text.isascii() and text.isprintable()):
            raise Unavailable("the token is not a line of ASCII text; perhaps its file is just being written")
        return text


async def _body(response: aiohttp.ClientResponse, most_bytes: int | None = None) -> bytes:
    """Return the body of a response. Raises TooLarge if it has more than `most_bytes`."""
    most_bytes = MAX_ANSWER_BYTES if most_bytes is None else most_bytes
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most_bytes:
            raise TooLarge(f"the API server's answer is larger than {most_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def _messages(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """Yield the messages of a WebSocket until it is closed. Raises Unavailable if together they are too large."""
    size = 0
    async for message in socket:
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            raise Unavailable(f"the connection broke ({message.data})")
        if isinstance(message.data, str):
            payload = message.data.encode()
        else:
            payload = bytes(message.data)
        size += len(payload)
        if size > MAX_ANSWER_BYTES:
            raise Unavailable(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        yield payload


def _page(raw: bytes) -> Page:
    """Return a page of a list. Raises Unavailable if it is not one."""
    try:
        return objects.page(raw)
    except (ValueError, RecursionError) as err:
        raise Unavailable(f"the API server's response is not a list: {err}") from err


def _error(method: str, path: str, status: int, raw: bytes, retry_after: str | None) -> ApiError:
    """Return the error for a response, with reason, message and causes of its Status object if it has one."""
    reason, message = "", raw[:256].decode(errors="replace")
    causes: tuple[str, ...] = ()
    names_object = False
    with contextlib.suppress(*objects.MALFORMED):  # a proxy may answer with anything
        body = json.loads(raw)
        reason, message = str(body.get("reason", "")), str(body.get("message", message))[:1024]
        details = body.get("details") or {}
        names_object = body.get("kind") == "Status" and names(details, path)
        listed_causes = details.get("causes") or []
        causes = tuple(str(cause.get("message", ""))[:1024] for cause in listed_causes[:16])
    # Retry-After may also be a date, which does not count.
    retry_after_s = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
    text = f"{method} {path}: {status} {reason}: {message}"
    return api_error(status, reason, text, retry_after_s, causes, names_object=names_object)


def _reason(err: BaseException, timeout_s: float) -> str:
    if isinstance(err, asyncio.TimeoutError):
        return f"timeout after {timeout_s:g} s"
    return _TLS_CONTEXT.sub("", str(err)) or type(err).__name__


_TLS_CONTEXT: Final = re.compile(r" ssl:(?:<[^>]*>|\w+)")
"""What aiohttp writes of a TLS context, which says nothing to a reader."""
