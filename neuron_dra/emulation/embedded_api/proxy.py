"""Requests to ports of pods through the API server (`pods/proxy`).

A pod has no address here, so a test says where each of its ports is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web

from neuron_dra.emulation.embedded_api.errors import StatusError

TIMEOUT_S: Final = 30.0
_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/:]+):([^/]+)/proxy/(.*)")


@dataclass(frozen=True, slots=True)
class Addressed:
    """A port of a pod, and the path behind it."""

    namespace: str
    pod: str
    port: str
    path: str


def addressed(path: str) -> Addressed | None:
    """Return the port that a request's path names, None for other paths."""
    match = _PATH.fullmatch(path)
    if match:
        return Addressed(*match.groups())
    return None


class Proxy:
    """Forwards requests. `ports` has the URL of each port, by namespace, pod and number; `forbidden` rejects all."""

    def __init__(self) -> None:
        self.ports: dict[tuple[str, str, str], str] = {}
        self.forbidden = False

    async def respond(self, request: web.Request, to: Addressed) -> web.Response:
        """Return the response of the port. Raises ApiError."""
        if self.forbidden:
            text = f'pods "{to.pod}" is forbidden: User "reader" cannot get resource "pods/proxy" in API group ""'
            raise StatusError(403, "Forbidden", f'{text} in the namespace "{to.namespace}"')
        url = self.ports.get((to.namespace, to.pod, to.port))
        if url is None:
            raise StatusError(503, "ServiceUnavailable", "error trying to reach service: dial tcp: connection refused")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/{to.path}") as answer:
                return web.Response(status=answer.status, body=await answer.read())
        except (aiohttp.ClientError, TimeoutError) as err:
            raise StatusError(503, "ServiceUnavailable", f"error trying to reach service: {err}") from err
