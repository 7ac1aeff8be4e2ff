"""The simulated Kueue of the virtual fleet makes the transitions that the real one made on the test bed (35)."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support import kueue_log
from tests.support.fleet.kueue import Kueue, Queue
from tests.support.fleet.view import parsed
from tests.support.kueue_log import Transition

LOOKS = 4
RECORDED = kueue_log.load()


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    """An API server with Kueue's kind."""
    async with EmbeddedApi(controllers=False) as server:
        server.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        yield server


def latest(items: list[Obj]) -> datetime.datetime:
    """Return the newest time in some objects."""
    times = [each["metadata"]["creationTimestamp"] for each in items]
    times += [one["lastTransitionTime"] for each in items for one in each["status"]["conditions"]]
    return max(parsed(each) for each in times)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each.title)
async def test_the_simulated_kueue_does_what_the_real_one_did(api: EmbeddedApi, recorded: Transition) -> None:
    for item in recorded.before:
        meta = {**item["metadata"], "namespace": "ml"}
        api.create({**item, "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta})
    moment = latest([*recorded.before]) + datetime.timedelta(seconds=1)
    kueue = Kueue(lambda name: api.client(name), lambda: moment)
    kueue.queues = {name: Queue(name, quota) for name, quota in recorded.queues.items()}
    seen = []
    for _ in range(LOOKS):
        await kueue.look_once()
        seen.append(kueue_log.shape(api.get("workloads", recorded.name, "ml")))
    assert recorded.after in seen
