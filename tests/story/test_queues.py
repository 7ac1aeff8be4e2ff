"""A workload with a queue of Kueue, whose webhooks may not answer. Issues 30 and 35."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from controller.program import Controller
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import BRIEF_LEASE
from tests.support.timings import quicker
from tests.support.waiting import eventually

SOON = quicker(BRIEF_LEASE, queues={"relist_s": 0.2, "first_s": 0.05, "longest_s": 0.2}, client={"request_s": 3600.0})
LABEL = "kueue.x-k8s.io/queue-name"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with answering(Cluster) as made:
        made.api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        yield made


def controlling(there: Cluster) -> contextlib.AbstractAsyncContextManager[Controller]:
    return running_controller(there, "--queues", "true", "--leader-elect", "true", timing=SOON)


def kueue_workloads(there: Cluster) -> list[Obj]:
    return there.api.objects("workloads")


def reason(there: Cluster, name: str) -> str:
    """Return the reason of a workload's condition Ready."""
    item = there.api.get("neuronultraserverworkloads", name, "ml")
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((each["reason"] for each in conditions if each["type"] == "Ready"), "")


async def allocated(there: Cluster, name: str) -> None:
    await eventually(lambda: there.state(name) == "Allocated", what=f"{name} gets nodes")


async def test_write_that_kueue_does_not_answer_holds_up_nobody_else(cluster: Cluster) -> None:
    """Each pass waited for Kueue's webhook, as long as the API server did: ten seconds or thirty."""
    hung = cluster.api.faults.add(InjectedFault(Do.HANG, verb="create", resource="workloads", times=None))
    async with controlling(cluster):
        cluster.submit("queued", count=1, labels={LABEL: "team"})
        await eventually(lambda: hung.hits, what="Kueue's Workload is to be created")
        cluster.submit("other", count=1)
        await allocated(cluster, "other")
        assert cluster.state("queued") == "Pending"


async def test_new_term_does_not_wait_for_kueues_workloads(cluster: Cluster) -> None:
    """Their list needs Kueue's conversion webhook. Until it is there, workloads with a queue wait, and no others."""
    async with controlling(cluster):
        cluster.submit("queued", count=1, labels={LABEL: "team"})
        await eventually(lambda: kueue_workloads(cluster), what="Kueue's Workload exists")
        hung = cluster.api.faults.add(InjectedFault(Do.HANG, verb="list", resource="workloads", times=None))
        [lease] = cluster.api.objects("leases")
        end = {"spec": {"holderIdentity": "another", "leaseTransitions": 9}}
        cluster.api.patch("leases", lease["metadata"]["name"], end, NAMESPACE)
        await eventually(lambda: hung.hits, what="the next term lists Kueue's Workloads")
        cluster.submit("other", count=1)
        await allocated(cluster, "other")
        await eventually(lambda: reason(cluster, "queued") == "QueueUnknown", what="it says why it waits")
        cluster.api.faults.clear()
