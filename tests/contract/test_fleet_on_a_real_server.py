"""The virtual fleet on a real kube-apiserver and kube-controller-manager instead of the embedded server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from neuron_dra.errors import AlreadyExists, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig, from_kubeconfig
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NEURON_WORKLOADS, Resource
from tests.support.fleet.__main__ import summary
from tests.support.fleet.run import run

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
ULTRASERVERS, STEPS = 2, 15


class InsideClient(KubeClient):
    """A client that creates its sockets in the server's network namespace."""

    def __init__(self, config: KubeConfig, make_socket: Callable[[Any], Any], user_agent: str) -> None:
        super().__init__(config, user_agent=user_agent)
        self._make_socket = make_socket
        self._user_agent = user_agent

    async def __aenter__(self) -> InsideClient:
        connector = aiohttp.TCPConnector(limit=0, socket_factory=self._make_socket)
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"User-Agent": self._user_agent}, read_bufsize=2**20
        )
        return self


async def install_crds(client: KubeClient) -> None:
    """Create our CRDs, and return when they are served."""
    async with client:
        for path in sorted(CRDS.glob("*.yaml")):
            with contextlib.suppress(AlreadyExists):
                await client.create(DEFINITIONS, "", yaml.safe_load(path.read_text()))
        for resource in (NEURON_ULTRASERVERS, NEURON_WORKLOADS):
            for _ in range(100):
                with contextlib.suppress(NotFound):
                    [page async for page in client.list(resource)]
                    break
                await asyncio.sleep(0.1)


@pytest.fixture(scope="session")
def connect(real_cluster: Any) -> Callable[[str], KubeClient]:
    config = from_kubeconfig(real_cluster.kubeconfig)

    def made(user_agent: str) -> KubeClient:
        return InsideClient(config, real_cluster.make_socket, user_agent)

    asyncio.run(install_crds(made("crds")))
    return made


def played(seed: int, connect: Callable[[str], KubeClient]) -> str:
    """Run one seed; return a report if it failed, else an empty string."""
    outcome = run(seed, ultraservers=ULTRASERVERS, steps=STEPS, server=connect)
    if not outcome.violation:
        return ""
    return "\n".join((*outcome.trace[-60:], summary(outcome, ULTRASERVERS, STEPS)))


@pytest.mark.testbed
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 51))
def test_invariants_hold_in_fifty_runs_on_a_real_server(seed: int, connect: Callable[[str], KubeClient]) -> None:
    if what_happened := played(seed, connect):
        pytest.fail(what_happened, pytrace=False)
