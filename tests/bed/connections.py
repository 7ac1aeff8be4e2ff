"""Connections from pods of one node to the API server: dropped by a firewall, or led through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Iterator

from hack.bed import network
from hack.bed.real_cluster import BedNode, TestBed
from tests.support.silent_proxy import SilentProxy

PROXY_PORT = 6443


def run(bed: TestBed, *command: str) -> str:
    """Run a command in the test bed's network."""
    words = [*network.enter(bed.where), *command]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def ports_of_connections(bed: TestBed, address: str) -> list[str]:
    """Return the ports from which a pod is connected to the API server."""
    chosen = f"src {network.API_SERVER_ADDRESS} and dst {address}"
    lines = run(bed, "ss", "-tnH", "state", "established", chosen).splitlines()
    return [line.split()[3].rpartition(":")[2] for line in lines]


@contextlib.contextmanager
def rule(bed: TestBed, *words: str) -> Iterator[None]:
    """A rule of the firewall, `-t TABLE` first if it is not in `filter`, until the end of the block."""
    table, rest = (words[:2], words[2:]) if words[0] == "-t" else ((), words)
    chain, *match = rest
    run(bed, "iptables", *table, "-I", chain, *match)
    try:
        yield
    finally:
        run(bed, "iptables", *table, "-D", chain, *match)


@contextlib.contextmanager
def dropped(bed: TestBed, address: str, ports: list[str]) -> Iterator[None]:
    """Drop all packets of these connections, in both directions; new ones are possible."""
    listed = ",".join(ports)
    with (
        rule(bed, "INPUT", "-s", address, "-p", "tcp", "-m", "multiport", "--sports", listed, "-j", "DROP"),
        rule(bed, "OUTPUT", "-d", address, "-p", "tcp", "-m", "multiport", "--dports", listed, "-j", "DROP"),
    ):
        yield


class Proxy:
    """A proxy in front of the API server, in a thread of its own in the test bed's network."""

    def __init__(self, proxy: SilentProxy, loop: asyncio.AbstractEventLoop) -> None:
        self._proxy, self._loop = proxy, loop

    def silence(self) -> None:
        """Swallow what the open connections send from now on, and acknowledge it."""
        self._loop.call_soon_threadsafe(self._proxy.silence)

    def slow_down(self, pause_s: float) -> None:
        """Wait before each piece that is passed on."""
        self._loop.call_soon_threadsafe(setattr, self._proxy, "pause_s", pause_s)

    @property
    def opened(self) -> int:
        """How many connections there have been."""
        return self._proxy.opened


@contextlib.contextmanager
def proxied(node: BedNode) -> Iterator[Proxy]:
    """Lead new connections from a node's pods to the API server through a proxy, until the end of the block.

    TLS is not the proxy's: it passes bytes on.
    """
    bed, server = node.bed, network.API_SERVER_ADDRESS
    subnet = network.pod_subnet(bed.parts.state.nodes[node.name].index)
    proxy = SilentProxy(443, server, (server, PROXY_PORT))
    to_proxy = ("-d", server, "-p", "tcp", "--dport", "443", "-j", "DNAT", "--to-destination", f"{server}:{PROXY_PORT}")
    with running(bed, proxy) as loop, rule(bed, "-t", "nat", "PREROUTING", "-s", subnet, *to_proxy):
        yield Proxy(proxy, loop)


@contextlib.contextmanager
def running(bed: TestBed, proxy: SilentProxy) -> Iterator[asyncio.AbstractEventLoop]:
    """Run a proxy in the test bed's network, and yield its event loop."""
    started, ends, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with proxy:
            started.set()
            await ends.wait()

    def inside() -> None:
        with bed.inside():
            loop.run_until_complete(serve())

    thread = threading.Thread(target=inside)
    thread.start()
    try:
        assert started.wait(120), "the proxy did not start"
        yield loop
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()
