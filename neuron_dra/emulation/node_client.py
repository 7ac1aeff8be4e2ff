"""The scripted node's requests to the API server: objects, the watch of its pods, Events."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp
import msgspec

from neuron_dra.kube import objects

Pod = dict[str, Any]

UNREACHABLE = (aiohttp.ClientError, TimeoutError)


class RefusedError(Exception):
    """The API server rejected a request; the text is its message."""

    def __init__(self, status: int, raw: bytes) -> None:
        self.status = status
        try:
            text = msgspec.json.decode(raw)["message"]
        except (msgspec.DecodeError, KeyError, TypeError):
            text = raw.decode(errors="replace")
        super().__init__(str(text))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class NodeClient:
    """Plain HTTP to an API server that requires no credentials."""

    def __init__(self, api_url: str, node_name: str) -> None:
        self._api_url = api_url
        self._node_name = node_name
        self._events: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._numbers = itertools.count()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(self._api_url)

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the node is not started")
        return self._session

    async def request(
        self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None
    ) -> Any:
        """Return the decoded reply; a PATCH is a merge patch. Raises RefusedError or one of UNREACHABLE."""
        content = "application/json"
        if method == "PATCH":
            content = "application/merge-patch+json"
        encoded_body = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=10)
        async with self._open_session().request(
            method, path, data=encoded_body, params=params, headers={"Content-Type": content}, timeout=timeout
        ) as response:
            raw = await response.read()
            if response.status >= 300:
                raise RefusedError(response.status, raw)
            return msgspec.json.decode(objects.readable(raw))

    async def pods(self) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield ("ALL", pods of the node), then ("MODIFIED" or "DELETED", pod) until the stream ends."""
        selector = {"fieldSelector": f"spec.nodeName={self._node_name}"}
        listed = await self.request("GET", "/api/v1/pods", params=selector)
        yield "ALL", listed["items"]
        params = {**selector, "watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self._open_session().get("/api/v1/pods", params=params, timeout=timeout) as response:
            if response.status != 200:
                return
            async for line in response.content:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    return
                yield ("DELETED" if event["type"] == "DELETED" else "MODIFIED"), event["object"]

    async def report(self, pod: Pod, reason: str, message: str) -> None:
        """Create a warning Event about a pod, or raise the count of an existing one. Ignores errors."""
        meta = pod["metadata"]
        key = meta["uid"], reason, message
        path = f"/api/v1/namespaces/{meta['namespace']}/events"
        name, count = self._events.get(key, (f"{meta['name']}.{next(self._numbers):016x}", 0))
        try:
            if count:
                await self.request("PATCH", f"{path}/{name}", {"count": count + 1, "lastTimestamp": now()})
            else:
                await self.request("POST", path, self._event(pod, name, reason, message))
        except (*UNREACHABLE, RefusedError):
            self._events.pop(key, None)
        else:
            self._events[key] = name, count + 1

    def _event(self, pod: Pod, name: str, reason: str, message: str) -> dict[str, Any]:
        meta, time_text = pod["metadata"], now()
        about = {key: meta[key] for key in ("namespace", "name", "uid")}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": self._node_name},
            "firstTimestamp": time_text,
            "lastTimestamp": time_text,
            "count": 1,
        }
