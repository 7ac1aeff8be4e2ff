"""A client of an embedded API server in the same process. It uses no sockets, so it works with any clock."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec
from multidict import MultiDict

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.http import Handler
from neuron_dra.errors import ApiError, TooLarge, api_error
from neuron_dra.kube.client import JSON, KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.replies import names
from neuron_dra.kube.requests import Resource
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is made without HTTP."""

    method: str
    path: str
    query: MultiDict[str] = field(default_factory=MultiDict)
    query_string: str = ""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class DirectClient(KubeClient):
    """Sends requests to one embedded server, without HTTP. Injected faults do not affect them."""

    def __init__(self, handler: Handler, user_agent: str) -> None:
        super().__init__(KubeConfig("direct:"), user_agent=user_agent)
        self._handler = handler
        self._sent = {"User-Agent": user_agent}

    async def __aenter__(self) -> DirectClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def get_apart(self, path: str) -> bytes:
        """GET a path; there are no connections."""
        return await self.request("GET", path)

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
        call = Call(method, path, MultiDict(params or {}), content_type=content_type, headers=self._sent)
        # The caller keeps its object; over HTTP the server would decode a copy.
        copied = bodies.copied(body) if body is not None else {}
        try:
            answer = msgspec.json.encode(self._handler.respond(call, copied))
        except StatusError as err:
            raise _api_error(call, err) from err
        if most_bytes is not None and len(answer) > most_bytes:
            raise TooLarge(f"the API server's answer is larger than {most_bytes} bytes")
        return answer

    @contextlib.asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str,
        params: Mapping[str, str],
        *,
        idle_timeout_s: float = DEFAULT_CLIENT_TIMING.request_s,
        gather_s: float = 0.0,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield its events, one JSON line each."""
        query = MultiDict({**params, "watch": "true", "allowWatchBookmarks": "true"})
        call = Call("GET", resource.path(namespace), query, headers=self._sent)
        async with contextlib.aclosing(self._handler.events(call)) as events:
            yield _lines(call, events)


async def _lines(call: Call, events: AsyncIterator[Obj]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield msgspec.json.encode(event)
    except StatusError as err:
        raise _api_error(call, err) from err


def _api_error(call: Call, err: StatusError) -> ApiError:
    causes = tuple(cause.message for cause in err.causes)
    text = f"{call.method} {call.path}: {err.code} {err.reason}: {err.message}"
    is_named = names(err.to_status().get("details") or {}, call.path)
    return api_error(err.code, err.reason, text, err.retry_after, causes, names_object=is_named)
