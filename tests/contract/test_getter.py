"""GETs on kept connections, against a server that answers byte by byte, too late, too much, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from neuron_dra.errors import SettingsError
from neuron_dra.kube import getter as getter_module
from neuron_dra.kube.getter import Answer, Getter
from neuron_dra.testing.waiting import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n4\r\n two\r\n0\r\n\r\n"


class Script:
    """A server on loopback: what `serve` does with a connection is up to the test."""

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
        """Give the answers in turn, the last one for ever."""
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
async def getter(server: Script) -> AsyncIterator[Getter]:
    made = Getter(f"http://127.0.0.1:{server.port}/prefix", None, "tests/1")
    yield made
    made.close()


async def get(getter: Getter, path: str = "/api/v1/nodes/a", timeout_s: float = 5.0) -> Answer:
    return await getter.get(path, None, timeout_s)


async def test_one_connection_serves_one_get_after_another(server: Script, getter: Getter) -> None:
    server.answers = [OK, CHUNKED, OK]
    found = [await get(getter) for _ in range(3)]
    assert found == [Answer(200, b"hi"), Answer(200, b"one two"), Answer(200, b"hi")]
    assert server.connections == 1


async def test_the_request_says_who_asks_for_what_as_whom(server: Script, getter: Getter) -> None:
    await getter.get("/api/v1/nodes/a", "secret", 5.0)
    assert server.requests == [
        b"GET /prefix/api/v1/nodes/a HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: tests/1\r\n"
        b"Accept: application/json\r\nAuthorization: Bearer secret\r\n\r\n" % server.port
    ]


async def test_a_name_cannot_say_more_than_a_name(server: Script, getter: Getter) -> None:
    await get(getter, "/nodes/a b?watch=1#x\r\nEvil: yes/ü")
    [request] = server.requests
    assert request.startswith(b"GET /prefix/nodes/a%20b%3Fwatch%3D1%23x%0D%0AEvil:%20yes/%C3%BC HTTP/1.1\r\nHost: ")
    assert request.count(b"\r\n") == 5


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (OK, Answer(200, b"hi")),
        (CHUNKED, Answer(200, b"one two")),
        (b"HTTP/1.1 103 Early Hints\r\nRetry-After: 3\r\n\r\n" + OK, Answer(200, b"hi")),
        (b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\nContent-Length: 0\r\n\r\n", Answer(429, b"", "7")),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", Answer(204, b"")),
    ],
    ids=["length", "chunks", "hints before", "asks to wait", "no body"],
)
async def test_an_answer_in_single_bytes_is_the_same_answer(
    server: Script, getter: Getter, raw: bytes, answer: Answer
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        for position in range(len(raw)):
            writer.write(raw[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    server.serve = serve
    assert await get(getter) == answer


async def test_an_answer_without_a_length_ends_with_its_connection(server: Script, getter: Getter) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(b"HTTP/1.0 502 Bad\r\n\r\nno upstream")
        await writer.drain()

    server.serve = serve
    assert await get(getter) == Answer(502, b"no upstream")


async def test_a_server_that_closes_after_each_answer_gets_a_connection_for_each(
    server: Script, getter: Getter
) -> None:
    server.answers = [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
    assert [await get(getter), await get(getter)] == [Answer(200, b"hi")] * 2
    assert server.connections == 2
    await eventually(lambda: server.open == 0, what="both connections ended")


@pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
async def test_a_kept_connection_that_the_server_ended_is_replaced(
    server: Script, getter: Getter, farewell: bytes
) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(OK)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(farewell)

    server.serve = once
    assert await get(getter) == Answer(200, b"hi")
    await asyncio.sleep(0.2)
    assert await get(getter) == Answer(200, b"hi")
    assert server.connections == 2


async def test_a_kept_connection_that_ends_under_the_request_is_replaced(server: Script, getter: Getter) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(OK)
        await server.read(reader)  # and go without an answer

    server.serve = serve
    await get(getter)
    assert await get(getter) == Answer(200, b"hi")
    assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "the server closed the connection without an answer"),
        (OK[:-1], "the server closed the connection without an answer"),
        (CHUNKED[:-4], "the server closed the connection without an answer"),
        (b"\x16\x03\x01 TLS, perhaps", "the answer is no HTTP: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", "the answer is no HTTP: "),
    ],
    ids=["nothing", "half", "half a chunk", "no HTTP", "two lengths"],
)
async def test_half_an_answer_is_none(server: Script, getter: Getter, raw: bytes, text: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        writer.write(raw)
        await writer.drain()

    server.serve = serve
    with pytest.raises(ConnectionError) as caught:
        await get(getter)
    assert str(caught.value).startswith(text)
    assert server.connections == 1


async def test_an_answer_that_is_too_large_is_refused(
    server: Script, getter: Getter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getter_module, "MAX_ANSWER_BYTES", 5)
    server.answers = [CHUNKED]
    with pytest.raises(ConnectionError, match="the answer is larger than 5 bytes"):
        await get(getter)
    await eventually(lambda: server.open == 0, what="the connection ended")


async def test_an_answer_that_comes_too_late_is_nobodys(server: Script, getter: Getter) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        await asyncio.sleep(0.3)
        writer.write(OK.replace(b"hi", b"no"))
        await writer.drain()

    server.serve = late
    with pytest.raises(TimeoutError):
        await get(getter, timeout_s=0.1)
    server.serve = server.answer
    await asyncio.sleep(0.4)
    assert await get(getter) == Answer(200, b"hi")
    assert server.connections == 2


async def test_gets_at_once_have_a_connection_each_and_all_are_kept(server: Script, getter: Getter) -> None:
    for _ in range(2):
        assert await asyncio.gather(*(get(getter) for _ in range(16))) == [Answer(200, b"hi")] * 16
    assert server.connections == 16


async def test_a_connection_that_nobody_needs_is_ended(
    server: Script, getter: Getter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getter_module, "KEEP_S", 0.1)
    await get(getter)
    await eventually(lambda: server.open == 0, what="the connection ended")
    assert await get(getter) == Answer(200, b"hi")
    assert server.connections == 2


async def test_closing_ends_what_is_idle_and_what_waits(server: Script, getter: Getter) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.read(reader)
        await reader.read()

    await get(getter)
    server.serve = silent
    waiting = [asyncio.ensure_future(get(getter)) for _ in range(2)]  # one on the kept connection
    await eventually(lambda: len(server.requests) == 3, what="both requests arrived")
    getter.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {ConnectionAbortedError, ConnectionResetError, Answer}
    await eventually(lambda: server.open == 0, what="all connections ended")


async def test_nobody_listening_is_an_error_that_says_where() -> None:
    getter = Getter("http://127.0.0.1:1", None, "tests/1")
    with pytest.raises(OSError, match=r"127\.0\.0\.1.*1"):
        await get(getter)


@pytest.mark.parametrize(
    ("url", "host", "port", "line"),
    [
        ("http://[::1]:8001", "::1", 8001, "Host: [::1]:8001"),
        ("https://kube.example", "kube.example", 443, "Host: kube.example"),
        ("http://user:word@kube.example/k8s/", "kube.example", 80, "Host: kube.example"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, line: str) -> None:
    made = Getter(url, None, "tests/1")
    assert (made._host, made._port, made._head.split("\r\n")[0]) == (host, port, line)


@pytest.mark.parametrize("url", ["http://127.0.0.1:many", "https://[::1", "http://127.0.0.1:70000"])
def test_a_url_that_is_none_is_told(url: str) -> None:
    with pytest.raises(SettingsError, match=r"the API server's URL '.*' is none: "):
        Getter(url, None, "tests/1")
