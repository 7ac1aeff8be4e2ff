"""4.02: "not found" counts only in a Status that names the object; a proxy's 404 changes nothing.

Each test has the Status as its control, which does change something.
"""

from __future__ import annotations

import datetime

import pytest

from controller.apply.priorities import Priorities
from controller.apply.rendezvous_service import RendezvousServices
from controller.jobs.guard import Guard
from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING
from neuron_dra.emulation.embedded_api import NOT_FOUND, Do, InjectedFault
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from tests.story.controller_cluster import Cluster
from tests.story.test_jobs_reserve import cluster  # noqa: F401
from tests.story.test_rendezvous_service import SHORT, addresses, met
from tests.support.sending import looked, new_sender, sent

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)
GONE = "a Status of this object"
REPLIES = (*NOT_FOUND, GONE)


def answer(there: Cluster, reply: str, resource: str) -> None:
    """Let each GET of a kind get this reply."""
    if reply == GONE:
        fault = InjectedFault(Do.NOT_FOUND, verb="get", resource=resource, times=None)
    else:
        fault = NOT_FOUND[reply].fault(verb="get", resource=resource, times=None)
    there.api.faults.add(fault)


@pytest.mark.parametrize("reply", REPLIES)
async def test_address_of_rank_0_stays(cluster: Cluster, reply: str) -> None:  # noqa: F811
    meeting = met(cluster)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), SHORT, new_sender())
        await looked(services, [meeting], NOW)
        answer(cluster, reply, "pods")
        await looked(services, [meeting], LATER)
    assert addresses(cluster) == ([] if reply == GONE else ["10.1.0.7"])


@pytest.mark.parametrize("reply", REPLIES)
async def test_priority_of_a_class_stays(cluster: Cluster, reply: str) -> None:  # noqa: F811
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7}
    cluster.api.create(kind)
    index = FleetIndex()
    spec = {"instanceType": "t", "topologySize": 1, "serverCount": 1, "priorityClassName": "high"}
    index.put_workload("ml/job", decode.workload({"metadata": {"name": "job", "namespace": "ml"}, "spec": spec}))
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        sender = new_sender()
        priorities = Priorities(client, DEFAULT_TIMING.writes, sender)
        await sent(sender, lambda: priorities.look(index, NOW))
        answer(cluster, reply, "priorityclasses")
        await sent(sender, lambda: priorities.look(index, LATER))
    assert priorities.found == ({} if reply == GONE else {"high": 7})


@pytest.mark.parametrize("reply", REPLIES)
async def test_policy_stays_in_force(cluster: Cluster, reply: str) -> None:  # noqa: F811
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        guard = Guard(client, DEFAULT_TIMING.jobs)
        await guard.look(NOW)
        assert guard.problem == ""
        answer(cluster, reply, "validatingadmissionpolicies")
        await guard.look(LATER)
    assert ("is not in force" in guard.problem) == (reply == GONE)


@pytest.mark.parametrize("reply", REPLIES)
async def test_claims_of_a_node_are_not_taken_for_none(cluster: Cluster, reply: str) -> None:  # noqa: F811
    """A plan that reads the claims of its nodes again is not written if that fails."""
    cluster.pod_with_claim("job-0", "u0-0", cluster.submit("job"), plain=True)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches, claims_for_a_node=0)
        await caches.claims.relist()
        (claim,) = caches.claims.items.values()
        caches.claims.forget(claim)
        caches.claims.items["ml/other"] = claim  # so that the claims are read by the nodes' pods
        answer(cluster, reply, "resourceclaims")
        if reply == GONE:
            await caches.reread_claims({"u0-0"})
        else:
            with pytest.raises(ApiError):
                await caches.reread_claims({"u0-0"})
