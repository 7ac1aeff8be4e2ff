"""One strange reply at a time: each verb and resource that the controller requests, in each situation (31, net 1).

A fault on everything at once hides most of the calls: the first one that fails keeps the others from being made.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller.program import NAME, Controller
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.emulation.embedded_api import STRANGE, Do, InjectedFault
from tests.story.controller_cluster import Cluster, answering
from tests.story.test_controller_faults import waits_since
from tests.story.test_rendezvous_service import start as start_pod
from tests.story.test_ultraserver_controller import controlling
from tests.story.test_unscheduled_pods import foreign, many_claims, unschedulable
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

LONG_S: Final = 60.0
LEASE: Final = "neuron-ultraserver-controller"
ROLES: Final = Path(__file__).resolve().parents[2] / "deploy/manifests/ultraserver/50-ultraserver-controller.yaml"

SWIFT: Final = quicker(
    QUICK,
    lease={"retry_s": 0.02},
    caches={"forbidden_s": 0.02},
    passes={"retry_s": (0.01, 0.02), "idle_s": 0.02},
    writes={
        "first_s": 0.01,
        "first_eviction_s": 0.02,
        "longest_s": 0.02,
        "crd_s": 0.02,
        "message_s": 0.01,
        "class_s": 0.02,
    },
    pods={"idle_s": 0.02, "suspect_s": 0.02, "longest_s": 0.05},
    rendezvous={"first_s": 0.01, "longest_s": 0.02, "verify_s": 0.05, "workload_s": 0.0, "forbidden_s": 0.02},
    client={"watch": {"retry_s": (0.01, 0.02), "short_s": 0.01}},
)
"""A controller that tries everything again within hundredths of a second."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with answering(Cluster, 0.02) as made:
        yield made


class Broken:
    """One fault for each strange reply to one verb and resource."""

    def __init__(self, cluster: Cluster, verb: str, resource: str) -> None:
        # A deletion that the server reports as done, and has not done, shows at the next comparison.
        believed = {"success"} if verb == "delete" else set()
        chosen = [strange for name, strange in STRANGE.items() if name not in believed]
        self.believes_evictions = resource == "pods/eviction"
        self._cluster = cluster
        self._faults = [strange.fault(verb=verb, resource=resource) for strange in chosen]

    def begin(self) -> None:
        for fault in self._faults:
            self._cluster.api.faults.add(fault)

    async def used(self) -> None:
        """Return when the controller has received every reply."""
        await eventually(lambda: all(fault.hits for fault in self._faults), LONG_S, "every reply")


@contextlib.asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Controller]:
    """Run a controller; raise the error that ends it."""
    async with controlling(cluster, "--leader-elect", "--identity", "here", timing=SWIFT) as made:
        yield made


async def reached(cluster: Cluster, state: str, name: str = "job") -> None:
    await eventually(lambda: cluster.state(name) == state, LONG_S, f"{name} is {state}")


async def discovered(cluster: Cluster) -> None:
    await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 2, LONG_S, "both are discovered")


async def allocated(cluster: Cluster) -> dict[str, Any]:
    """Submit a workload, and return it once it is Allocated."""
    workload = cluster.submit("job", count=1)
    await reached(cluster, "Allocated")
    return workload


# Situations. Each begins the faults, and returns when the controller has received them and done what it should.


async def start(cluster: Cluster, broken: Broken) -> None:
    broken.begin()
    async with running(cluster):
        await broken.used()
        await discovered(cluster)
        await allocated(cluster)


async def idle(cluster: Cluster, broken: Broken) -> None:
    """The watches end, the server has forgotten their versions, and a workload comes afterwards."""
    async with running(cluster):
        await discovered(cluster)
        await cluster.api.refuse_connections()
        cluster.api.patch("nodes", "u0-0", {"metadata": {"annotations": {"example.com/later": "yes"}}})
        cluster.api.compact()
        broken.begin()
        await cluster.api.resume()
        await broken.used()
        await allocated(cluster)


async def leading(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster) as controller:
        await eventually(controller.leadership.holds, LONG_S, "it leads")
        broken.begin()
        await broken.used()
        await allocated(cluster)


async def waiting(cluster: Cluster, broken: Broken) -> None:
    """Nothing is free for the second workload until the first is deleted."""
    async with running(cluster):
        cluster.submit("job")
        await reached(cluster, "Allocated")
        broken.begin()
        for number in range(len(STRANGE)):
            cluster.submit(f"waits-{number}")
        await broken.used()
        for number in range(len(STRANGE)):
            await reached(cluster, "Pending", f"waits-{number}")


async def with_a_priority(cluster: Cluster, broken: Broken) -> None:
    """A workload names a PriorityClass, whose value is read again and again."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    cluster.api.create(urgent)
    async with running(cluster):
        await discovered(cluster)
        broken.begin()
        workload = cluster.submit("job", count=1)
        named = {"spec": {"priorityClassName": "urgent"}}
        cluster.api.patch("neuronultraserverworkloads", workload["metadata"]["name"], named, "ml")
        await broken.used()
        await reached(cluster, "Allocated")


async def binding(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster):
        await discovered(cluster)
        broken.begin()
        cluster.submit("job", count=2)
        await broken.used()
        await reached(cluster, "Allocated")
        held = [name for entry in cluster.allocations() for name in entry["allocatedNodes"]]
        assert len(held) == len(set(held)) == 8


async def binding_beside_many_claims(cluster: Cluster, broken: Broken) -> None:
    """The pods of the nodes are read before they are bound, and then the claims of these pods."""
    many_claims(cluster)
    foreign(cluster, "elsewhere", "u1-3")
    cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceclaims", times=None))
    async with running(cluster):
        await discovered(cluster)
        foreign(cluster, "slipped-in", "u0-1")
        broken.begin()
        cluster.submit("job", count=1)
        await broken.used()
        await reached(cluster, "Pending")
        # First the pod is named; once its claim was read, its node is no longer free.
        words = ("pod ml/slipped-in has devices", "us-u0 has 3")
        await eventually(lambda: any(each in cluster.reason("job")[1] for each in words), LONG_S, "it says why")
        assert cluster.allocations() == []


async def rank_0_moves(cluster: Cluster, broken: Broken) -> None:
    """The pod with rank 0 gets an address, and another one."""
    async with running(cluster):
        workload = await allocated(cluster)
        broken.begin()
        start_pod(cluster, "job-0", cluster.allocations()[0]["rank0Node"], workload, "10.1.0.7")
        await eventually(lambda: addresses(cluster) == ["10.1.0.7"], LONG_S, "the pod's address")
        cluster.api.patch("pods", "job-0", {"status": {"podIP": "10.1.0.8"}}, "ml")
        await broken.used()
        await eventually(lambda: addresses(cluster) == ["10.1.0.8"], LONG_S, "the new address")


async def update_of_the_address(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster):
        workload = await allocated(cluster)
        start_pod(cluster, "job-0", cluster.allocations()[0]["rank0Node"], workload, "10.1.0.7")
        await eventually(lambda: addresses(cluster) == ["10.1.0.7"], LONG_S, "the pod's address")
        broken.begin()
        cluster.api.patch("pods", "job-0", {"status": {"podIP": "10.1.0.8"}}, "ml")
        await broken.used()
        await eventually(lambda: addresses(cluster) == ["10.1.0.8"], LONG_S, "the new address")


def addresses(cluster: Cluster) -> list[str]:
    """Return the addresses of rank 0."""
    found = cluster.api.find("endpointslices", "job-rank0-ipv4", "ml") or {"endpoints": []}
    return [text for each in found["endpoints"] for text in each["addresses"]]


async def unscheduled(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster):
        await allocated(cluster)
        broken.begin()
        unschedulable(cluster, "job-3")
        await broken.used()
        await eventually(lambda: "PodsUnschedulable" in str(conditions(cluster)), LONG_S, "the workload is Degraded")


def conditions(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.api.get("neuronultraserverworkloads", "job", "ml")["status"]["conditions"]
    return found


async def rejected_pod(cluster: Cluster, broken: Broken) -> None:
    """Another workload's pod is on a reserved node, which rejects it."""
    async with running(cluster) as controller:
        await allocated(cluster)
        broken.begin()
        node = cluster.allocations()[0]["allocatedNodes"][0]
        cluster.pod_with_claim("refused", node, {"metadata": {"name": "other", "uid": "another-workload"}})
        waits_since(cluster, "refused", 121)
        await broken.used()

        def counted() -> float | None:
            evictions = {"result": "evicted"}
            return controller.metrics.registry.get_sample_value("neuron_ultraserver_evictions_total", evictions)

        await eventually(lambda: cluster.api.find("pods", "refused", "ml") is None, LONG_S, "the pod is evicted")
        wanted = 2 if broken.believes_evictions else 1  # the reply "success" is the API server's own
        await eventually(lambda: counted() == wanted, LONG_S, "the eviction is counted")


async def draining(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster):
        workload = await allocated(cluster)
        for node in cluster.allocations()[0]["allocatedNodes"]:
            cluster.pod_with_claim(f"on-{node}", node, workload)
        broken.begin()
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await broken.used()
        await reached(cluster, "None")
        await eventually(lambda: not cluster.allocations() and not cluster.tags(), LONG_S, "the nodes are free")


async def draining_slowly(cluster: Cluster, broken: Broken) -> None:
    """The nodes keep their tags until the controller has received every reply."""
    async with running(cluster):
        await allocated(cluster)
        cluster.silent = {f"u{u}-{n}" for u in range(2) for n in range(4)}
        broken.begin()
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await broken.used()
        cluster.silent = set()
        await reached(cluster, "None")


async def ultraserver_is_gone(cluster: Cluster, broken: Broken) -> None:
    async with running(cluster):
        await discovered(cluster)
        broken.begin()
        for number in range(4):
            name = f"u1-{number}"
            [piece] = [each for each in cluster.api.objects("resourceslices") if each["spec"]["nodeName"] == name]
            cluster.api.delete("resourceslices", piece["metadata"]["name"])
            cluster.api.delete("nodes", name)
        await broken.used()
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 1, LONG_S, "one is left")


async def rival(cluster: Cluster, broken: Broken) -> None:
    """Another replica holds the Lease, and renews it, until it ends."""
    held = lease("rival", 3600)
    cluster.api.create(held)
    broken.begin()
    async with running(cluster) as controller:
        await broken.used()
        assert not controller.leadership.holds()
        assert cluster.api.get("leases", LEASE, NAMESPACE)["spec"] == held["spec"]
        cluster.api.patch("leases", LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}, NAMESPACE)
        await allocated(cluster)


async def rival_that_ends(cluster: Cluster, broken: Broken) -> None:
    """The Lease of another replica has been released, and is taken over."""
    cluster.api.create(lease("", 1))
    broken.begin()
    async with running(cluster) as controller:
        await broken.used()
        await eventually(controller.leadership.holds, LONG_S, "it leads")
        await allocated(cluster)


def lease(holder: str, seconds: int) -> dict[str, Any]:
    times = {"renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z"}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, **times},
    }


Situation = Callable[[Cluster, Broken], Awaitable[None]]
CACHED: Final = (
    "nodes",
    "resourceslices",
    "resourceclaims",
    "resourceclaimtemplates",
    "deviceclasses",
    "namespaces",
    "neuronultraservers",
    "neuronultraserverworkloads",
)

CALLS: Final[Mapping[str, tuple[Situation, str, str]]] = {
    **{f"start, list {kind}": (start, "list", kind) for kind in CACHED},
    **{f"start, watch {kind}": (start, "watch", kind) for kind in CACHED},
    "start, get Lease": (start, "get", "leases"),
    "start, create Lease": (start, "create", "leases"),
    "start, create UltraServer": (start, "create", "neuronultraservers"),
    "start, label Node": (start, "patch", "nodes"),
    "start, try the CRD": (start, "patch", "neuronultraservers/status"),
    **{f"idle, list {kind}": (idle, "list", kind) for kind in CACHED},
    **{f"idle, watch {kind}": (idle, "watch", kind) for kind in CACHED},
    "leading, get Lease": (leading, "get", "leases"),
    "leading, renew Lease": (leading, "update", "leases"),
    "waiting, write status": (waiting, "patch", "neuronultraserverworkloads/status"),
    "waiting, create Event": (waiting, "create", "events"),
    "waiting, get PriorityClass": (with_a_priority, "get", "priorityclasses"),
    "binding, add finalizer": (binding, "patch", "neuronultraserverworkloads"),
    "binding, add finalizer to UltraServer": (binding, "patch", "neuronultraservers"),
    "binding, write reservation": (binding, "patch", "neuronultraservers/status"),
    "binding, create template": (binding, "create", "resourceclaimtemplates"),
    "binding, list claims": (binding, "list", "resourceclaims"),
    "binding, write status": (binding, "patch", "neuronultraserverworkloads/status"),
    "binding, get Service": (binding, "get", "services"),
    "binding, create Service": (binding, "create", "services"),
    "binding, list pods": (binding_beside_many_claims, "list", "pods"),
    "binding, get claim": (binding_beside_many_claims, "get", "resourceclaims"),
    "rank 0, get pod": (rank_0_moves, "get", "pods"),
    "rank 0, get Service": (rank_0_moves, "get", "services"),
    "rank 0, get EndpointSlice": (rank_0_moves, "get", "endpointslices"),
    "rank 0, create EndpointSlice": (rank_0_moves, "create", "endpointslices"),
    "rank 0, update EndpointSlice": (update_of_the_address, "update", "endpointslices"),
    "unscheduled, list pods": (unscheduled, "list", "pods"),
    "rejected pod, get pod": (rejected_pod, "get", "pods"),
    "rejected pod, evict": (rejected_pod, "create", "pods/eviction"),
    "draining, evict": (draining, "create", "pods/eviction"),
    "draining, delete template": (draining, "delete", "resourceclaimtemplates"),
    "draining, write reservation": (draining, "patch", "neuronultraservers/status"),
    "draining, remove finalizer": (draining, "patch", "neuronultraserverworkloads"),
    "draining, write status": (draining_slowly, "patch", "neuronultraserverworkloads/status"),
    "gone, delete UltraServer": (ultraserver_is_gone, "delete", "neuronultraservers"),
    "rival, get Lease": (rival, "get", "leases"),
    "rival, take Lease": (rival_that_ends, "update", "leases"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_each_strange_reply_costs_one_retry(cluster: Cluster, call: str) -> None:
    situation, verb, resource = CALLS[call]
    await situation(cluster, Broken(cluster, verb, resource))


def test_every_call_that_the_role_allows_is_tried() -> None:
    """`patch` of Events renews one that a replica before has posted; `update` of finalizers is never sent."""
    rules = [
        rule
        for item in yaml.safe_load_all(ROLES.read_text())
        if item["kind"] in ("ClusterRole", "Role") and item["metadata"]["name"] == NAME
        for rule in item["rules"]
    ]
    allowed = {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}
    tried = {(verb, resource) for _, verb, resource in CALLS.values()}
    assert allowed - tried == {("patch", "events"), ("update", "neuronultraserverworkloads/finalizers")}
