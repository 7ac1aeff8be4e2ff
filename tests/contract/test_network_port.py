"""The limits of a port that is open to the network: which connection ends, and what one client may send."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from neuron_dra.http import HttpServer
from neuron_dra.network_port import Connections, NetworkPort, PortLimits, Relay
from tests.support.neighbour import connected, http_probe


def opened(limits: PortLimits, *sources: str) -> list[str]:
    """Open a connection from each source in turn, and return those that were closed, as source and number."""
    closed: list[str] = []
    table = Connections(limits)
    for number, source in enumerate(sources):
        table.add(source, functools.partial(closed.append, f"{source}{number}"))
    assert len(table) == len(sources) - len(closed)
    return closed


def test_source_with_too_many_loses_its_oldest() -> None:
    assert opened(PortLimits(connections=9, of_one_source=2), *"babbb") == ["b0", "b2"]


def test_full_port_closes_the_oldest_of_the_largest_source() -> None:
    assert opened(PortLimits(connections=4, of_one_source=4), *"abbac", "k") == ["a0", "b1"]


def test_single_connections_lose_the_oldest() -> None:
    assert opened(PortLimits(connections=3, of_one_source=3), *"abck") == ["a0"]


def test_ended_connections_free_their_place() -> None:
    closed: list[str] = []
    table = Connections(PortLimits(connections=1, of_one_source=1))
    for _ in range(3):
        table.remove("a", table.add("a", lambda: closed.append("a")))
    assert (closed, len(table)) == ([], 0)


def test_close_ends_every_connection() -> None:
    closed: list[str] = []
    table = Connections(PortLimits())
    for source in "aab":
        table.add(source, functools.partial(closed.append, source))
    table.close()
    assert (sorted(closed), len(table)) == (["a", "a", "b"], 0)


@contextlib.asynccontextmanager
async def http_server(**more: Any) -> AsyncIterator[int]:
    server = HttpServer(CollectorRegistry(), lambda: "", **more)
    await server.run("127.0.0.1:0")
    try:
        yield server.port
    finally:
        await server.stop()


@pytest.mark.parametrize("head", [b"x" * 40_000, b"GET /healthz HTTP/1.1\r\n" + b"X: 1234567890\r\n" * 2000])
async def test_large_request_head_is_refused(head: bytes) -> None:
    async with http_server() as port, connected(port) as (reader, writer):
        writer.write(head)
        with contextlib.suppress(ConnectionError):  # the answer may be lost: the rest of the head is not read
            answer = await reader.read()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


async def test_slow_request_head_ends_the_connection() -> None:
    async with http_server(read_timeout_s=0.05) as port, connected(port) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        assert await reader.read() == b""


async def test_request_that_ends_early_is_answered() -> None:
    async with http_server() as port, connected(port) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        writer.write_eof()
        assert (await reader.read()).endswith(b"ok\n")


async def test_new_connection_is_served_when_the_port_is_full() -> None:
    limits = PortLimits(connections=3, of_one_source=3)
    async with http_server(limits=limits) as port, contextlib.AsyncExitStack() as stack:
        first, *_ = [await stack.enter_async_context(connected(port)) for _ in range(3)]
        assert (await http_probe(port)).endswith(b"ok\n")
        with contextlib.suppress(ConnectionError):
            assert await first[0].read() == b""


async def test_connection_ends_after_its_lifetime() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    port = NetworkPort(serve, PortLimits(lifetime_s=0.05))
    await port.listen("127.0.0.1", 0)
    async with connected(port.port) as (reader, _):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    port.stop()


async def test_relay_passes_a_limited_number_of_bytes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1024):
            writer.write(piece)
        writer.close()

    inner = await asyncio.start_unix_server(echo, "\0neuron-dra-test-relay")
    relay = Relay("\0neuron-dra-test-relay", PortLimits(received_bytes=100))
    await relay.port.listen("127.0.0.1", 0)
    async with connected(relay.port.port) as (reader, writer):
        writer.write(b"x" * 100)
        assert await reader.readexactly(100) == b"x" * 100
        writer.write(b"y")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    relay.port.stop()
    inner.close()
    await inner.wait_closed()


async def test_relay_ends_the_connection_if_the_server_is_gone() -> None:
    relay = Relay("\0neuron-dra-test-no-server", PortLimits())
    await relay.port.listen("127.0.0.1", 0)
    async with connected(relay.port.port) as (reader, _):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    relay.port.stop()


async def greeted(host: str, *families: socket.AddressFamily) -> bytes:
    """Listen on 0.0.0.0 where the pod has addresses of these families, and return what a client of `host` gets."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()

    port = NetworkPort(greet, PortLimits())
    await port.listen("0.0.0.0", 0, lambda: frozenset(families))
    try:
        reader, writer = await asyncio.open_connection(host, port.port)
        found = await reader.read()
        writer.close()
        return found
    finally:
        port.stop()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
@pytest.mark.parametrize("families", [(socket.AF_INET6,), (socket.AF_INET, socket.AF_INET6)], ids=["IPv6", "both"])
async def test_port_of_a_pod_with_ipv6_answers_on_both(families: tuple[socket.AddressFamily, ...]) -> None:
    """The default address is 0.0.0.0: where a pod's main address is an IPv6 one, no probe and no scrape arrived."""
    assert [await greeted(host, *families) for host in ("::1", "127.0.0.1")] == [b"hello", b"hello"]


async def test_port_of_a_pod_without_ipv6_stays_on_ipv4() -> None:
    assert await greeted("127.0.0.1", socket.AF_INET) == b"hello"
    with pytest.raises(OSError, match=r"."):
        await greeted("::1", socket.AF_INET)
