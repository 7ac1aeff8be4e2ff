"""The controller with a server that rejects writes, sends malformed replies, or lacks objects. Issue 13, numbers 10 and
13.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.apply.refused_pod_eviction import Refusals
from controller.program import NAME
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.embedded_api.faults import STRANGE, Strange
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.observed.model import RESERVED, Suspect
from tests.story.controller_cluster import Cluster
from tests.story.test_ultraserver_controller import cluster, controlling  # noqa: F401
from tests.support.controller_timings import BRIEF_LEASE, QUICK
from tests.support.sending import new_sender
from tests.support.sent_events import send_events
from tests.support.timings import quicker
from tests.support.waiting import eventually

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


SHORT_PAUSES = quicker(QUICK, writes={"first_s": 0.002, "first_eviction_s": 0.05, "longest_s": 0.9})
"""Pauses between failed writes are a hundredth of the real ones."""


def refused(resource: str, verb: str = "patch", status: int = 403, **more: Any) -> InjectedFault:
    return InjectedFault(Do.RESPOND, verb=verb, resource=resource, status=status, times=None, **more)


async def test_forbidden_labels_delay_no_workload(cluster: Cluster) -> None:  # noqa: F811
    """13.10: each plan tried them again."""
    faults = cluster.api.faults.add(refused("nodes"))
    timing = quicker(QUICK, writes={"first_s": 3600.0, "longest_s": 3600.0})
    async with controlling(cluster, timing=timing) as controller:
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        for number in range(16):
            cluster.submit(f"waits-{number}")
            await eventually(lambda name=f"waits-{number}": cluster.state(name) == "Pending", what="another plan")
        plans = controller.metrics.registry.get_sample_value("neuron_ultraserver_plan_seconds_count")
    tried = [each.name for each in cluster.api.log if (each.verb, each.resource) == ("patch", "nodes")]
    assert max(tried.count(name) for name in set(tried)) == 1
    assert plans is not None
    assert plans > 1
    assert faults.hits == len(tried)


async def test_finalizer_precedes_the_reservation(cluster: Cluster) -> None:  # noqa: F811
    """13.3: the finalizer comes before the first allocation, not after it."""
    faults = cluster.api.faults.add(refused("neuronultraservers"))
    async with controlling(cluster, timing=SHORT_PAUSES):
        cluster.submit("job", count=1)
        await eventually(lambda: faults.hits >= 3, what="the finalizer is tried")
        assert cluster.allocations() == []
        cluster.api.faults.clear()
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
    [reserved] = [each for each in cluster.api.objects("neuronultraservers") if each["status"]["allocations"]]
    assert reserved["metadata"]["finalizers"] == [RESERVED]


async def test_unwritable_ultraserver_is_avoided(cluster: Cluster) -> None:  # noqa: F811
    """13.10."""
    async with controlling(cluster, timing=SHORT_PAUSES):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 2, what="both are discovered")
        cluster.api.faults.add(refused("neuronultraservers/status", name="us-u0", status=422))
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        assert [entry["leaderNodeName"] for entry in cluster.allocations()] == ["u1-0"]
        cluster.submit("second", count=1)
        await eventually(lambda: cluster.state("second") == "Pending", what="the second workload waits")
        assert "left out, because their status cannot be written: us-u0" in cluster.reason("second")[1]


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
async def test_malformed_write_reply_does_not_end_the_loop(
    cluster: Cluster,  # noqa: F811
    strange: Strange,
) -> None:
    """13.13: a 200 that is not JSON ended the process."""
    for resource, verb in (
        ("nodes", "patch"),
        ("neuronultraservers", "create"),
        ("neuronultraservers/status", "patch"),
        ("neuronultraserverworkloads", "patch"),
        ("neuronultraserverworkloads/status", "patch"),
        ("resourceclaimtemplates", "create"),
        ("leases", "get"),
        ("leases", "create"),
        ("events", "create"),
    ):
        cluster.api.faults.add(strange.fault(verb=verb, resource=resource, times=1))
    async with controlling(cluster, "--leader-elect"):
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")


def waits_since(there: Cluster, name: str, seconds: float, started: str = "False") -> None:
    """Set a pod's startTime and its condition about the sandbox, as its kubelet does."""
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    status = {
        "phase": "Pending",
        "startTime": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "conditions": [{"type": "PodReadyToStartContainers", "status": started}],
    }
    there.api.patch("pods", name, {"status": status}, "ml")


def evictions(there: Cluster) -> list[Obj]:
    return [each for each in there.api.objects("events") if each["reason"] == "RefusedPodEvicted"]


async def test_rejected_pod_is_evicted_others_stay(cluster: Cluster) -> None:  # noqa: F811
    """13.12: it was rejected permanently."""
    async with controlling(cluster):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        first = cluster.allocations()[0]["allocatedNodes"]
        other = {"metadata": {"name": "other", "uid": "another-workload"}}
        for number, (name, seconds, started) in enumerate(
            (("refused", 121, "False"), ("pulls", 600, "True"), ("young", 0, "False"))
        ):
            cluster.pod_with_claim(name, first[number], other)
            waits_since(cluster, name, seconds, started)
        await eventually(lambda: cluster.api.find("pods", "refused", "ml") is None, what="the rejected pod is evicted")
        cluster.submit("next", count=1)
        await eventually(lambda: cluster.state("next") == "Allocated", what="other passes")
        assert [pod["metadata"]["name"] for pod in cluster.api.objects("pods")] == ["pulls", "young"]
        (event,) = await eventually(lambda: evictions(cluster), what="the Event")
        assert (event["type"], event["involvedObject"]["name"]) == ("Warning", "refused")
        assert event["message"].endswith("no controller owns this pod: create it again")
    asked = [each for each in cluster.api.log if each.resource == "pods" and each.verb != "create"]
    assert {each.verb for each in asked if each.user_agent == NAME} <= {"get", "list"}  # and no watch


async def test_pod_that_starts_meanwhile_is_not_evicted(cluster: Cluster) -> None:  # noqa: F811
    """13.12: the eviction is of the pod as it was read, by UID and resourceVersion."""
    cluster.pod_with_claim("late", "u0-0", {"metadata": {"name": "other", "uid": "another-workload"}})
    waits_since(cluster, "late", 121)
    read = cluster.api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="get", resource="pods"))
    suspect = Suspect("ml", "late", cluster.api.get("pods", "late", "ml")["metadata"]["uid"], "u0-0", "it is reserved")
    results: list[str] = []
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        sender = new_sender()
        refusals = Refusals(client, EventRecorder(client, "here"), DEFAULT_TIMING.pods, sender)
        refusals.on_eviction = results.append
        refusals.look([suspect], datetime.datetime.now(datetime.UTC))
        looking = asyncio.create_task(sender.send_all())
        await eventually(lambda: read.hits, what="the pod is read")
        waits_since(cluster, "late", 121, "True")
        read.release()
        await looking
    assert results == ["gone"]
    assert not cluster.api.get("pods", "late", "ml")["metadata"].get("deletionTimestamp")


def without_namespace(resource: str) -> InjectedFault:
    """Return the fault of a namespace that does not exist, with a Status that names it as the API server's does."""
    details = {"name": NAMESPACE, "kind": "namespaces"}
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
    body = json.dumps({**status, "message": f'namespaces "{NAMESPACE}" not found', "details": details}).encode()
    return refused(resource, "create", 404, body=body, content_type="application/json")


async def test_missing_namespace_is_one_error_with_remedy(
    cluster: Cluster,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """13.13."""
    missing = cluster.api.faults.add(without_namespace("neuronultraservers"))
    caplog.set_level(logging.INFO)
    async with controlling(cluster, timing=SHORT_PAUSES):
        await eventually(lambda: missing.hits >= 6, what="it tries again")
    logged = [each.getMessage() for each in caplog.records if each.name == "controller.apply.writes"]
    assert logged == [
        f"namespace {NAMESPACE} does not exist, so UltraServers cannot be written: create it (kubectl create namespace "
        f"{NAMESPACE})"
    ]


async def test_lease_without_namespace_is_one_error(
    cluster: Cluster,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """13.13."""
    missing = cluster.api.faults.add(without_namespace("leases"))
    async with controlling(cluster, "--leader-elect"):
        await eventually(lambda: missing.hits >= 3, what="it tries again")
    logged = [each.getMessage() for each in caplog.records if each.name == "controller.apply.leader"]
    assert logged == [
        f"namespace {NAMESPACE} does not exist, so the Lease neuron-ultraserver-controller cannot be held and the "
        f"controller does nothing: create it (kubectl create namespace {NAMESPACE})"
    ]


async def test_follower_shows_no_cluster_metrics(cluster: Cluster) -> None:  # noqa: F811
    """13.13: after a change of the leader the sum over both replicas counted everything twice."""
    async with controlling(cluster, "--leader-elect", timing=BRIEF_LEASE) as first:
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        sample = first.metrics.registry.get_sample_value
        await eventually(
            lambda: sample("neuron_ultraserver_nodes", {"state": "reserved"}) == 8, what="8 reserved nodes"
        )
        cluster.api.faults.add(refused("leases", verb="update"))
        await eventually(lambda: sample("neuron_ultraserver_leader") == 0, what="the leader has lost the lease")
        states = ("free", "reserved", "other")
        assert [sample("neuron_ultraserver_nodes", {"state": state}) for state in states] == [None] * 3
        assert sample("neuron_ultraserver_workloads", {"state": "Allocated"}) is None
        assert sample("neuron_ultraserver_ultraservers", {"state": "Ready"}) is None


async def test_leader_that_cannot_renew_says_so_without_a_change(cluster: Cluster) -> None:  # noqa: F811
    """18.4: nothing else changes, and the metric said that it leads."""
    async with controlling(cluster, "--leader-elect", timing=BRIEF_LEASE) as controller:
        sample = controller.metrics.registry.get_sample_value
        await eventually(lambda: sample("neuron_ultraserver_leader") == 1, what="it leads")
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 2, what="both are discovered")
        fault = cluster.api.faults.add(refused("leases", verb="update"))
        await eventually(lambda: fault.hits > 1, what="it cannot renew")
        await eventually(lambda: sample("neuron_ultraserver_leader") == 0, what="the metric says so")
        cluster.api.faults.clear()
        await eventually(lambda: sample("neuron_ultraserver_leader") == 1, what="it leads again")


async def test_write_that_is_tried_again_is_still_held(cluster: Cluster) -> None:  # noqa: F811
    """18.4: the metric was 0 during each try, so its alert did not fire."""
    rejected = cluster.api.faults.add(refused("resourceclaimtemplates", "create"))
    async with controlling(cluster, timing=SHORT_PAUSES) as controller:
        sample = controller.metrics.registry.get_sample_value
        cluster.submit("job")
        await eventually(lambda: sample("neuron_ultraserver_held_writes") == 1, what="the write is held")
        enough = rejected.hits + 3

        def stays_held() -> bool:
            assert sample("neuron_ultraserver_held_writes") == 1
            return rejected.hits >= enough

        await eventually(stays_held, what="it is tried again")
        cluster.api.faults.clear()
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        await eventually(lambda: sample("neuron_ultraserver_held_writes") == 0, what="nothing is held")


@pytest.fixture
async def recorder() -> AsyncIterator[EventRecorder]:
    async with EmbeddedApi() as api, KubeClient(KubeConfig(api.url)) as client:
        yield EventRecorder(client, "here")


async def test_expired_events_are_dropped_from_memory(recorder: EventRecorder) -> None:
    """13.13: events were never removed from memory."""
    about = {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "uid"}
    for minute in range(0, 300, 5):
        at = NOW + datetime.timedelta(minutes=minute)
        recorder.post(about, "Normal", "Happened", f"number {minute}", at)
        await send_events(recorder)
    assert recorder.remembered <= 13


async def test_role_without_namespaces_only_loses_limits(
    cluster: Cluster,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """13.15: the role of AWS's operator, or of our own last release, when nothing but the image is updated."""
    for verb in ("list", "watch"):
        cluster.api.faults.add(refused("namespaces", verb))
    with caplog.at_level(logging.WARNING):
        async with controlling(cluster, timing=SHORT_PAUSES):
            cluster.submit("job")
            await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
    said = [each.getMessage() for each in caplog.records if "namespaces cannot be read" in each.getMessage()]
    assert len(said) == 1
