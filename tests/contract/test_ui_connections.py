"""`neuron-dra ui` and programs on the machine that connect to its port, and keep it busy or write nonsense to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from neuron_dra.ask.ui import session
from neuron_dra.ask.ui.connections import MOST
from neuron_dra.ask.ui.session import Session
from neuron_dra.ask.ui.timing import UiTiming
from tests.support import small_clusters as small

PATIENT = UiTiming(head_s=3600.0)
QUICK = UiTiming(head_s=0.05)
OWN = {"Sec-Fetch-Site": "same-origin"}
Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def made(timing: UiTiming = PATIENT) -> Session:
    return session.FileSession(small.cluster(small.base("a")), "cluster.json", timing)


async def connected(host: str, text: str = "") -> Wires:
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(text.encode())
    await writer.drain()
    return reader, writer


async def ended(wires: Wires) -> bytes:
    """Return what a connection gets up to its end, and close it."""
    async with asyncio.timeout(60):
        try:
            return await wires[0].read()
        except ConnectionResetError:
            return b""
        finally:
            wires[1].close()


@pytest.fixture
async def opened() -> AsyncIterator[list[Wires]]:
    all_of_them: list[Wires] = []
    yield all_of_them
    for _, writer in all_of_them:
        writer.close()


async def test_connections_beyond_the_most_are_ended_at_once(opened: list[Wires]) -> None:
    async with made().served() as server:
        for _ in range(MOST):
            opened.append(await connected(server.host, "GET / HTTP/1.1\r\n"))
        assert await ended(await connected(server.host, "GET / HTTP/1.1\r\n")) == b""


async def test_a_connection_that_never_ends_its_request_makes_room_for_the_page(opened: list[Wires]) -> None:
    silent = made(QUICK)
    async with silent.served() as server:
        for text in ("", "GET / HTTP/1.1\r\nHost: "):
            opened += [await connected(server.host, text) for _ in range(MOST // 2)]
        for each in opened:
            assert await ended(each) == b""
        headers = {**OWN, "Authorization": f"Bearer {silent.token}"}
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://{server.host}/api/stream", headers=headers) as answer:
                assert json.loads(await answer.content.readline())["whole"] is True


@pytest.mark.parametrize("kind", ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"])
async def test_a_body_without_an_end_is_not_read(kind: str) -> None:
    async with made().served() as server:
        wires = await connected(server.host, f"GET / HTTP/1.1\r\nHost: {server.host}\r\n{kind}\r\n\r\n")
        assert (await ended(wires)).startswith(b"HTTP/1.1 200 OK")


NONSENSE = {
    "no request": ("NONSENSE\r\n\r\n", (400,)),
    "no address": ("GET * HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", (400, 403)),
    # Older releases of aiohttp read the first Host only.
    "two hosts": ("GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil.example\r\nConnection: close\r\n\r\n", (400, 200)),
    "a long header": (f"GET / HTTP/1.1\r\nX: {'x' * 9000}\r\n\r\n", (400,)),
    "an escape": ("GET / HTTP/1.1\r\nHost: HOST\r\nX: \x1b[2J\r\n\r\n", (400,)),
}


@pytest.mark.parametrize(("text", "statuses"), NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_of_others_is_not_printed_in_the_terminal_of_the_user(
    text: str, statuses: tuple[int, ...], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with made().served() as server:
        wires = await connected(server.host, text.replace("HOST", server.host))
        status = (await ended(wires)).split()[1]
        assert int(status) in statuses
    assert (caplog.text, capfd.readouterr().err) == ("", "")


async def exchanged(server_host: str, ticket: str) -> tuple[int, str]:
    headers = {**OWN, "Authorization": f"Bearer {ticket}"}
    async with aiohttp.ClientSession() as client:
        async with client.get(f"http://{server_host}/api/token", headers=headers) as answer:
            return answer.status, await answer.text()


async def test_the_ticket_of_the_file_gives_the_token_once() -> None:
    page = made()
    async with page.served() as server:
        ticket = page.ticket
        assert await exchanged(server.host, page.token) == (401, REFUSED)
        assert await exchanged(server.host, ticket) == (200, page.token)
        assert await exchanged(server.host, ticket) == (401, REFUSED)
        assert await exchanged(server.host, "") == (401, REFUSED)


REFUSED = "the token is missing or wrong: open the page with `neuron-dra ui`\n"


async def test_the_ticket_is_no_token() -> None:
    page = made()
    headers = {**OWN, "Authorization": f"Bearer {page.ticket}"}
    async with page.served() as server, aiohttp.ClientSession() as client:
        async with client.get(f"http://{server.host}/api/stream", headers=headers) as answer:
            assert (answer.status, await answer.text()) == (401, REFUSED)


async def test_a_tab_that_is_not_seen_gets_one_line_with_what_it_does_not_have() -> None:
    page = made()
    headers = {**OWN, "Authorization": f"Bearer {page.token}"}
    async with page.served() as server, aiohttp.ClientSession() as client:
        url = f"http://{server.host}/api/stream?once"
        async with client.get(url, headers=headers) as answer:
            first = json.loads(await answer.text())
        async with client.get(f"{url}&version={first['version']}", headers=headers) as answer:
            second = json.loads(await answer.text())
        async with client.get(f"{url}&version=x", headers=headers) as answer:
            third = json.loads(await answer.text())
    assert (first["whole"], second["whole"], third["whole"]) == (True, False, True)
