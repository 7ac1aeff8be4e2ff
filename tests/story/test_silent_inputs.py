"""4.02: what is silent, refused or wrong for a while ends no reservation, and keeps no other kind of job from one."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from tests.story.controller_cluster import Cluster
from tests.story.test_jobs_reserve import allocated, cluster, controlling, pods, submit, workload  # noqa: F401
from tests.story.test_ultraserver_controller import controlling as controlling_by
from tests.support.controller_passes import passes
from tests.support.waiting import eventually

JOB_SETS = ("jobset.x-k8s.io", ("v1alpha2",), "JobSet", "jobsets")
PAGE = b"404 page not found\n"


def job_set(name: str = "train") -> Obj:
    inner = {"parallelism": 4, "completions": 4, "template": pods(f"{name}-rct")}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "annotations": {"neuron.aws.com/ultraservers": "topologySize=4"},
        },
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": inner}}]},
    }


def events_of(there: Cluster, kind: str, name: str) -> set[str]:
    about = {"kind": kind, "name": name}
    return {each["reason"] for each in there.api.objects("events") if about.items() <= each["involvedObject"].items()}


async def test_kind_that_is_not_served_any_more_keeps_its_reservations(cluster: Cluster) -> None:  # noqa: F811
    cluster.api.register(*JOB_SETS)
    cluster.api.create(job_set())
    async with controlling(cluster) as controller:
        await allocated(cluster)
        made = workload(cluster)
        for verb in ("watch", "list", "get"):
            fault = InjectedFault(Do.RESPOND, verb=verb, resource="jobsets", status=404, body=PAGE, times=None)
            cluster.api.faults.add(fault)
        await cluster.api.refuse_connections()
        await cluster.api.resume()
        text = "the reservation says that its kind is not read"
        await eventually(
            lambda: "JobKindUnreadable" in events_of(cluster, "NeuronUltraServerWorkload", "train"), what=text
        )
        await passes(controller, cluster.api)
        left = workload(cluster)
        assert left is not None
        assert made is not None
        assert left["metadata"]["uid"] == made["metadata"]["uid"]
        assert "deletionTimestamp" not in left["metadata"]
        cluster.api.faults.clear()
        cluster.api.create(job_set("next"))
        await eventually(lambda: cluster.state("next") == "Allocated", what="the kind is read again")


async def test_job_set_that_is_deleted_gives_its_nodes_back(cluster: Cluster) -> None:  # noqa: F811
    """The control: here the API server's 404 names it."""
    cluster.api.register(*JOB_SETS)
    cluster.api.create(job_set())
    async with controlling(cluster):
        await allocated(cluster)
        cluster.api.patch("neuronultraserverworkloads", "train", {"metadata": {"ownerReferences": None}}, "ml")
        cluster.api.delete("jobsets", "train", "ml")
        await eventually(lambda: workload(cluster) is None, what="the reservation is released")


async def test_job_that_is_resumed_unseen_keeps_its_nodes(cluster: Cluster) -> None:  # noqa: F811
    async with controlling(cluster) as controller:
        submit(cluster, parallelism=4)
        await allocated(cluster)
        made = workload(cluster)
        assert made is not None
        cluster.pod_with_claim("train-0", cluster.allocations()[0]["allocatedNodes"][0], made)
        await passes(controller, cluster.api)
        cluster.api.patch("jobs", "train", {"spec": {"suspend": True}}, "ml")
        await passes(controller, cluster.api)
        silent = cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="jobs", times=None))
        await cluster.api.refuse_connections()
        await cluster.api.resume()
        await eventually(lambda: silent.hits, what="the watch of jobs is silent")
        cluster.api.patch("jobs", "train", {"spec": {"suspend": False}}, "ml")
        cluster.api.delete("resourceclaims", "train-0", "ml")
        cluster.api.delete("pods", "train-0", "ml", grace_s=0)

        def is_read() -> bool:
            return any((each.verb, each.resource) == ("get", "jobs") for each in cluster.api.log)

        await eventually(is_read, what="the job is read again")
        await passes(controller, cluster.api)
        left = workload(cluster)
        assert left is not None
        assert "deletionTimestamp" not in left["metadata"]
        cluster.api.faults.clear()


@pytest.mark.parametrize("grows_again", [True, False])
async def test_job_that_grows_again_unseen_keeps_its_nodes(cluster: Cluster, *, grows_again: bool) -> None:  # noqa: F811
    """The control is a job that stays small: its reservation follows, although the watch is silent."""
    async with controlling(cluster) as controller:
        submit(cluster, parallelism=8)
        await allocated(cluster)
        rejected = InjectedFault(verb="patch", resource="neuronultraserverworkloads", status=403, times=None)
        cluster.api.faults.add(rejected)
        cluster.api.patch("jobs", "train", {"spec": {"parallelism": 4}}, "ml")
        await eventually(lambda: rejected.hits, what="the smaller reservation is rejected")
        silent = cluster.api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="jobs", times=None))
        await cluster.api.refuse_connections()
        await cluster.api.resume()
        await eventually(lambda: silent.hits, what="the watch of jobs is silent")
        if grows_again:
            cluster.api.patch("jobs", "train", {"spec": {"parallelism": 8}}, "ml")
        await is_read_again(cluster)  # after that no request is left that read the job before it grew
        rejected.times = rejected.hits
        if not grows_again:  # else the read has shown that nothing is to be written
            await is_read_again(cluster)
        await passes(controller, cluster.api)
        left = workload(cluster)
        assert left is not None
        assert left["spec"]["serverCount"] == (2 if grows_again else 1)
        cluster.api.faults.clear()


async def is_read_again(there: Cluster) -> None:
    read_before = len(there.api.requests("get", "jobs"))
    await eventually(lambda: len(there.api.requests("get", "jobs")) > read_before, what="the job is read again")


async def test_kind_that_cannot_be_listed_holds_up_no_other(cluster: Cluster) -> None:  # noqa: F811
    cluster.api.register(*JOB_SETS)
    failing = InjectedFault(
        verb="list", resource="jobsets", status=500, message="conversion webhook failed", times=None
    )
    cluster.api.faults.add(failing)
    async with controlling(cluster):
        submit(cluster, parallelism=4)
        await allocated(cluster)
        text = "the namespace says which kind is not read"
        await eventually(lambda: "JobKindUnreadable" in events_of(cluster, "Namespace", "ml"), what=text)


@pytest.mark.parametrize("who", ["machine", "server"])
async def test_only_the_servers_clock_ends_unused_reservations(cluster: Cluster, who: str) -> None:  # noqa: F811
    """The server's is the control."""
    ahead = datetime.timedelta()

    def clock() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC) + ahead

    spec: dict[str, Any] = {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 1}
    body = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "dev", "namespace": "ml"},
        "spec": {**spec, "ttlSecondsUnused": 86_400},
    }
    async with controlling_by(cluster, clock=clock) as controller:
        cluster.api.create(body)
        await eventually(lambda: cluster.state("dev") == "Allocated", what="it is Allocated")
        ahead = datetime.timedelta(days=2)
        if who == "server":
            cluster.api.clock_offset_s = ahead.total_seconds()
            for _ in range(2):
                await controller._client.request("GET", "/version")
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.state("other") == "Allocated", what="the controller plans again")
        if who == "server":
            await eventually(lambda: cluster.state("dev") == "Failed", what="it has expired")
        else:
            await passes(controller, cluster.api)
            assert cluster.state("dev") == "Allocated"
