"""The controller's reads of a workload's pods: rare, and within the rights of its manifests. Issue 13."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from controller.apply import pod_checks
from controller.observe.caches import CLAIMS_FOR_A_NODE
from controller.program import NAME
from controller.timing import DEFAULT_TIMING
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.observed.model import Starting
from tests.story.controller_cluster import Cluster
from tests.story.test_ultraserver_controller import cluster, controlling  # noqa: F401
from tests.support.controller_timings import QUICK
from tests.support.sending import new_sender, sent
from tests.support.timings import quicker
from tests.support.waiting import eventually

WORDS = "0/8 nodes are available: 3 Insufficient cpu."


SOON = quicker(QUICK, pods={"idle_s": 0.1})


def without_services(there: Cluster) -> None:
    """Deny Services, so that no pod is read for the address of rank 0."""
    there.api.faults.add(InjectedFault(Do.RESPOND, verb="get", resource="services", status=403, times=None))


def unschedulable(there: Cluster, name: str) -> None:
    """A pod of the workload that has been unschedulable for a long time."""
    claims = [{"name": "neuron", "resourceClaimTemplateName": "job"}]
    spec = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": claims}
    meta = {"name": name, "namespace": "ml"}
    there.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}
    status = {"phase": "Pending", "conditions": [{**condition, "lastTransitionTime": "2026-03-01T12:00:00Z"}]}
    there.api.patch("pods", name, {"status": status}, "ml")


def degraded(there: Cluster) -> tuple[str, str]:
    conditions = there.api.get("neuronultraserverworkloads", "job", "ml")["status"]["conditions"]
    found: dict[str, Any] = next((c for c in conditions if (c["type"], c["status"]) == ("Degraded", "True")), {})
    return found.get("reason", ""), found.get("message", "")


async def test_unschedulable_pods_make_degraded(cluster: Cluster) -> None:  # noqa: F811
    """13.9: It was Allocated while other pods used the CPU of its nodes."""
    without_services(cluster)
    async with controlling(cluster, timing=SOON):
        workload = cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        unschedulable(cluster, "job-3")
        await eventually(lambda: degraded(cluster)[0] == "PodsUnschedulable", what="the workload is Degraded")
        assert degraded(cluster)[1].endswith(f"ml/job-3: {WORDS}")
        assert cluster.state("job") == "Allocated"
        nodes = cluster.allocations()[0]["allocatedNodes"]
        for name in nodes:
            cluster.pod_with_claim(f"on-{name}", name, workload)
        await eventually(lambda: degraded(cluster)[0] == "", what="the workload has no fault")
    reads = [each for each in cluster.api.log if (each.resource, each.user_agent) == ("pods", NAME)]
    assert {(each.verb, each.namespace) for each in reads} == {("list", "ml")}


def events_of(there: Cluster, reason: str) -> list[Any]:
    return [each for each in there.api.objects("events") if each["reason"] == reason]


def waits_with_claim(there: Cluster, name: str, workload_uid: str) -> None:
    """A pod as `unschedulable` makes it, whose claim is for the workload `job` with this UID."""
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 4}
    named = {**parameters, "workloadId": "job", "workloadUid": workload_uid}
    devices = {
        "requests": [{"name": "one", "exactly": {"deviceClassName": "workload.neuron.aws.com"}}],
        "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": named}}],
    }
    meta = {"name": f"{name}-claim", "namespace": "ml"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta}
    there.api.create({**claim, "spec": {"devices": devices}})
    unschedulable(there, name)
    made = [{"name": "neuron", "resourceClaimName": f"{name}-claim"}]
    there.api.patch("pods", name, {"status": {"resourceClaimStatuses": made}}, "ml")


async def test_pod_with_a_claim_of_an_earlier_workload_is_evicted(cluster: Cluster) -> None:  # noqa: F811
    """It waited for ever: no device has the UID of a workload that is gone. Its Job creates another pod."""
    without_services(cluster)
    async with controlling(cluster, timing=SOON):
        workload = cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        waits_with_claim(cluster, "job-3", workload["metadata"]["uid"])
        waits_with_claim(cluster, "job-4", "of-an-earlier-one")
        await eventually(lambda: cluster.api.find("pods", "job-4", "ml") is None, what="the pod is evicted")
        # The controller tells of what it has done when it is done.
        [event] = await eventually(lambda: events_of(cluster, "FormerClaimEvicted"), what="the Event")
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", "job-4")
    assert event["message"] == (
        "evicted because its claim is for an earlier NeuronUltraServerWorkload ml/job, which is gone: no device can "
        "satisfy it; the pod that takes its place gets a claim of the present one"
    )
    assert cluster.api.find("pods", "job-3", "ml") is not None


async def test_role_without_list_pods_skips_the_check(cluster: Cluster) -> None:  # noqa: F811
    """13.9: the ClusterRole of an earlier release has no `list` on pods."""
    refused = cluster.api.faults.add(InjectedFault(Do.RESPOND, verb="list", resource="pods", status=403, times=None))
    async with controlling(cluster, timing=SOON):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        await eventually(lambda: refused.hits >= 1, what="it asked")
        cluster.submit("second", count=1)
        await eventually(lambda: cluster.state("second") == "Allocated", what="the second is Allocated")


async def test_missing_efa_claim_posts_one_warning(cluster: Cluster) -> None:  # noqa: F811
    """13.13."""
    without_services(cluster)
    async with controlling(cluster):
        workload = cluster.submit("job", count=2)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        for number, entry in enumerate(cluster.allocations()):
            cluster.pod_with_claim(f"job-{number}", entry["allocatedNodes"][0], workload)

        def warnings() -> list[str]:
            return [each["message"] for each in events_of(cluster, "NoNetworkClaim")]

        await eventually(lambda: warnings() != [], what="there is a warning")
        cluster.pod_with_claim("job-2", cluster.allocations()[0]["allocatedNodes"][1], workload)
        await eventually(lambda: cluster.api.find("pods", "job-2", "ml") is not None, what="one more pod")
        (message,) = warnings()
        assert message.startswith("serverCount is 2, and pod ml/job-")
    reads = [each for each in cluster.api.log if (each.resource, each.user_agent) == ("pods", NAME)]
    assert [each.verb for each in reads if each.verb == "get"] == ["get"]


def foreign(there: Cluster, name: str, node: str) -> None:
    there.pod_with_claim(name, node, {"metadata": {"name": "nobodys", "uid": "of-nobody"}}, plain=True)


def many_claims(there: Cluster) -> None:
    """Create so many claims that the pods of four nodes are read instead of them."""
    devices = {"requests": [{"name": "one", "exactly": {"deviceClassName": "neuron.aws.com"}}]}
    for number in range(4 * CLAIMS_FOR_A_NODE + 1):
        meta = {"name": f"other-{number}", "namespace": "ml"}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta}
        there.api.create({**claim, "spec": {"devices": devices}})


@pytest.mark.parametrize(("many", "lists"), [(True, {"pods"}), (False, {"resourceclaims"})])
async def test_binding_check_sees_claims_before_the_watch(
    cluster: Cluster,  # noqa: F811
    many: bool,
    lists: set[str],
) -> None:
    """13.13: all claims of the cluster were listed each time; if there are many, the nodes' pods are read instead."""
    if many:
        many_claims(cluster)
    foreign(cluster, "elsewhere", "u1-3")
    cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceclaims", times=None))
    async with controlling(cluster):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 2, what="both are discovered")
        before = len(cluster.api.log)
        foreign(cluster, "slipped-in", "u0-1")
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Pending", what="the workload waits")
        await eventually(lambda: "pod ml/slipped-in has devices" in cluster.reason("job")[1], what="it says why")
    asked = [each for each in list(cluster.api.log)[before:] if (each.user_agent, each.verb) == (NAME, "list")]
    assert {each.resource for each in asked} == lists


async def test_binding_check_sees_a_claim_that_moved(cluster: Cluster) -> None:  # noqa: F811
    """The watch still shows the claim on its former node."""
    many_claims(cluster)
    foreign(cluster, "moves", "u1-3")
    cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceclaims", times=None))
    async with controlling(cluster):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == 2, what="both are discovered")
        cluster.api.delete("pods", "moves", "ml", grace_s=0)
        cluster.api.delete("resourceclaims", "moves", "ml")
        foreign(cluster, "moves", "u0-1")
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        assert cluster.allocations()[0]["allocatedNodes"] == [f"u1-{n}" for n in range(4)]


async def test_binding_check_works_without_list_pods(
    cluster: Cluster,  # noqa: F811
) -> None:
    """13.13: with the ClusterRole of an earlier release."""
    many_claims(cluster)
    foreign(cluster, "elsewhere", "u1-3")
    refused = cluster.api.faults.add(InjectedFault(Do.RESPOND, verb="list", resource="pods", status=403, times=None))
    async with controlling(cluster):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
    assert refused.hits > 0


async def test_recently_idle_node_is_not_reported(cluster: Cluster) -> None:  # noqa: F811
    """13.9: a job with more pods than nodes has unschedulable pods, and a node of it is idle while a pod restarts."""
    unschedulable(cluster, "surplus-9")
    began = datetime.datetime(2026, 3, 1, 13, 0, tzinfo=datetime.UTC)

    def after(seconds: float) -> datetime.datetime:
        return began + datetime.timedelta(seconds=seconds)

    def idle(name: str) -> Starting:
        return Starting("ml", name, f"uid-{name}", "job", 1, ("u0-1",), None)

    async with cluster.api.client() as client:
        sender = new_sender()
        looks = pod_checks.PodLooks(client, EventRecorder(client, "here"), DEFAULT_TIMING.pods, sender)

        async def look(*workloads: Starting, seconds: float) -> datetime.datetime | None:
            return await sent(sender, lambda: looks.look(workloads, after(seconds)))

        assert await look(idle("first"), seconds=0) == after(30)
        assert await look(idle("first"), seconds=30) == after(60)
        assert looks.unschedulable.keys() == {"uid-first"}
        await look(idle("first"), idle("second"), seconds=50)
        await look(idle("first"), idle("second"), seconds=79)
        assert looks.unschedulable.keys() == {"uid-first"}
        await look(idle("second"), seconds=200)
        assert looks.unschedulable.keys() == {"uid-second"}
        await look(seconds=201)
        assert looks.unschedulable == {}
