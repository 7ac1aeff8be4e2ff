"""`neuron-dra ui`: who may ask the page's server, and what it tells."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from neuron_dra.ask.read.timing import WatchedTiming
from neuron_dra.ask.ui import opening, session
from neuron_dra.ask.ui.guard import POLICY
from neuron_dra.ask.ui.server import Changed, PageServer
from neuron_dra.ask.ui.session import Session
from neuron_dra.ask.ui.table import Table
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.kube.config import KubeConfig
from tests.support import small_clusters as small
from tests.support.waiting import eventually

OWN = {"Sec-Fetch-Site": "same-origin"}
Page = tuple[Session, PageServer]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    made = session.of_file(small.cluster(small.base("a", "b")), "cluster.json")
    async with made.served() as server:
        yield made, server


async def asked(page: Page, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return status and text of an answer to a request with these headers; underscores stand for hyphens."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"http://{page[1].host}{path}", headers=given) as answer,
    ):
        return answer.status, await answer.text() if answer.status != 200 else ""


ABOUT = "/api/about?kind=Node&namespace=&name=a"


async def test_the_page_gets_what_it_asks_for(page: Page) -> None:
    headers = {**OWN, "Authorization": f"Bearer {page[0].token}"}
    assert await asked(page, ABOUT, **headers) == (200, "")


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/stream", ABOUT])
@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", ""])
async def test_a_foreign_host_gets_nothing(page: Page, path: str, host: str) -> None:
    headers = {**OWN, "Authorization": f"Bearer {page[0].token}", "Host": host}
    status, text = await asked(page, path, **headers)
    assert status in (400, 421)
    assert page[0].token not in text


async def test_localhost_with_the_port_is_a_foreign_host_too(page: Page) -> None:
    port = page[1].host.rpartition(":")[2]
    status, text = await asked(page, "/", Host=f"localhost:{port}")
    assert (status, text) == (421, f"this server is http://{page[1].host}: open it with `neuron-dra ui`\n")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", ""])
@pytest.mark.parametrize("path", ["/main.js", "/api/stream", ABOUT])
async def test_another_origin_gets_nothing_even_with_the_token(page: Page, path: str, site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Authorization": f"Bearer {page[0].token}"}
    assert await asked(page, path, **headers) == (403, "only the page itself may ask\n")


async def test_another_origin_that_forges_its_site_is_known_by_its_origin(page: Page) -> None:
    headers = {**OWN, "Authorization": f"Bearer {page[0].token}", "Origin": "http://127.0.0.1:1"}
    assert await asked(page, ABOUT, **headers) == (403, "only the page itself may ask\n")


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Basic x", "Bearer \u00e9", "bearer {token}", "{token}"])
@pytest.mark.parametrize("path", ["/api/stream", ABOUT, "/api/", "/api/nothing"])
async def test_without_the_token_nothing_is_told(page: Page, path: str, given: str) -> None:
    headers = {**OWN, "Authorization": given.format(token=page[0].token)}
    status, text = await asked(page, path, **headers)
    assert (status, text) == (401, "the token is missing or wrong: open the page with `neuron-dra ui`\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_nothing_can_be_changed(page: Page, method: str) -> None:
    headers = {**OWN, "Authorization": f"Bearer {page[0].token}"}
    assert (await asked(page, ABOUT, method, **headers))[0] == 405


async def test_the_page_is_not_shown_in_a_frame(page: Page) -> None:
    assert await asked(page, "/", Sec_Fetch_Dest="iframe") == (403, "the page is not shown inside of others\n")
    assert await asked(page, "/", Sec_Fetch_Dest="document", Sec_Fetch_Site="cross-site") == (200, "")


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/page", "/index.html/..", "/main.js%00", "/x"])
async def test_only_files_of_the_page_are_sent(page: Page, path: str) -> None:
    assert (await asked(page, path, **OWN))[0] in (200, 404)
    assert "import" not in (await asked(page, path, **OWN))[1]


async def test_every_answer_has_the_strict_policy(page: Page) -> None:
    async with aiohttp.ClientSession() as client:
        for path in ("/", "/app.css", "/api/stream", "/nothing"):
            async with client.get(f"http://{page[1].host}{path}") as answer:
                told = answer.headers
                assert told["Content-Security-Policy"] == POLICY
                assert told["Cache-Control"] == "no-store"
                assert told["Cross-Origin-Resource-Policy"] == "same-origin"
                assert told["Server"] == "neuron-dra"
                assert "Set-Cookie" not in told
                assert "Access-Control-Allow-Origin" not in told


async def test_a_question_that_cannot_be_answered_is_told_with_the_same_policy() -> None:
    async def fails(*_: str) -> None:
        raise KeyError("metadata")

    server = PageServer(Table(), Changed(), fails, "token")
    async with server.listening() as host, aiohttp.ClientSession() as client:
        async with client.get(f"http://{host}{ABOUT}", headers={**OWN, "Authorization": "Bearer token"}) as answer:
            assert (answer.status, await answer.text()) == (500, "this cannot be answered: KeyError: 'metadata'\n")
            assert answer.headers["Content-Security-Policy"] == POLICY


class Failing(Session):
    async def run(self) -> None:
        raise KeyError("metadata")


async def test_a_page_is_told_that_it_stands_still() -> None:
    made = Failing({"name": "cluster.json"})
    async with made.served() as server, asyncio.timeout(60):
        assert (await connection((made, server), "failed"))["text"] == "KeyError: 'metadata'"


async def test_nothing_but_this_machine_can_connect(page: Page) -> None:
    assert page[1].host.startswith("127.0.0.1:")


def test_the_token_is_in_a_file_that_only_the_user_can_read() -> None:
    with opening.redirecting("http://127.0.0.1:1/#token=secret") as file:
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(file.parent).st_mode) == 0o700
        assert "http://127.0.0.1:1/#token=secret" in file.read_text()
        assert "secret" not in str(file)
    assert not Path(file).exists()


async def lines(page: Page) -> AsyncGenerator[dict[str, Any], None]:
    headers = {**OWN, "Authorization": f"Bearer {page[0].token}"}
    async with (
        aiohttp.ClientSession(read_bufsize=2**24) as client,
        client.get(f"http://{page[1].host}/api/stream", headers=headers) as answer,
    ):
        async for line in answer.content:
            yield json.loads(line)


async def test_a_page_gets_all_rows_then_those_that_change() -> None:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        for item in small.base("a"):
            api.apply(item)
        made = session.of_cluster(KubeConfig(api.url), "default")
        async with made.served() as server, asyncio.timeout(60), aclosing(lines((made, server))) as stream:
            async for line in stream:
                if line["set"].get("connection", {}).get("", {}).get("state") == "live":
                    break
            assert line["set"]["nodes"]["a"]["state"] == "free"
            cordoned = {**small.node("a"), "spec": {"unschedulable": True}}
            api.apply(cordoned)
            async for line in stream:
                if line["set"].get("nodes"):
                    break
            assert line["whole"] is False
            assert {name: row["state"] for name, row in line["set"]["nodes"].items()} == {"a": "cordoned"}
            api.delete("Node", "a")
            async for line in stream:
                if line["gone"].get("nodes"):
                    break
            assert line["gone"]["nodes"] == ["a"]


async def test_all_pages_share_one_set_of_watches() -> None:
    async with EmbeddedApi() as api:
        made = session.of_cluster(KubeConfig(api.url), "default")
        async with made.served() as server, asyncio.timeout(60):
            for _ in range(3):
                await connection((made, server), "live")
            watched = [request.resource for request in api.requests("watch")]
            assert sorted(watched) == sorted(set(watched))
            assert "resourceslices" in watched


async def connection(page: Page, state: str) -> dict[str, str]:
    """Return what a page is told of the connection, once it is in this state."""
    async with aclosing(lines(page)) as stream:
        async for line in stream:
            current: dict[str, str] = line["set"].get("connection", {}).get("", {})
            if current.get("state") == state:
                return current
    raise AssertionError("the stream has ended")


QUICK = WatchedTiming(look_s=0.05, again_s=0.05, gather_s=0.0)


async def test_a_page_is_told_that_the_connection_is_lost_and_that_it_is_back() -> None:
    async with EmbeddedApi() as api:
        made = session.of_cluster(KubeConfig(api.url), "default", watched=QUICK)
        async with made.served() as server, asyncio.timeout(60):
            assert (await connection((made, server), "live"))["text"] == ""
            await api.refuse_connections()
            assert "connect" in (await connection((made, server), "lost"))["text"].lower()
            await api.resume()
            assert (await connection((made, server), "live"))["text"] == ""


async def test_a_page_is_told_that_the_credentials_have_expired() -> None:
    async with EmbeddedApi() as api:
        made = session.of_cluster(KubeConfig(api.url), "default", watched=QUICK)
        async with made.served() as server, asyncio.timeout(60):
            await connection((made, server), "live")
            api.require_tokens("another")
            told = await connection((made, server), "expired")
            assert told["text"] == "the API server rejects the credentials (401): log in again, and check the context"


async def test_a_page_is_told_that_nothing_may_be_read() -> None:
    async with EmbeddedApi() as api:
        api.faults.add(InjectedFault(verb="list", status=403, times=None))
        made = session.of_cluster(KubeConfig(api.url), "default", watched=QUICK)
        async with made.served() as server, asyncio.timeout(60):
            assert (await connection((made, server), "denied"))["text"] == (
                "your account may read nothing that this page shows"
            )


async def exchanged(host: str, ticket: str) -> str:
    """Return the token that the page gets for the ticket in the file."""
    headers = {**OWN, "Authorization": f"Bearer {ticket}"}
    async with aiohttp.ClientSession() as client, client.get(f"http://{host}/api/token", headers=headers) as answer:
        return await answer.text()


async def test_the_token_is_in_no_argument_and_the_file_is_gone_once_the_page_is_open(tmp_path: Path) -> None:
    opened, snapshot = tmp_path / "opened", tmp_path / "cluster.json"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(0o755)
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": small.base("a")}))
    words = [sys.executable, "-m", "neuron_dra.cli", "ui", "--snapshot", str(snapshot)]
    environment = {**os.environ, "BROWSER": str(browser)}
    process = await asyncio.create_subprocess_exec(*words, env=environment, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        await eventually(opened.exists)
        file = Path(opened.read_text().strip().removeprefix("file://"))
        address = re.search(r'url=(http://(127.0.0.1:\d+)/#ticket=([\w-]{43}))"', file.read_text())
        assert address is not None
        ticket = address[3]
        assert ticket not in opened.read_text()
        assert ticket not in Path(f"/proc/{process.pid}/cmdline").read_text()
        token = await exchanged(address[2], ticket)
        await eventually(lambda: not file.parent.exists())
        headers = {**OWN, "Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://{address[2]}/api/stream", headers=headers) as answer,
        ):
            assert json.loads(await answer.content.readline())["whole"] is True
        process.send_signal(signal.SIGINT)
        said = (await process.stderr.read()).decode()
        assert (await process.wait(), token in said, ticket in said) == (0, False, False)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
