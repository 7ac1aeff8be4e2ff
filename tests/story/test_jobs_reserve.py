"""A job with the annotation gets its reservation, and gives it back. Issue 35."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.jobs.early_pods import CONDITION
from controller.jobs.guard import POLICY
from controller.program import Controller
from controller.timing import Timing
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

SOON = quicker(QUICK, jobs={"first_s": 0.05, "longest_s": 0.2, "absent_s": 0.2, "guard_s": 0.2})
POLICIES = "admissionregistration.k8s.io"


@contextlib.asynccontextmanager
async def allowed(*, controllers: bool = True) -> AsyncIterator[Cluster]:
    """A cluster in which jobs of the namespace ml may reserve."""
    async with answering(Cluster, controllers=controllers) as made:
        for kind, plural in (("", "validatingadmissionpolicies"), ("Binding", "validatingadmissionpolicybindings")):
            made.api.register(POLICIES, ("v1",), f"ValidatingAdmissionPolicy{kind}", plural, namespaced=False)
        guard(made)
        allow(made)
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with allowed() as made:
        yield made


def guard(there: Cluster) -> None:
    """The policy that guards the label, and its binding."""
    for kind, spec in (
        ("ValidatingAdmissionPolicy", {"failurePolicy": "Fail"}),
        ("ValidatingAdmissionPolicyBinding", {"policyName": POLICY, "validationActions": ["Deny"]}),
    ):
        there.api.create({"apiVersion": f"{POLICIES}/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec})


def allow(there: Cluster, limit: str = "8") -> None:
    meta = {
        "labels": {"neuron.aws.com/reserve-for-jobs": "true"},
        "annotations": {"neuron.aws.com/max-reserved-nodes": limit},
    }
    there.api.patch("namespaces", "ml", {"metadata": meta})


def controlling(there: Cluster, timing: Timing = SOON) -> contextlib.AbstractAsyncContextManager[Controller]:
    return running_controller(there, "--jobs-may-reserve", "true", timing=timing)


def pods(template: str = "train-rct") -> Obj:
    return {
        "spec": {
            "nodeSelector": {"node.kubernetes.io/instance-type": "trn3.48xlarge"},
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": template}],
        }
    }


def submit(there: Cluster, *, parallelism: int = 8, wish: str = "topologySize=4", **spec: Any) -> Obj:
    return there.api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "ml", "annotations": {"neuron.aws.com/ultraservers": wish}},
            "spec": {"parallelism": parallelism, "template": pods(), **spec},
        }
    )


def workload(there: Cluster) -> Obj | None:
    return there.api.find("neuronultraserverworkloads", "train", "ml")


def events(there: Cluster, reason: str) -> list[str]:
    return [
        each["message"]
        for each in there.api.objects("events")
        if (each["reason"], each["involvedObject"]["kind"]) == (reason, "Job")
    ]


async def allocated(there: Cluster) -> None:
    await eventually(lambda: there.state("train") == "Allocated", what="the job's reservation is Allocated")


async def gone(there: Cluster) -> None:
    await eventually(lambda: workload(there) is None and not there.tags(), what="its nodes are free")


async def test_job_gets_nodes_and_gives_them_back_when_it_is_complete(cluster: Cluster) -> None:
    async with controlling(cluster):
        job = submit(cluster)
        await allocated(cluster)
        made = workload(cluster)
        assert made is not None
        assert made["spec"]["serverCount"] == 2
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["uid"], owner.get("blockOwnerDeletion")) == (job["metadata"]["uid"], None)
        assert cluster.api.find("resourceclaimtemplates", "train-rct", "ml") is not None
        await eventually(lambda: events(cluster, "Allocated"), what="the job's Events show it")
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        cluster.api.patch("jobs", "train", {"status": done}, "ml")
        await gone(cluster)


async def test_reservation_follows_the_number_of_pods(cluster: Cluster) -> None:
    async with controlling(cluster):
        submit(cluster)
        await allocated(cluster)
        cluster.api.patch("jobs", "train", {"spec": {"parallelism": 4}}, "ml")
        await eventually(lambda: len(cluster.tags()) == 4, what="one group is released")
        cluster.api.patch("jobs", "train", {"spec": {"parallelism": 6}}, "ml")
        await eventually(lambda: events(cluster, "PodsDoNotFillGroups"), what="the remainder is reported")
        assert len(cluster.tags()) == 4


async def test_suspended_job_keeps_its_nodes_until_its_pods_have_ended(cluster: Cluster) -> None:
    async with controlling(cluster):
        submit(cluster, parallelism=4)
        await allocated(cluster)
        made = workload(cluster)
        assert made is not None
        node = cluster.allocations()[0]["allocatedNodes"][0]
        cluster.pod_with_claim("train-0", node, made)
        await eventually(lambda: events(cluster, "Allocated"), what="the controller works")
        cluster.api.patch("jobs", "train", {"spec": {"suspend": True}}, "ml")
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.state("other") == "Allocated", what="other workloads get nodes")
        assert cluster.state("train") == "Allocated"
        cluster.api.delete("pods", "train-0", "ml", grace_s=0)
        await eventually(lambda: workload(cluster) is None, what="the reservation is released")
        cluster.api.patch("jobs", "train", {"spec": {"suspend": False}}, "ml")
        await allocated(cluster)


async def test_deleted_job_whose_pods_stay_keeps_its_nodes(cluster: Cluster) -> None:
    async with controlling(cluster):
        submit(cluster, parallelism=4)
        await allocated(cluster)
        made = workload(cluster)
        assert made is not None
        cluster.pod_with_claim("train-0", cluster.allocations()[0]["allocatedNodes"][0], made)
        # `kubectl delete --cascade=orphan`: the garbage collector removes the references, then the job goes.
        cluster.api.patch("neuronultraserverworkloads", "train", {"metadata": {"ownerReferences": None}}, "ml")
        cluster.api.delete("jobs", "train", "ml")
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.state("other") == "Allocated", what="other workloads get nodes")
        assert cluster.state("train") == "Allocated"
        cluster.api.delete("pods", "train-0", "ml", grace_s=0)
        await eventually(lambda: workload(cluster) is None, what="the reservation is released")


async def test_without_the_policy_nothing_is_reserved(cluster: Cluster) -> None:
    cluster.api.delete("validatingadmissionpolicybindings", POLICY)
    async with controlling(cluster):
        submit(cluster)
        await eventually(lambda: events(cluster, "JobsMayNotReserve"), what="the job's Events say why")
        assert workload(cluster) is None
        spec = {"policyName": POLICY, "validationActions": ["Deny"]}
        kind = "ValidatingAdmissionPolicyBinding"
        cluster.api.create({"apiVersion": f"{POLICIES}/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec})
        await allocated(cluster)


async def test_pods_that_were_there_before_the_template_are_woken_once() -> None:
    """On a server whose claim controller has not noticed the template."""
    early = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "early", "namespace": "ml"}, **pods()}
    async with allowed(controllers=False) as there:

        def woken() -> bool:
            status = there.api.get("pods", "early", "ml").get("status") or {}
            return CONDITION in [each["type"] for each in status.get("conditions") or []]

        there.api.create(early)
        async with controlling(there):
            submit(there)
            await eventually(woken, what="the pod is woken")
            await eventually(lambda: events(there, "Allocated"), what="the controller works on")
        patches = [each for each in there.api.log if (each.verb, each.resource) == ("patch", "pods/status")]
        assert len(patches) == 1


async def test_writes_that_fail_are_repeated_and_what_is_rejected_is_told(cluster: Cluster) -> None:
    for status, times in ((500, 2), (403, 1)):
        fault = InjectedFault(
            Do.RESPOND, verb="create", resource="neuronultraserverworkloads", status=status, times=times
        )
        cluster.api.faults.add(fault)
    async with controlling(cluster):
        submit(cluster)
        await allocated(cluster)
        assert len(events(cluster, "ReservationRejected")) == 1


async def test_reservation_that_the_server_does_not_answer_holds_up_nobody_else(cluster: Cluster) -> None:
    """Each pass of the controller waited for it, sixteen of them for 160 s: the leader gave up its Lease."""
    hung = cluster.api.faults.add(
        InjectedFault(Do.HANG, verb="create", resource="neuronultraserverworkloads", times=None)
    )
    async with controlling(cluster, quicker(SOON, client={"request_s": 3600.0})):
        submit(cluster)
        await eventually(lambda: hung.hits, what="the reservation is asked for")
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.state("other") == "Allocated", what="another workload gets nodes")


async def test_reservation_gets_its_nodes_before_the_watch_shows_it(cluster: Cluster) -> None:
    """The answer to the write came first, and then the watch showed nothing new: nobody planned for 35 s."""
    silent = InjectedFault(Do.HANG, verb="watch", resource="neuronultraserverworkloads", times=None)
    cluster.api.faults.add(silent)
    quiet = quicker(SOON, jobs={"absent_s": 3600.0, "guard_s": 3600.0}, client={"watch": {"silence_s": 3600.0}})
    cluster.submit("other", count=1)
    async with controlling(cluster, quiet):
        await eventually(lambda: cluster.state("other") == "Allocated", what="another workload has its nodes")
        submit(cluster, parallelism=4)
        await allocated(cluster)


async def test_reservation_of_a_person_is_left_alone(cluster: Cluster) -> None:
    async with controlling(cluster):
        cluster.submit("by-hand", count=1)
        template = {"spec": {"resourceClaimTemplate": {"name": "train-rct"}}}
        cluster.api.patch("neuronultraserverworkloads", "by-hand", template, "ml")
        submit(cluster)
        await eventually(lambda: events(cluster, "WorkloadExists"), what="the job's Events say so")
        cluster.api.delete("jobs", "train", "ml")
        await eventually(lambda: cluster.state("by-hand") == "Allocated", what="the other one has its nodes")
        assert workload(cluster) is None
