"""The client's connections to a server that replies byte by byte, too late, too much, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from neuron_dra.errors import SettingsError, TooManyRequests, Unavailable
from neuron_dra.kube import client as client_module
from neuron_dra.kube import config
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support.waiting import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n4\r\n two\r\n0\r\n\r\n"


class Script:
    """A server on loopback; the test defines `serve`, which handles a connection."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.open = 0
        self.requests: list[bytes] = []
        self.serve: Serve = self.answer
        self.answers: list[bytes] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.serve(reader, writer)
        writer.close()
        self.open -= 1

    async def read(self, reader: asyncio.StreamReader) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the replies in turn, the last one repeatedly."""
        while True:
            await self.read(reader)
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    made = Script()
    made.answers = [OK]
    listening = await asyncio.start_server(made.connected, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    listening.close()
    await eventually(lambda: made.open == 0, what="all connections ended")


@pytest.fixture
async def client(server: Script) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeConfig(f"http://127.0.0.1:{server.port}/prefix"), user_agent="tests/1") as made:
        yield made


async def get(client: KubeClient, path: str = "/api/v1/nodes/a", timeout_s: float = 5.0) -> bytes:
    return await client.request("GET", path, timeout_s=timeout_s)


async def test_gets_share_one_connection(server: Script, client: KubeClient) -> None:
    server.answers = [OK, CHUNKED, OK]
    assert [await get(client) for _ in range(3)] == [b"hi", b"one two", b"hi"]
    assert server.connections == 1


async def test_get_apart_has_a_connection_of_its_own(server: Script, client: KubeClient) -> None:
    """(32.1) Behind a load balancer, a connection that is kept shows one API server of several."""
    await get(client)
    assert [await client.get_apart("/version") for _ in range(3)] == [b"hi"] * 3
    await get(client)
    assert server.connections == 4
    await eventually(lambda: server.open == 1, what="the connections apart ended")


async def test_request_has_path_prefix_agent_and_token(server: Script) -> None:
    url = f"http://127.0.0.1:{server.port}/prefix/"
    async with KubeClient(KubeConfig(url, token=lambda: "secret"), user_agent="tests/1") as client:
        await get(client)
    [first, *headers] = server.requests[0].decode().strip().split("\r\n")
    assert first == "GET /prefix/api/v1/nodes/a HTTP/1.1"
    assert dict(line.split(": ", 1) for line in headers) == {
        "Host": f"127.0.0.1:{server.port}",
        "User-Agent": "tests/1",
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "Authorization": "Bearer secret",
    }


async def test_a_name_cannot_change_the_request(server: Script, client: KubeClient) -> None:
    await get(client, "/nodes/a b?watch=1#x\r\nEvil: yes/ü")
    [request] = server.requests
    assert request.startswith(b"GET /prefix/nodes/a%20b%3Fwatch%3D1%23x%0D%0AEvil:%20yes/%C3%BC HTTP/1.1\r\nHost: ")
    assert b"\r\nEvil" not in request


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK, b"hi"),
        (CHUNKED, b"one two"),
        (b"HTTP/1.1 103 Early Hints\r\nRetry-After: 3\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", b""),
    ],
    ids=["length", "chunks", "hints before", "no body"],
)
async def test_an_answer_in_single_bytes_is_read(server: Script, client: KubeClient, raw: bytes, body: bytes) -> None:
    server.serve = one_byte_at_a_time(server, raw)
    assert await get(client) == body


async def test_retry_after_is_read(server: Script, client: KubeClient) -> None:
    server.serve = one_byte_at_a_time(server, b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(TooManyRequests) as caught:
        await get(client)
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("retry_after", "body"),
    [("²".encode(), b"{}"), (b"7", b'{"details": {"causes": {"a": "b"}}}')],
    ids=["a digit that is no number", "causes that are no list"],
)
async def test_an_error_of_another_form_is_one(
    server: Script, client: KubeClient, retry_after: bytes, body: bytes
) -> None:
    """31, mend 2: a ValueError of a header ended the plugin; from Python 3.12 on, so did a KeyError of a body."""
    head = b"HTTP/1.1 429 Slow\r\nRetry-After: %s\r\nContent-Length: %d\r\n\r\n" % (retry_after, len(body))
    server.answers = [head + body]
    with pytest.raises(TooManyRequests):
        await get(client)


async def test_a_redirect_is_not_followed(server: Script, client: KubeClient) -> None:
    server.answers = [b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 5\r\n\r\nlogin"]
    with pytest.raises(Exception, match="302 : login"):
        await get(client)
    assert len(server.requests) == 1


async def test_reply_without_length_ends_with_connection(server: Script, client: KubeClient) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.0 502 Bad\r\n\r\nno upstream")
        await writer.drain()

    server.serve = serve
    with pytest.raises(Unavailable, match="502 : no upstream"):
        await get(client)


async def test_connection_close_is_followed(server: Script, client: KubeClient) -> None:
    server.answers = [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
    assert [await get(client), await get(client)] == [b"hi"] * 2
    assert server.connections == 2
    await eventually(lambda: server.open == 0, what="both connections ended")


@pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
async def test_closed_idle_connection_is_replaced(server: Script, client: KubeClient, farewell: bytes) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(farewell)

    server.serve = once
    assert await get(client) == b"hi"
    await eventually(lambda: server.open == 0, what="the server ended the connection")
    assert await get(client) == b"hi"
    assert server.connections == 2


async def test_get_that_meets_a_farewell_is_sent_again(server: Script, client: KubeClient) -> None:
    """The farewell of an idle connection arrives after the request was sent, and looks like its reply."""
    farewell = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    server.answers = [OK, farewell, OK]
    assert await get(client) == b"hi"
    assert await get(client) == b"hi"


async def test_get_on_a_closed_connection_is_sent_again(server: Script, client: KubeClient) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(OK)
        await server.read(reader)  # and close without a reply

    server.serve = serve
    await get(client)
    assert await get(client) == b"hi"
    assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize(
    "raw",
    [b"", OK[:-1], CHUNKED[:-4], b"\x16\x03\x01 TLS, perhaps", OK[:17] + b"Content-Length: 3\r\n" + OK[17:]],
    ids=["nothing", "half", "half a chunk", "no HTTP", "two lengths"],
)
async def test_a_broken_answer_is_unavailable(server: Script, client: KubeClient, raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(raw)
        await writer.drain()

    server.serve = serve
    with pytest.raises(Unavailable, match="GET /api/v1/nodes/a: the API server does not answer"):
        await get(client)


async def test_too_large_reply_is_unavailable(
    server: Script, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 5)
    server.answers = [CHUNKED]
    with pytest.raises(Unavailable, match="larger than 5 bytes"):
        await get(client)


async def test_late_reply_is_not_used_for_the_next_request(server: Script, client: KubeClient) -> None:
    late = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        await late.wait()
        writer.write(OK.replace(b"hi", b"no"))
        await writer.drain()

    server.serve = serve
    with pytest.raises(Unavailable, match=r"timeout after 0\.1 s"):
        await get(client, timeout_s=0.1)
    server.serve = server.answer
    late.set()
    await eventually(lambda: server.open == 0, what="the first connection ended")
    assert await get(client) == b"hi"
    assert server.connections == 2


async def test_sixteen_concurrent_gets_keep_connections(server: Script, client: KubeClient) -> None:
    arrived = asyncio.Barrier(16)

    async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.read(reader)
            await arrived.wait()
            writer.write(OK)

    server.serve = together
    for _ in range(2):
        assert await asyncio.gather(*(get(client) for _ in range(16))) == [b"hi"] * 16
    assert server.connections == 16


async def test_closing_the_client_closes_connections(server: Script) -> None:
    async with KubeClient(KubeConfig(f"http://127.0.0.1:{server.port}")) as client:
        await get(client)
    await eventually(lambda: server.open == 0, what="all connections ended")


async def test_refused_connection_error_names_the_url() -> None:
    async with KubeClient(KubeConfig("http://127.0.0.1:1")) as client:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1.*1"):
            await get(client)


@pytest.mark.parametrize("url", ["http://127.0.0.1:many", "https://[::1", "http://127.0.0.1:70000"])
def test_an_invalid_server_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match=r"invalid API server URL .*write https://host:port"):
        config.from_settings(url, "", {})


def one_byte_at_a_time(server: Script, raw: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        for position in range(len(raw)):
            writer.write(raw[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    return serve
