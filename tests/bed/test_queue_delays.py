"""35.3 with the real Kueue: quota without a place is given back again and again, each time for longer.

The control plane is enough: the nodes are objects. The controller runs in this process, and is less patient than usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from controller import settings as controller_settings
from controller.program import Controller
from hack.bed import kueue, network
from hack.bench import api as bench_api
from hack.bench.cluster import PLACE, Cluster, workload
from hack.bench.controller import discovered
from hack.bench.queues import make_queues, queued
from hack.bench.swarm import Swarm
from neuron_dra.arguments import Parser
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig, from_kubeconfig
from neuron_dra.kube.requests import NEURON_WORKLOADS
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    # The processes of the control plane outlive the objects that started them, and are ended by their marks.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

FIRST_S = 4.0
TIMING = quicker(QUICK, queues={"patience_s": 3.0, "first_return_s": FIRST_S, "longest_return_s": 60.0})
TIMES = 3


@pytest.fixture
def plane() -> Iterator[bench_api.Plane]:
    with bench_api.running() as made:
        kueue.up(made, kueue.Options(health=network.free_port(), webhooks=network.free_port()))
        yield made


@contextlib.asynccontextmanager
async def controlling(kube: KubeConfig) -> AsyncIterator[None]:
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--queues", "--health-probe-bind-address", "0", "--metrics-bind-address", "0", "--grpc-address", "0"]
    loaded = controller_settings.load(parser.parse_args(words), {}, "here")
    controller = Controller(loaded, kube, timing=TIMING)
    task = asyncio.create_task(controller.run())
    try:
        yield
    finally:
        controller.stop()
        await task


async def read(client: KubeClient, name: str) -> Obj:
    """Return a workload's status, with the message of its condition Ready."""
    item: Obj = json.loads(await client.get(NEURON_WORKLOADS, PLACE, name))
    status: Obj = item.get("status", {})
    ready = [each for each in status.get("conditions", ()) if each["type"] == "Ready"]
    return {**status, "ready": ready[0] if ready else {}}


def waits(status: Obj) -> datetime.timedelta:
    """Return how long a workload that gave its quota back waits, as its message says."""
    at = datetime.datetime.fromisoformat(status["ready"]["message"].rpartition(" ")[2])
    return at - datetime.datetime.fromisoformat(status["queue"]["returnedAt"])


async def given_back(client: KubeClient, name: str, times: int) -> datetime.timedelta:
    """Wait until a workload has given its quota back so often in a row; return for how long it waits then."""
    found: list[datetime.timedelta] = []

    async def counted() -> bool:
        status = await read(client, name)
        back = status["ready"].get("reason") == "QuotaGivenBack"
        if back and status.get("queue", {}).get("returned") == times:
            found.append(waits(status))
        return bool(found)

    async with asyncio.timeout(120):
        while not await counted():
            await asyncio.sleep(0.2)
    return found[-1]


async def counts_nothing(client: KubeClient, name: str) -> bool:
    return not (await read(client, name)).get("queue", {}).get("returned")


async def test_each_return_of_quota_waits_twice_as_long(plane: bench_api.Plane) -> None:
    kube = from_kubeconfig(plane.layout.kubeconfig)
    async with KubeClient(kube, user_agent="test") as client, KubeClient(kube, user_agent="swarm") as plugins:
        cluster = Cluster(client, bench_api.Writes(plane.layout.audit_log))
        await cluster.prepare()
        await make_queues(client, 24)
        swarm = Swarm(plugins)
        await swarm.grow(2)
        async with controlling(kube), swarm.tagging(), cluster.watching():
            await discovered(cluster, 2)
            # Without a queue: Kueue does not know that no node is free.
            await client.create(NEURON_WORKLOADS, PLACE, workload("holder", 2))
            await cluster.reaches("holder", "Allocated")
            await client.create(NEURON_WORKLOADS, PLACE, queued("train", 2, "red"))
            delays = [await given_back(client, "train", number) for number in range(1, TIMES + 1)]
            assert [each.total_seconds() for each in delays] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
            await client.delete(NEURON_WORKLOADS, PLACE, "holder")
            await cluster.reaches("train", "Allocated")
            await cluster.until("the count begins anew", lambda: counts_nothing(client, "train"))
