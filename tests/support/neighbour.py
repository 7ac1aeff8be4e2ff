"""A hostile neighbour: a pod without credentials that connects to a plugin's or controller's ports and does its worst.

`ATTACKS` has each attack by name. An attack returns when it has sent all that it can, or when the other side has closed
the connections. This file is also a program, and needs no other file of the project in its pod. To attack once:

    python neighbour.py once NAME HOST:PORT

To repeat all attacks for a time, where FIRST is the number of the attack that it begins with: slow neighbours do all
attacks between them if each begins with another one.

    python neighbour.py SECONDS FIRST HOST:PORT ...
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Final, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

LOCAL: Final = "127.0.0.1"
PROBE_S: Final = 30.0  # for a probe on a busy machine
LARGE_BYTES: Final = 15 * 1024 * 1024
ONCE_S: Final = 200.0  # for one attack on a busy machine
END_S: Final = 30.0  # after the attacks, for the program to end by itself

_OWN_CONNECTION: Final = ("grpc.use_local_subchannel_pool", 1)


@contextlib.asynccontextmanager
async def health(port: int, host: str = LOCAL) -> AsyncIterator[health_pb2_grpc.HealthAsyncStub]:
    """Yield the health service on a connection of its own, as the kubelet has one for each probe."""
    options = (_OWN_CONNECTION, ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 2**26))
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=options) as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def grpc_probe(port: int, host: str = LOCAL) -> int:
    """Return the status that the kubelet's gRPC probe reads. Raises AioRpcError."""
    async with health(port, host) as stub:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_S)
        return int(answer.status)


async def http_probe(port: int, path: str = "/healthz", host: str = LOCAL) -> bytes:
    """Return the response to an HTTP GET, as the kubelet and Prometheus send it. Raises ConnectionError."""
    async with asyncio.timeout(PROBE_S), connected(port, host) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        return await reader.read()


@contextlib.asynccontextmanager
async def connected(port: int, host: str = LOCAL) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a TCP connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def large_names(port: int, host: str = LOCAL) -> None:
    """Send health checks with a service name of 15 MiB, which the service once repeated in its answer."""

    async def one() -> None:
        async with health(port, host) as stub:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Check(health_pb2.HealthCheckRequest(service="x" * LARGE_BYTES), timeout=PROBE_S)

    await asyncio.gather(*(one() for _ in range(6)))


async def large_metadata(port: int, host: str = LOCAL) -> None:
    """Send health checks with a header of 4 MiB."""

    async def one() -> None:
        async with health(port, host) as stub:
            with contextlib.suppress(grpc.aio.AioRpcError):
                metadata = (("x-large", "y" * (4 * 1024 * 1024)),)
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_S, metadata=metadata)

    await asyncio.gather(*(one() for _ in range(12)))


async def many_watches(port: int, host: str = LOCAL) -> None:
    """Open 2000 health watches on 20 connections, and leave once each has an answer or an error."""

    async def one(stub: health_pb2_grpc.HealthAsyncStub) -> None:
        call = stub.Watch(health_pb2.HealthCheckRequest())
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(1.0):
                await call.read()

    async def connection() -> None:
        async with health(port, host) as stub:
            await asyncio.gather(*(one(stub) for _ in range(100)))

    await asyncio.gather(*(connection() for _ in range(20)))


async def many_connections(port: int, host: str = LOCAL) -> None:
    """Open 600 connections that send nothing, and keep them until all are open."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(600):
            await stack.enter_async_context(connected(port, host))
        assert await answers_a_probe(port, host)


async def answers_a_probe(port: int, host: str = LOCAL) -> bool:
    """Return whether the port answers a probe of its kind while the connections of this process stay open."""
    try:
        answer = await http_probe(port, host=host)
    except (ConnectionError, TimeoutError):
        answer = b""
    if answer.startswith(b"HTTP/1.1 200"):
        return True
    return bool(await grpc_probe(port, host) == health_pb2.HealthCheckResponse.SERVING)


async def endless_headers(port: int, host: str = LOCAL) -> None:
    """Send an HTTP request whose headers never end."""

    async def one() -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with connected(port, host) as (_, writer):
                writer.write(b"GET /metrics HTTP/1.1\r\n")
                for number in range(100_000):
                    writer.write(b"X-%d: " % number + b"y" * 200 + b"\r\n")
                    await writer.drain()

    await asyncio.gather(*(one() for _ in range(12)))


async def endless_line(port: int, host: str = LOCAL) -> None:
    """Send 15 MiB without an end of the line."""

    async def one() -> None:
        with contextlib.suppress(ConnectionError):
            async with connected(port, host) as (_, writer):
                for _ in range(LARGE_BYTES // 65536):
                    writer.write(b"x" * 65536)
                    await writer.drain()

    await asyncio.gather(*(one() for _ in range(12)))


async def tls_hellos(port: int, host: str = LOCAL) -> None:
    """Begin 200 TLS handshakes, which the port does not serve."""
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(500)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(200):
            _, writer = await stack.enter_async_context(connected(port, host))
            writer.write(hello)


async def unread_answers(port: int, host: str = LOCAL) -> None:
    """Request the metrics 300 times, and read no answer."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            made = stack.enter_context(socket.socket())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            made.setblocking(False)
            with contextlib.suppress(ConnectionError):
                await loop.sock_connect(made, (host, port))
                await loop.sock_sendall(made, b"GET /metrics HTTP/1.1\r\n\r\n")


class Attack(Protocol):
    """One way to do harm to a port."""

    def __call__(self, port: int, host: str = LOCAL, /) -> Awaitable[None]: ...


ATTACKS: Final[Mapping[str, Attack]] = {
    "large names": large_names,
    "large metadata": large_metadata,
    "many watches": many_watches,
    "many connections": many_connections,
    "endless headers": endless_headers,
    "endless line": endless_line,
    "TLS hellos": tls_hellos,
    "unread answers": unread_answers,
}


async def do_its_worst(seconds: float, first: int, targets: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Repeat all attacks on all targets for this long; return how often each has run.

    An attack that the other side ends with an error has run, too. One that the time ends has not.
    """
    ran = dict.fromkeys(ATTACKS, 0)
    names = list(ATTACKS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for number in itertools.count(first):
                name = names[number % len(names)]
                for host, port in targets:
                    await _attack(name, host, port)
                    ran[name] += 1
    return ran


async def _attack(name: str, host: str, port: int) -> None:
    """Attack once; that the other side refuses is no error."""
    with contextlib.suppress(OSError, AssertionError, grpc.aio.AioRpcError):
        await ATTACKS[name](port, host)


async def attack(name: str, port: int) -> None:
    """Attack a port of this machine once, in a program of its own. Raises AssertionError, which says what failed."""
    command = (sys.executable, __file__, "once", name, f"{LOCAL}:{port}")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise AssertionError(f"attack {name!r} failed with code {process.returncode}:\n{errors.decode()}")


async def _to_the_end(work: Awaitable[object]) -> None:
    """Do the work, print what it returns, and end the program.

    gRPC's client may wait for ever for calls whose connection was cut: when its last channel goes, it stops the loop
    until they have ended. So its runtime is held here, and the program ends without it.
    """
    grpc.aio.init_grpc_aio()
    code = 1
    try:
        print(await work, flush=True)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(words: Sequence[str]) -> None:
    """Attack once, or for a time, and print what ran."""
    first, second, *addresses = words
    targets = [(host, int(port)) for host, _, port in (word.rpartition(":") for word in addresses)]
    if first == "once":
        ((host, port),) = targets
        faulthandler.dump_traceback_later(ONCE_S, exit=True)
        asyncio.run(_to_the_end(ATTACKS[second](port, host)))
    else:
        end = threading.Timer(float(first) + END_S, os._exit, [0])
        end.daemon = True
        end.start()
        asyncio.run(_to_the_end(do_its_worst(float(first), int(second), targets)))


if __name__ == "__main__":
    main(sys.argv[1:])
