"""A small HTTP client for the contract suite, and the two servers that it tests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi

DRA = "/apis/resource.k8s.io/v1"
SLICES = f"{DRA}/resourceslices"
THINGS_GROUP = "contract.neuron.aws.com"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason"))

    @property
    def causes(self) -> set[tuple[str, str]]:
        """The reasons and fields of an error; messages may differ."""
        listed = (self.body.get("details") or {}).get("causes") or []
        return {(cause.get("reason", ""), cause.get("field", "")) for cause in listed}


class Watch:
    """An open watch stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self, timeout_s: float = 20.0) -> Obj:
        """Return the next event that is not a bookmark. Raises EOFError when the stream ends."""
        while True:
            event = await self.line(timeout_s)
            if event["type"] != "BOOKMARK":
                return event

    async def line(self, timeout_s: float = 20.0) -> Obj:
        async with asyncio.timeout(timeout_s):
            line = await self._response.content.readline()
        if not line:
            raise EOFError("the watch ended")
        return dict(json.loads(line))

    async def rest(self, timeout_s: float = 20.0) -> list[Obj]:
        """Return all events until the stream ends."""
        events = []
        with contextlib.suppress(EOFError):
            while True:
                events.append(await self.line(timeout_s))
        return events


@dataclass(slots=True)
class Server:
    """One API server, and the test's own namespace on it."""

    session: aiohttp.ClientSession
    name: str
    namespace: str = field(default_factory=lambda: f"contract-{uuid.uuid4().hex[:8]}")
    embedded: EmbeddedApi | None = None
    _leftovers: list[str] = field(default_factory=list)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        **params: str,
    ) -> Answer:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": accept}
        async with self.session.request(method, path, data=data, headers=headers, params=params) as response:
            raw = await response.read()
            try:
                decoded = json.loads(raw)
            except (ValueError, RecursionError):
                decoded = {"raw": raw.decode(errors="replace")}
            if method == "POST" and response.status == 201 and "/namespaces/" not in path and "dryRun" not in params:
                self._leftovers.append(f"{path}/{decoded['metadata']['name']}")
            return Answer(response.status, decoded, dict(response.headers))

    async def get(self, path: str, **params: str) -> Answer:
        return await self.call("GET", path, **params)

    async def post(self, path: str, body: Any, **params: str) -> Answer:
        return await self.call("POST", path, body, **params)

    async def put(self, path: str, body: Any, **params: str) -> Answer:
        return await self.call("PUT", path, body, **params)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **params: str) -> Answer:
        return await self.call("PATCH", path, body, content_type=content_type, **params)

    async def delete(self, path: str, body: Any = None, **params: str) -> Answer:
        return await self.call("DELETE", path, body, **params)

    async def made(self, path: str, body: Obj) -> Obj:
        """Create an object and return it; any status but 201 fails the test."""
        answer = await self.post(path, body)
        assert answer.status == 201, answer.body
        return dict(answer.body)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json", **params: str) -> AsyncIterator[Watch]:
        timeout, headers = aiohttp.ClientTimeout(total=60), {"Accept": accept}
        wanted = {"watch": "true", **params}
        async with self.session.get(path, params=wanted, headers=headers, timeout=timeout) as response:
            assert response.status == 200, await response.text()
            yield Watch(response)

    async def until(self, path: str, condition: Callable[[Answer], Any], timeout_s: float = 120.0) -> Answer:
        """GET until the reply meets the condition, because controllers need time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition(answer := await self.get(path)):
            assert asyncio.get_running_loop().time() < deadline, f"{path} after {timeout_s} s: {answer.body}"
            await asyncio.sleep(0.05)
        return answer

    def place(self, plural: str) -> str:
        """Return the path of a namespaced resource in this test's namespace."""
        roots = {
            "pods": "/api/v1",
            "configmaps": "/api/v1",
            "events": "/api/v1",
            "serviceaccounts": "/api/v1",
            "leases": "/apis/coordination.k8s.io/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "things": f"/apis/{THINGS_GROUP}/v1beta1",
        }
        return f"{roots.get(plural, DRA)}/namespaces/{self.namespace}/{plural}"

    async def open(self) -> None:
        answer = await self.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        assert answer.status == 201, answer.body
        await self.post(self.place("serviceaccounts"), {"metadata": {"name": "default"}})  # needed by pods

    async def close(self) -> None:
        for path in reversed(self._leftovers):
            await self.patch(path, {"metadata": {"finalizers": None}})
            await self.delete(path)


THINGS_CRD: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"things.{THINGS_GROUP}"},
    "spec": {
        "group": THINGS_GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Thing", "listKind": "ThingList", "plural": "things", "singular": "thing"},
        "versions": [
            {
                "name": version,
                "served": True,
                "storage": version == "v1beta1",
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            for name in ("spec", "status")
                        },
                    }
                },
            }
            for version in ("v1beta1", "v1")
        ],
    },
}


async def serve_things(server: Server) -> None:
    """Have the server serve the custom kind Thing, stored as v1beta1 and served as v1 too."""
    if server.embedded:
        server.embedded.register(THINGS_GROUP, ("v1beta1", "v1"), "Thing", "things")
        return
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with server.session.post(definitions, json=THINGS_CRD) as response:
        assert response.status in (201, 409), await response.text()

    def established(answer: Answer) -> bool:
        conditions = answer.body.get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await server.until(f"{definitions}/{THINGS_CRD['metadata']['name']}", established)
    await server.until(f"/apis/{THINGS_GROUP}/v1beta1", lambda answer: answer.status == 200)
    await server.until(server.place("things"), lambda answer: answer.status == 200)


@contextlib.contextmanager
def _file(entry: Obj, key: str) -> Any:
    """Yield the path of a certificate or key that a kubeconfig names or holds."""
    if f"{key}-data" not in entry:
        yield entry.get(key)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(base64.b64decode(entry[f"{key}-data"]))
        file.flush()
        yield file.name


def real_session(path: Path, make_socket: Callable[[Any], socket.socket]) -> aiohttp.ClientSession:
    """Open a session with the server and credentials of a kubeconfig (token or client certificate)."""
    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    user = config["users"][0]["user"]
    with _file(cluster, "certificate-authority") as authority:
        context = ssl.create_default_context(cafile=authority)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _file(user, "client-certificate") as certificate, _file(user, "client-key") as key:
        if certificate:
            context.load_cert_chain(certificate, key)
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return aiohttp.ClientSession(
        cluster["server"], connector=aiohttp.TCPConnector(ssl=context, socket_factory=make_socket), headers=headers
    )
