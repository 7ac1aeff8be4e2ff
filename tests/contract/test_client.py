"""The client with an API server that fails in every way: each failure is a distinct error and ends in time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.emulation.embedded_api import NOT_FOUND, Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.embedded_api.faults import STRANGE
from neuron_dra.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotServed,
    SettingsError,
    TooManyRequests,
    Unavailable,
)
from neuron_dra.kube import config
from neuron_dra.kube import lines as lines_module
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig, _TokenFile
from neuron_dra.kube.requests import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_dra.node import version
from tests.support.waiting import eventually


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("a"))
        yield server


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeConfig(api.url)) as made:
        yield made


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
contexts: [{name: one, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
"""


async def get(client: KubeClient, name: str = "a", timeout_s: float = 5.0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(await client.get(NODES, "", name, timeout_s=timeout_s))
    return body


async def test_client_reads_creates_replaces_deletes(api: EmbeddedApi, client: KubeClient) -> None:
    assert (await get(client))["metadata"]["name"] == "a"
    made = await client.create(NODES, "", node_object("b"))
    made["metadata"]["labels"] = {"x": "y"}
    assert (await client.replace(NODES, "", made))["metadata"]["labels"] == {"x": "y"}
    with pytest.raises(Conflict):
        await client.replace(NODES, "", made)
    with pytest.raises(AlreadyExists):
        await client.create(NODES, "", node_object("b"))
    with pytest.raises(Conflict):
        await client.delete(NODES, "", "b", uid="another")
    await client.delete(NODES, "", "b")
    with pytest.raises(NotFound):
        await get(client, "b")
    assert api.log[0].user_agent.startswith("neuron-dra/")


@pytest.mark.parametrize("name", NOT_FOUND)
async def test_only_status_with_the_name_is_not_found(api: EmbeddedApi, client: KubeClient, name: str) -> None:
    api.faults.add(NOT_FOUND[name].fault(verb="get", resource="nodes"))
    with pytest.raises(NotServed):
        await get(client)
    api.faults.add(InjectedFault(Do.NOT_FOUND, verb="get", resource="nodes"))
    with pytest.raises(NotFound):
        await get(client)


@pytest.mark.contract("S9")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ApiError),
        (403, Forbidden),
        (404, NotServed),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
async def test_error_class_and_message_per_status(
    api: EmbeddedApi, client: KubeClient, status: int, kind: type[ApiError]
) -> None:
    api.faults.add(InjectedFault(status=status, resource="nodes", message="because"))
    with pytest.raises(kind) as caught:
        await get(client)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert str(caught.value).startswith(f"GET /api/v1/nodes/a: {status} ")
    assert str(caught.value).endswith("because")


@pytest.mark.contract("S9")
async def test_retry_after_is_in_the_error(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(status=429, retry_after=7))
    with pytest.raises(TooManyRequests) as caught:
        await get(client)
    assert caught.value.retry_after_s == 7.0


async def test_an_answer_of_a_proxy_is_quoted_and_cut(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(status=502, body=b"<html>bad gateway</html>" + b"x" * 9000))
    with pytest.raises(Unavailable) as caught:
        await get(client)
    assert "<html>bad gateway" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"\xff"])
async def test_success_without_an_object_is_unavailable(api: EmbeddedApi, client: KubeClient, body: bytes) -> None:
    api.faults.add(InjectedFault(status=200, body=body, times=None))
    with pytest.raises(ApiError, match="not"):
        await client.create(NODES, "", node_object("b"))
    with pytest.raises(ApiError, match="not"):
        async for _ in client.list(NODES):
            pass


@pytest.mark.contract("P27")
async def test_hanging_server_is_unavailable(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(Do.HANG, times=None))
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match=r"GET /api/v1/nodes/a: .*timeout after 0.2 s"):
            await get(client, timeout_s=0.2)


async def test_broken_connection_is_unavailable(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(Do.DROP))
    with pytest.raises(Unavailable):
        await client.create(NODES, "", node_object("b"))
    await api.refuse_connections()
    with pytest.raises(Unavailable, match="does not answer"):
        await get(client)
    await api.resume()
    assert (await get(client))["metadata"]["name"] == "a"


@pytest.mark.contract("O5")
async def test_rotated_token_is_used_within_the_call(api: EmbeddedApi, tmp_path: Path) -> None:
    """The 401 comes first: the file changes between the request and its second try."""
    tokens = iter(["old", "new"])
    api.require_tokens("new")
    async with KubeClient(KubeConfig(api.url, token=lambda: next(tokens))) as client:
        assert (await get(client))["metadata"]["name"] == "a"


@pytest.mark.contract("O5")
async def test_changed_service_account_token_is_read(api: EmbeddedApi, tmp_path: Path) -> None:
    api.require_tokens("two")
    path = tmp_path / "token"
    path.write_text("one\n")
    async with KubeClient(KubeConfig(api.url, token=config._TokenFile(path))) as client:
        with pytest.raises(Forbidden) as caught:
            await get(client)
        assert caught.value.status == 401
        fresh = tmp_path / "fresh"
        fresh.write_text("two\n")
        os.rename(fresh, path)
        assert (await get(client))["metadata"]["name"] == "a"


async def test_unreadable_token_is_an_api_error(api: EmbeddedApi, tmp_path: Path) -> None:
    async with KubeClient(KubeConfig(api.url, token=config._TokenFile(tmp_path / "none"))) as client:
        with pytest.raises(Unavailable, match="No such file"):
            await get(client)


async def test_request_without_token_is_not_retried_on_401(api: EmbeddedApi, client: KubeClient) -> None:
    api.require_tokens("x")
    with pytest.raises(Forbidden):
        await get(client)
    assert len(api.log) == 1


async def test_long_list_is_read_in_pages(api: EmbeddedApi) -> None:
    for number in range(10):
        api.create(allocated_claim(f"job-{number}", "a", [number]))
    async with KubeClient(KubeConfig(api.url), page_size=4) as client:
        pages = [page.decoded(dict).objects async for page in client.list(RESOURCE_CLAIMS)]
    assert [len(page) for page in pages] == [4, 4, 2]
    assert {item["metadata"]["name"] for page in pages for item in page} == {f"job-{n}" for n in range(10)}


async def test_expired_list_continuation_is_gone(api: EmbeddedApi) -> None:
    for number in range(10):
        api.create(allocated_claim(f"job-{number}", "a", [number]))
    async with KubeClient(KubeConfig(api.url), page_size=4) as client:
        pages = client.list(RESOURCE_CLAIMS)
        await anext(pages)
        api.compact()
        with pytest.raises(Gone):
            await anext(pages)


async def test_watch_yields_events_until_the_server_ends(api: EmbeddedApi, client: KubeClient) -> None:
    async with client.watch(NODES, "", {"resourceVersion": "0"}, idle_timeout_s=120) as lines:
        assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "a"
        api.create(node_object("b" * 60, labels={"long": "x" * 60}))
        assert json.loads(await anext(lines))["type"] == "ADDED"
        api.watches.close()
        assert [line async for line in lines] == []


async def test_silent_watch_is_unavailable(api: EmbeddedApi, client: KubeClient) -> None:
    async def follow() -> None:
        async with client.watch(NODES, "", {"resourceVersion": "0"}, idle_timeout_s=0.2) as lines:
            async for _ in lines:
                pass

    with pytest.raises(Unavailable, match="WATCH /api/v1/nodes"):
        await follow()


async def test_rejected_watch_raises_the_statuss_error(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(verb="watch", status=410))
    with pytest.raises(Gone):
        async with client.watch(NODES, "", {"resourceVersion": "1"}, idle_timeout_s=120):
            pass


def test_paths_are_those_of_the_api() -> None:
    assert RESOURCE_SLICES.path("", "a") == "/apis/resource.k8s.io/v1/resourceslices/a"
    assert RESOURCE_CLAIMS.path("ml", "job", "status") == (
        "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/job/status"
    )
    assert NODES.path() == "/api/v1/nodes"


# Where the server is.


def test_no_server_outside_a_cluster_without_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="set --kubeconfig"):
        config.in_cluster({}, tmp_path)
    with pytest.raises(SettingsError, match="no such file"):
        config.from_settings("", str(tmp_path / "none"), {})


def test_a_url_beats_everything() -> None:
    assert config.from_settings("http://127.0.0.1:1/", "", {}).url == "http://127.0.0.1:1"


async def test_a_kubeconfig_is_read_with_its_token(api: EmbeddedApi, tmp_path: Path) -> None:
    path = api.write_kubeconfig(tmp_path / "config", token="secret")
    loaded = await asyncio.to_thread(config.from_kubeconfig, path)
    assert loaded.url == api.url
    api.require_tokens("secret")
    async with KubeClient(loaded) as client:
        assert (await get(client))["metadata"]["name"] == "a"


def test_kubeconfig_library_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    code = "import pathlib, sys; from neuron_dra.kube.config import from_kubeconfig\n"
    code += "print(from_kubeconfig(pathlib.Path(sys.argv[1])).url, 'kubernetes_asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "http://127.0.0.1:1 False\n"


def test_unusable_kubeconfig_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.replace("current-context: one", "current-context: two"))
    with pytest.raises(SettingsError, match=f"--kubeconfig {path}: it cannot be used: .*two"):
        config.from_kubeconfig(path)


def test_kubeconfig_with_invalid_url_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.replace("http://127.0.0.1:1", "http://127.0.0.1:many"))
    with pytest.raises(SettingsError, match=f"--kubeconfig {path}: invalid API server URL 'http://127.0.0.1:many'"):
        config.from_kubeconfig(path)


# Versions.


@pytest.mark.contract("S27")
async def test_server_without_the_v1_api_is_recognised() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.33.2"})
        versions = [{"groupVersion": "resource.k8s.io/v1beta1", "version": "v1beta1"}]
        groups = [{"name": "resource.k8s.io", "versions": versions}]
        return web.json_response({"kind": "APIGroupList", "groups": groups})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with KubeClient(KubeConfig(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            assert await version.server(client) == version.ServerVersion("v1.33.2", serves_v1=False)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("strange", list(STRANGE))
async def test_strange_reply_for_the_version_is_asked_again(strange: str) -> None:
    reply, asked = STRANGE[strange], []

    async def answer(request: web.Request) -> web.Response:
        if request.path != "/version":
            groups = [{"name": "resource.k8s.io", "versions": [{"version": "v1"}]}]
            return web.json_response({"kind": "APIGroupList", "groups": groups})
        asked.append(request)
        if len(asked) > 1:
            return web.json_response({"gitVersion": "v1.37.0"})
        return web.Response(body=reply.body, content_type=reply.content_type, status=reply.status)

    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", answer)
    async with TestServer(app) as server, KubeClient(KubeConfig(f"http://127.0.0.1:{server.port}")) as client:
        assert await version.server(client, (0.01, 0.05)) == version.ServerVersion("v1.37.0", serves_v1=True)


@pytest.mark.parametrize("damaged", [b"a\nb", b"a\x00b", b"a\xff", "ä".encode(), b"a\r\nX-Header: b"])
async def test_damaged_token_file_is_a_retryable_error(api: EmbeddedApi, tmp_path: Path, damaged: bytes) -> None:
    """31.12: the error of the HTTP library ended the program."""
    file = tmp_path / "token"
    file.write_bytes(damaged)
    async with KubeClient(KubeConfig(api.url, token=_TokenFile(file))) as client:
        with pytest.raises(Unavailable, match="the token is not a line of ASCII text"):
            await client.get(NODES, "", "node-a")
        with pytest.raises(Unavailable, match="the token is not a line of ASCII text"):
            async with client.watch(NODES, "", {}, idle_timeout_s=1.0):
                pass
        file.unlink()
        file.write_text("good\n")
        assert client._token() == "good"


async def test_proxy_404_is_no_answer_about_the_version(api: EmbeddedApi) -> None:
    """The plugin ended as if the API server were too old."""
    proxy = api.faults.add(InjectedFault(verb="get", resource="/apis", status=404, body=b"404 page not found", times=2))
    async with KubeClient(KubeConfig(api.url)) as client:
        assert (await version.server(client, (0.01, 0.05))).serves_v1
    assert proxy.hits == 2


async def test_the_embedded_server_serves_the_v1_api(client: KubeClient) -> None:
    assert (await version.server(client)).serves_v1


async def test_gathering_watch_leaves_the_socket_unread(api: EmbeddedApi) -> None:
    """13.16: kubelets of 10,000 nodes send a heartbeat every 30 ms; reading each on arrival would wake the process."""
    url = f"{api.url}{NODES.path('')}"
    async with aiohttp.ClientSession() as session, session.get(url, params={"watch": "true"}) as response:
        lines = lines_module.of(response, gather_s=0.3)
        assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "a"
        second = asyncio.ensure_future(anext(lines))
        assert response.connection is not None
        transport = response.connection.transport
        assert isinstance(transport, asyncio.Transport)
        await eventually(lambda: not transport.is_reading())
        api.create(node_object("b"))
        assert json.loads(await second)["object"]["metadata"]["name"] == "b"
