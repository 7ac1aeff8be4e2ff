"""The clock of the controller is set back: what waits for a time does not wait until the clock shows it again."""

from __future__ import annotations

import datetime

from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder, reference
from tests.story.controller_cluster import Cluster
from tests.story.test_rendezvous_service import SLICE, TIMING, addresses, rank0
from tests.story.test_ultraserver_controller import cluster, controlling  # noqa: F401
from tests.support.sent_events import send_events
from tests.support.waiting import eventually

HOUR = datetime.timedelta(hours=1)
LABEL = "neuron.amazonaws.com/ultraserver-node-id-4"


class Clock:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.offset = HOUR

    def __call__(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + self.offset


async def test_rejected_writes_are_made_again(cluster: Cluster) -> None:  # noqa: F811
    clock = Clock()
    cluster.api.clock_offset_s = HOUR.total_seconds()
    rejected = cluster.api.faults.add(InjectedFault(Do.RESPOND, verb="patch", resource="nodes", status=403, times=None))
    async with controlling(cluster, clock=clock):
        nodes = len(cluster.api.objects("nodes"))
        await eventually(lambda: rejected.hits >= 4 * nodes, what="the labels of Nodes wait")
        clock.offset = -HOUR
        cluster.api.clock_offset_s = -HOUR.total_seconds()
        cluster.api.faults.clear()
        await eventually(
            lambda: all(LABEL in each["metadata"]["labels"] for each in cluster.api.objects("nodes")), what="labels"
        )


async def test_rank_0_is_found_again(cluster: Cluster) -> None:  # noqa: F811
    clock = Clock()
    cluster.api.clock_offset_s = HOUR.total_seconds()
    async with controlling(cluster, clock=clock, timing=TIMING):
        workload = cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        cluster.pod_with_claim("job-0", rank0(cluster), workload)

        def reads() -> int:
            return sum((each.verb, each.resource) == ("get", "pods") for each in cluster.api.log)

        await eventually(lambda: reads() >= 3, what="its pod has no address yet")
        clock.offset = -HOUR
        cluster.api.clock_offset_s = -HOUR.total_seconds()
        cluster.api.patch("pods", "job-0", {"status": {"podIP": "10.1.0.7"}}, "ml")
        await eventually(lambda: addresses(cluster, SLICE) == ["10.1.0.7"], what="it has the pod's address")


async def test_events_are_renewed() -> None:
    """Otherwise the API server deletes them after an hour, and the reason is gone."""
    now = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
    about = reference("v1", "Node", "", "a", "uid-a")
    async with EmbeddedApi() as api, KubeClient(KubeConfig(api.url)) as client:
        events = EventRecorder(client, "here")
        for at in (now + HOUR, now):
            events.post(about, "Warning", "Reason", "text", at)
            await send_events(events)
        [event] = api.objects("events")
    assert (event["count"], event["lastTimestamp"]) == (2, "2026-03-01T12:00:00Z")
