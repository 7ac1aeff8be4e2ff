"""The two API servers of the contract suite."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_client import Server, kubeconfig_path, real_session, serve_things

from neuron_dra.testing.fake_api import FakeApi


def _skip(reason: str) -> None:
    if os.environ.get("NEURON_DRA_REQUIRE_TESTBED"):
        pytest.fail(f"NEURON_DRA_REQUIRE_TESTBED is set, but {reason}")
    pytest.skip(reason)


async def _embedded() -> AsyncIterator[Server]:
    async with FakeApi() as api, aiohttp.ClientSession(api.url) as session:
        yield Server(session, "embedded", embedded=api)


async def _real() -> AsyncIterator[Server]:
    path = kubeconfig_path()
    if not path.exists():
        _skip(f"there is no kubeconfig of a test bed at {path}; hack/testbed/testbed up makes one")
    async with real_session(path) as session:
        try:
            async with session.get("/readyz", timeout=aiohttp.ClientTimeout(total=5)) as response:
                ready = response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            ready = False
        if not ready:
            _skip(f"the API server of {path} does not answer; run this inside: hack/testbed/testbed exec -- pytest")
        yield Server(session, "real")


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.testbed)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """An API server with a namespace of the test's own; each test runs against both kinds."""
    async for server in _embedded() if request.param == "embedded" else _real():
        await server.open()
        yield server
        await server.close()


@pytest.fixture
async def things(server: Server) -> Server:
    """A server that serves the custom kind Thing."""
    await serve_things(server)
    return server
