"""The two API servers of the contract suite."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.contract.api_client import Server, real_session, serve_things
from tests.support.plugin_host import PluginHost
from tests.support.skipping import impossible
from tests.support.timings import QUICK

UP_TIMEOUT_S = 3600  # the first one builds Kubernetes
EMBEDDED_MINOR = 37
REAL = (pytest.mark.testbed, pytest.mark.timeout(600))


@pytest.fixture
def quick(host: PluginHost) -> None:
    """A plugin that reads hardware, gathers changes and tries again within fractions of a second."""
    host.timing = QUICK


@dataclass(frozen=True, slots=True)
class RealCluster:
    """A kubeconfig, and a function that creates sockets to its server."""

    kubeconfig: Path
    make_socket: Callable[[Any], socket.socket]


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[RealCluster]:
    """The control plane of NEURON_DRA_TESTBED_KUBECONFIG, or that of the test bed, which is started if needed."""
    chosen = os.environ.get("NEURON_DRA_TESTBED_KUBECONFIG")
    if chosen:
        yield RealCluster(Path(chosen), lambda address: socket.socket(*address[:3]))
        return
    if sys.platform != "linux":
        impossible(f"the test bed needs Linux, this is {sys.platform}")
    from hack.bed import layout
    from hack.bed.real_cluster import TestBed

    bed = TestBed(layout.from_environment())
    was_up = bed.is_up
    if not was_up:
        bed.command("up", timeout_s=UP_TIMEOUT_S)

    def make_socket(address: Any) -> socket.socket:
        with bed.inside():  # a socket stays in the network namespace in which it was created
            return socket.socket(*address[:3])

    yield RealCluster(bed.where.kubeconfig, make_socket)
    if not was_up:
        bed.command("down")


async def _embedded() -> AsyncIterator[Server]:
    async with EmbeddedApi() as api, aiohttp.ClientSession(api.url) as session:
        yield Server(session, "embedded", embedded=api)


async def _real(cluster: RealCluster) -> AsyncIterator[Server]:
    async with real_session(cluster.kubeconfig, cluster.make_socket) as session:
        try:
            async with session.get("/readyz", timeout=aiohttp.ClientTimeout(total=20)) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            impossible(f"the API server of {cluster.kubeconfig} does not answer: {error!r}")
        yield Server(session, "real")


@pytest.fixture(params=["embedded", pytest.param("real", marks=REAL)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """An API server with the test's own namespace; each test runs against both kinds."""
    servers = _embedded() if request.param == "embedded" else _real(request.getfixturevalue("real_cluster"))
    async for server in servers:
        await server.open()
        yield server
        await server.close()


@pytest.fixture
async def things(server: Server) -> Server:
    """A server that serves the custom kind Thing."""
    await serve_things(server)
    return server


@pytest.fixture
async def newest(server: Server) -> None:
    """For rules that changed between releases: the embedded server follows the newest tested one."""
    minor = int((await server.get("/version")).body["minor"].rstrip("+"))
    if minor < EMBEDDED_MINOR:
        pytest.skip(f"the embedded server has the rules of Kubernetes 1.{EMBEDDED_MINOR}, this one is 1.{minor}")
