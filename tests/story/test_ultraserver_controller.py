"""The controller with the embedded API server, and simulated nodes that tag slices as plugins do."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
import yaml

from controller import settings as controller_settings
from controller.observe.caches import wall_clock
from controller.program import NAME, Controller
from controller.timing import Timing
from neuron_dra.api.objects import allocated_claim
from neuron_dra.arguments import Parser
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import (
    Do,
    EmbeddedApi,
    InjectedFault,
    LoggedRequest,
)
from neuron_dra.kube.config import KubeConfig
from tests.story.controller_cluster import Cluster
from tests.support.controller_passes import passes
from tests.support.controller_timings import BRIEF_LEASE, QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

STATUS = "neuronultraserverworkloads/status"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        made = Cluster(api)

        async def plugins() -> None:
            while True:
                made.tag_nodes()
                await asyncio.sleep(0.02)

        task = asyncio.create_task(plugins())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def reasons(cluster: Cluster) -> set[str]:
    """Return the reasons of all Events."""
    return {event["reason"] for event in cluster.api.objects("events")}


def beyond_the_rights(requests: Iterable[LoggedRequest]) -> set[tuple[str, str, str]]:
    """Return verb, resource and namespace of the controller's requests that the manifests' roles do not allow."""
    path = Path(__file__).resolve().parents[2] / "deploy/manifests/ultraserver/50-ultraserver-controller.yaml"
    rules = [
        (item["metadata"].get("namespace"), rule)
        for item in yaml.safe_load_all(path.read_text())
        if item["kind"] in ("ClusterRole", "Role")
        for rule in item["rules"]
    ]

    def allowed(request: LoggedRequest) -> bool:
        return any(
            request.verb in rule["verbs"]
            and request.resource in rule["resources"]
            and namespace in (None, request.namespace)
            and request.name in rule.get("resourceNames", [request.name])
            for namespace, rule in rules
        )

    return {(each.verb, each.resource, each.namespace) for each in requests if not allowed(each)}


@contextlib.asynccontextmanager
async def controlling(
    cluster: Cluster,
    *flags: str,
    clock: Callable[[], datetime.datetime] = wall_clock,
    timing: Timing = QUICK,
) -> AsyncIterator[Controller]:
    """Run a controller; stop it as SIGTERM does, and check its requests against the manifests' roles."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", cluster.api.url, "--health-probe-bind-address", "127.0.0.1:0"]
    parsed = parser.parse_args([*words, "--metrics-bind-address", "0", "--grpc-address", "0", *flags])
    loaded = controller_settings.load(parsed, {}, "here")
    controller = Controller(loaded, KubeConfig(loaded.kube_api_server), clock=clock, timing=timing)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        controller.stop()
        await task
    requests = [each for each in cluster.api.log if each.user_agent == NAME]
    assert beyond_the_rights(requests) == set()


async def test_workload_is_allocated_and_released(cluster: Cluster) -> None:
    async with controlling(cluster):
        cluster.silent = {"u1-3"}  # without a late node, the workload may never wait for nodes
        workload = cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocating", what="nodes are reserved")
        cluster.silent = set()
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        assert cluster.tags() == {f"u{u}-{n}" for u in range(2) for n in range(4)}
        assert {entry["phase"] for entry in cluster.allocations()} == {"Bound"}
        template = cluster.api.get("resourceclaimtemplates", "job", "ml")
        assert template["metadata"]["ownerReferences"][0]["uid"] == workload["metadata"]["uid"]
        for n in range(4):
            cluster.pod_with_claim(f"pod-{n}", f"u0-{n}", workload)
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.state("job") == "None", what="the workload is gone")
        await eventually(lambda: not cluster.tags(), what="the tags are gone")
        await eventually(lambda: {"WaitingForNodes", "Allocated"} <= reasons(cluster), what="both Events")
    assert (cluster.api.objects("pods"), cluster.allocations()) == ([], [])
    assert cluster.api.objects("resourceclaimtemplates") == []


async def test_a_steady_cluster_gets_no_writes(cluster: Cluster) -> None:
    async with controlling(cluster) as controller:
        cluster.submit("job", size=2, count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        await passes(controller, cluster.api)
        cluster.api.log.clear()
        cluster.api.patch("nodes", "u0-0", {"metadata": {"annotations": {"kubelet": "was here"}}})
        await passes(controller, cluster.api)
        own = [each for each in cluster.api.log if each.user_agent == NAME]
        assert [each for each in own if each.verb in ("create", "update", "patch", "delete")] == []


def slice_of(cluster: Cluster, node: str) -> Obj:
    """Return the ResourceSlice of a node."""
    (found,) = [each for each in cluster.api.objects("resourceslices") if each["spec"]["nodeName"] == node]
    return found


async def test_gradual_closing_is_one_status_write(cluster: Cluster) -> None:
    timing = quicker(QUICK, writes={"message_s": 3600.0})
    async with controlling(cluster, timing=timing) as controller:
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        cluster.silent = {f"u{u}-{n}" for u in range(2) for n in range(4)}
        cluster.api.log.clear()
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.reason("job")[0] == "Draining", what="nodes are waited for")
        for name in sorted(cluster.silent):
            before = slice_of(cluster, name)
            cluster.silent = cluster.silent - {name}
            await eventually(lambda name=name, before=before: slice_of(cluster, name) != before, what=f"{name} drains")
            await passes(controller, cluster.api)
        await eventually(lambda: cluster.state("job") == "None", what="the workload is gone")
        writes = [each for each in cluster.api.log if (each.verb, each.resource) == ("patch", STATUS)]
        # At its start, when its template is being deleted, and while its reservations are Draining.
        assert len(writes) <= 3, writes


async def test_blocked_eviction_names_the_budget(cluster: Cluster) -> None:
    cluster.api.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "trainers", "namespace": "ml"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "job"}}},
        }
    )
    async with controlling(cluster):
        workload = cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        cluster.pod_with_claim("pod-0", cluster.allocations()[0]["leaderNodeName"], workload)
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.reason("job")[0] == "EvictionBlocked", what="the budget is named")
        assert "trainers" in cluster.reason("job")[1]
        cluster.api.delete("poddisruptionbudgets", "trainers", "ml")
        await eventually(lambda: cluster.state("job") == "None", what="the workload is gone")


async def test_claim_before_the_watch_prevents_binding(cluster: Cluster) -> None:
    hung = cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceclaims", times=None))
    async with controlling(cluster):
        await eventually(lambda: hung.hits and cluster.api.objects("neuronultraservers"), what="the first plan")
        cluster.api.create(allocated_claim("foreign", "u0-0", ["neuron-node-0"], namespace="ml"))
        cluster.submit("job", size=4, count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        (allocation,) = cluster.allocations()
        assert allocation["allocatedNodes"] == ["u1-0", "u1-1", "u1-2", "u1-3"]


@pytest.mark.parametrize("verb", ["create", "patch", "delete"])
@pytest.mark.parametrize("do", [Do.RESPOND, Do.DROP_AFTER])
async def test_failed_writes_only_delay(cluster: Cluster, verb: str, do: Do) -> None:
    for nth in (1, 3, 6):
        cluster.api.faults.add(InjectedFault(do, verb=verb, nth=nth, status=409 if nth == 1 else 503))
    async with controlling(cluster):
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        held = [name for entry in cluster.allocations() for name in entry["allocatedNodes"]]
        assert len(held) == len(set(held)) == 8
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.state("job") == "None", what="the workload is gone")


async def test_foreign_claim_is_seen_before_binding(cluster: Cluster) -> None:
    watch = cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceclaims", times=None))
    cluster.silent = {"u0-3"}
    async with controlling(cluster):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocating" and watch.hits, what="nodes are reserved")
        assert [entry["leaderNodeName"] for entry in cluster.allocations()] == ["u0-0"]
        cluster.api.create(allocated_claim("foreign", "u0-3", ["neuron-node-0"], namespace="ml"))
        cluster.silent = set()
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        assert [(entry["leaderNodeName"], entry["phase"]) for entry in cluster.allocations()] == [("u1-0", "Bound")]


async def test_namespace_limit_takes_effect_at_once(cluster: Cluster) -> None:
    """13.15. The Namespaces are watched, so the workload need not change."""
    cluster.api.patch("namespaces", "ml", {"metadata": {"annotations": {"neuron.aws.com/max-reserved-nodes": "4"}}})
    async with controlling(cluster):
        cluster.submit("job", count=2)
        await eventually(lambda: cluster.state("job") == "Pending", what="the workload is Pending")
        assert (cluster.allocations(), cluster.reason("job")[0]) == ([], "NamespaceLimit")
        cluster.api.patch("namespaces", "ml", {"metadata": {"annotations": {"neuron.aws.com/max-reserved-nodes": "8"}}})
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        cluster.api.patch("namespaces", "ml", {"metadata": {"annotations": {"neuron.aws.com/max-reserved-nodes": "0"}}})
        cluster.submit("other", size=1, count=1)
        await eventually(lambda: cluster.state("other") == "Pending", what="the other one is Pending")
        assert cluster.reason("other")[0] == "NamespaceLimit"
        assert (len(cluster.allocations()), cluster.state("job")) == (2, "Allocated")


async def test_foreign_templates_are_logged_at_start(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """13.2. The admission policy rejects new templates, but existing ones stay."""

    def listed() -> list[str]:
        return [str(each.__dict__["templates"]) for each in caplog.records if "request reserved" in each.message]

    alternatives = [
        {"name": "a", "deviceClassName": "neuron.aws.com"},
        {"name": "b", "deviceClassName": "workload.neuron.aws.com"},
    ]
    for name, request in (
        ("plain", {"exactly": {"deviceClassName": "neuron.aws.com"}}),
        ("hidden", {"firstAvailable": alternatives}),
        ("older", {"exactly": {"deviceClassName": "workload.neuron.aws.com"}}),
    ):
        devices = {"requests": [{"name": "r", **request}]}
        meta = {"name": name, "namespace": "ml"}
        spec = {"spec": {"devices": devices}}
        cluster.api.create(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}
        )
    async with controlling(cluster):
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
    caplog.clear()
    async with controlling(cluster):  # another leader, which sees the workload's own template too
        await eventually(listed, what="the templates are listed")
    assert listed() == ["ml/hidden, ml/older"]


async def test_second_replica_takes_over(cluster: Cluster) -> None:
    cluster.silent = {"u1-3"}
    elect = ("--leader-elect", "--identity", "a")
    async with controlling(cluster, *elect) as first:
        await eventually(first.leadership.holds, what="the first leads")
        async with controlling(cluster, "--leader-elect", "--identity", "b") as second:
            cluster.submit("job")
            await eventually(lambda: cluster.state("job") == "Allocating", what="nodes are reserved")
            assert not second.leadership.holds()
            before = {entry["allocationId"] for entry in cluster.allocations()}
            first.stop()
            await eventually(second.leadership.holds, what="the second leads")
            cluster.silent = set()
            await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
            assert {entry["allocationId"] for entry in cluster.allocations()} == before


async def test_expired_lease_is_taken_over(cluster: Cluster) -> None:
    """The next try is when the Lease expires, not later."""
    timing = quicker(BRIEF_LEASE, lease={"retry_s": 3600.0})
    dead = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}
    cluster.api.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": dead,
        }
    )
    async with controlling(cluster, "--leader-elect", timing=timing) as follower:
        await eventually(follower.leadership.holds, what="it leads")


async def test_disconnected_leader_stops_in_time(cluster: Cluster) -> None:
    async with controlling(cluster, "--leader-elect", "--identity", "a", timing=BRIEF_LEASE) as first:
        await eventually(first.leadership.holds, what="the first leads")
        before = first.leadership.term
        cluster.api.faults.add(InjectedFault(resource="leases", status=503, times=None))
        await eventually(lambda: not first.leadership.holds(), what="it gave up")
        cluster.api.faults.clear()
        await eventually(first.leadership.holds, what="it leads again")
        assert first.leadership.term > before


async def test_health_and_metrics_are_served(cluster: Cluster) -> None:
    async with controlling(cluster) as controller:
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        port = controller.servers[0].port

        def fetch(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return str(answer.read().decode())

        assert (await asyncio.to_thread(fetch, "/healthz"), await asyncio.to_thread(fetch, "/readyz")) == ("ok\n",) * 2
        sample = controller.metrics.registry.get_sample_value
        await eventually(lambda: sample("neuron_ultraserver_leader") == 1.0)
        await eventually(lambda: sample("neuron_ultraserver_time_to_allocated_seconds_count") == 1.0)
        page = await asyncio.to_thread(fetch, "/metrics")
        assert 'neuron_ultraserver_writes_total{action="CreateTemplate",result="ok"} 1.0' in page
        assert "neuron_ultraserver_time_to_allocated_seconds_count 1.0" in page


async def test_priority_class_lets_a_workload_pass_others_that_wait(cluster: Cluster) -> None:
    classes = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.api.create({**classes, "metadata": {"name": "high"}, "value": 1000})
    async with controlling(cluster):
        cluster.submit("holder")
        await eventually(lambda: cluster.state("holder") == "Allocated", what="all nodes are reserved")
        cluster.submit("early")
        await eventually(lambda: cluster.state("early") == "Pending", what="the first one waits")
        late = cluster.submit("late")
        spec = {**late["spec"], "priorityClassName": "high"}
        cluster.api.patch("neuronultraserverworkloads", "late", {"spec": spec}, "ml")
        await eventually(lambda: cluster.state("late") == "Pending", what="the second one waits")
        cluster.api.delete("neuronultraserverworkloads", "holder", "ml")
        await eventually(lambda: cluster.state("late") == "Allocated", what="the second one is served first")
        assert cluster.state("early") == "Pending"
