"""Requests that fail in some namespaces delay no workload and no job of another one. Issue 4.05, ADR 16.

The rows are derived from the requests that a controller sends to a tenant's namespace, so that a new request without a
row fails. The client of these controllers waits ten minutes for an answer: what waits for one does not end in time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any, Final

import pytest

from controller.jobs.early_pods import CONDITION
from controller.program import NAME, Controller
from controller.timing import DEFAULT_TIMING
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.story.test_jobs_reserve import POLICIES, guard, pods
from tests.support.controller_passes import passes
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

RETRIES: Final = {"retry_s": DEFAULT_TIMING.outbox.retry_s}  # of production: they keep failures apart from successes
PATIENT: Final = quicker(QUICK, client={"request_s": 600.0}, outbox=RETRIES)
KIND: Final = "neuronultraserverworkloads"
OBJECTS: Final = 40
BEGIN: Final = "while workloads get nodes"
END: Final = "while workloads are released"
ROWS: Final = {
    "patch neuronultraserverworkloads": (BEGIN, END),
    "patch neuronultraserverworkloads/status": (BEGIN, END),
    "create resourceclaimtemplates": (BEGIN,),
    "delete resourceclaimtemplates": (END,),
    "create pods/eviction": (END,),
    "get services": (BEGIN,),
    "create services": (BEGIN,),
    "get endpointslices": (BEGIN,),
    "create events": (BEGIN, END),
}
"""When the controller sends each request."""
ONE_NAMESPACE: Final = ("ml",)
MANY_NAMESPACES: Final = tuple(f"bad-{number}" for number in range(OBJECTS))


class LargeCluster(Cluster):
    """A cluster with room for all objects and a neighbour."""

    def __init__(self, api: EmbeddedApi) -> None:
        super().__init__(api)
        for number in range(2, OBJECTS // 4 + 2):
            self.add(ultraserver(f"u{number}"))
        for name in ("calm", *MANY_NAMESPACES):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def ask(self, namespace: str, name: str, size: int = 1) -> Obj:
        spec = {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": 1}
        meta = {"name": name, "namespace": namespace}
        kind = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload"}
        return self.api.create({**kind, "metadata": meta, "spec": spec})

    def are_allocated(self, workloads: Iterable[Obj]) -> bool:
        stored = [self.api.find(KIND, each["metadata"]["name"], each["metadata"]["namespace"]) for each in workloads]
        return all(each is not None and each.get("status", {}).get("state") == "Allocated" for each in stored)

    def delete(self, workload: Obj) -> None:
        self.api.delete(KIND, workload["metadata"]["name"], workload["metadata"]["namespace"])

    async def reserves_and_releases(self) -> None:
        """A workload gets its node, has a pod there, and is released."""
        workload = self.ask("ml", "w")
        await eventually(lambda: self.are_allocated([workload]), 60, what="the workload is Allocated")
        [node] = self.tags()
        self.pod_with_claim("p", node, workload)
        self.delete(workload)
        await eventually(lambda: self.api.find(KIND, "w", "ml") is None, 60, what="the workload is released")

    async def has_a_calm_neighbour(self) -> None:
        """A workload of another namespace gets its node, and is released."""
        workload = self.ask("calm", "neighbour")
        await eventually(lambda: self.are_allocated([workload]), 60, what="the neighbour is Allocated")
        self.delete(workload)
        await eventually(lambda: self.api.find(KIND, "neighbour", "calm") is None, 60, what="the neighbour is released")


async def test_every_request_to_a_tenant_has_a_row() -> None:
    async with answering(LargeCluster) as cluster, running_controller(cluster, timing=PATIENT):
        await cluster.reserves_and_releases()
        sent = [each for each in cluster.api.log if each.user_agent == NAME and each.namespace == "ml"]
        assert {f"{each.verb} {each.resource}" for each in sent} == ROWS.keys()


SCOPES: Final = {"40 objects in one namespace": ONE_NAMESPACE, "one object in each of 40 namespaces": MANY_NAMESPACES}
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "no answer": {"do": Do.HANG},
    "an answer after 10 s": {"do": Do.DELAY, "delay_s": 10.0},
    "no answer although it is carried out": {"do": Do.ANSWER_LATE, "delay_s": 600.0},
    "a dropped connection": {"do": Do.DROP},
    "a connection that is dropped after the write": {"do": Do.DROP_AFTER},
    **{f"status {status}": {"status": status} for status in (403, 409, 422, 429, 500, 503)},
}
SHORT: Final = {
    ("create resourceclaimtemplates", BEGIN, "no answer"),
    ("patch neuronultraserverworkloads/status", BEGIN, "status 429"),
}
"""The cases of `make test`, for both scopes; `make night` has all."""


def cases() -> list[Any]:
    params = []
    for row, moments in ROWS.items():
        for moment, fault, scope in itertools.product(moments, FAULTS, SCOPES):
            if row == "create pods/eviction" and SCOPES[scope] != ONE_NAMESPACE:
                continue  # the pods of this cluster are in one namespace
            marks = () if (row, moment, fault) in SHORT else pytest.mark.long
            params.append(pytest.param(row, moment, fault, scope, marks=marks, id=f"{row} {moment}: {fault}, {scope}"))
    return params


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("row", "moment", "fault", "scope"), cases())
async def test_faults_of_some_namespaces_delay_no_other_one(row: str, moment: str, fault: str, scope: str) -> None:
    verb, resource = row.split(" ")
    namespaces = SCOPES[scope]
    faults = [
        InjectedFault(**FAULTS[fault], verb=verb, resource=resource, namespace=namespace, times=None)
        for namespace in namespaces
    ]
    async with answering(LargeCluster) as cluster, running_controller(cluster, timing=PATIENT):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == OBJECTS // 4 + 2, 60)
        if moment == BEGIN:
            for injected in faults:
                cluster.api.faults.add(injected)
        workloads = [cluster.ask(namespaces[number % len(namespaces)], f"w{number}") for number in range(OBJECTS)]
        if moment == END:
            await eventually(lambda: cluster.are_allocated(workloads), 120, what="all are Allocated")
            by_name = {workload["metadata"]["name"]: workload for workload in workloads}
            if row == "create pods/eviction":
                for entry in cluster.allocations():
                    name = entry["workloadRef"].partition("/")[2]
                    cluster.pod_with_claim(f"p-{name}", entry["allocatedNodes"][0], by_name[name])
            for injected in faults:
                cluster.api.faults.add(injected)
            for workload in workloads:
                cluster.delete(workload)
        await eventually(lambda: any(injected.hits for injected in faults), 60, what="a request meets the fault")
        await cluster.has_a_calm_neighbour()
        if len(faults) > 1:
            await eventually(lambda: sum(injected.hits > 0 for injected in faults) > 1, 60, what="others meet it, too")


# -- faults of a whole kind, and of everything -------------------------------------------------------------------------

IMPATIENT: Final = quicker(QUICK, client={"request_s": 1.0})
START: Final = "while a controller starts"
EVERYTHING: Final = "everything"
WHOLE: Final = 4
"""The nodes of a workload that has an UltraServer alone, so that it gets and loses our finalizer."""
WHOLE_ROWS: Final = {
    "patch nodes": (START,),
    "create neuronultraservers": (START,),
    "patch neuronultraservers": (BEGIN, END),
    "patch neuronultraservers/status": (BEGIN, END),
    **{
        f"list {plural}": (START,)
        for plural in (
            "nodes",
            "resourceslices",
            "neuronultraservers",
            "neuronultraserverworkloads",
            "resourceclaimtemplates",
            "deviceclasses",
            "namespaces",
        )
    },
    "list resourceclaims": (START, BEGIN, END),
    **ROWS,
}
"""All requests of a controller but watches, which `test_each_silent_watch` has."""
SHORT_OF_A_KIND: Final = {
    ("patch neuronultraservers/status", BEGIN, "no answer although it is carried out"),
    ("list resourceclaims", END, "status 500"),
    (EVERYTHING, BEGIN, "a dropped connection"),
}


def cases_of_a_kind() -> list[Any]:
    params = []
    for row, moments in {**WHOLE_ROWS, EVERYTHING: (START, BEGIN, END)}.items():
        for moment, fault in itertools.product(moments, FAULTS):
            marks = () if (row, moment, fault) in SHORT_OF_A_KIND else pytest.mark.long
            params.append(pytest.param(row, moment, fault, marks=marks, id=f"{row} {moment}: {fault}"))
    return params


async def test_every_request_has_a_row() -> None:
    async with answering(LargeCluster) as cluster, running_controller(cluster, timing=IMPATIENT):
        await cluster.reserves_and_releases()
        sent = {f"{each.verb} {each.resource}" for each in cluster.api.log if each.user_agent == NAME}
        assert {row for row in sent if not row.startswith("watch ")} == WHOLE_ROWS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("row", "moment", "fault"), cases_of_a_kind())
async def test_faults_of_a_whole_kind_lose_nothing(row: str, moment: str, fault: str) -> None:
    """The controller deletes and forgets nothing, and goes on when the fault ends."""
    verb, _, resource = ("", "", "") if row == EVERYTHING else row.partition(" ")
    injected = InjectedFault(**FAULTS[fault], verb=verb, resource=resource, times=None)
    async with answering(LargeCluster) as cluster:
        async with running_controller(cluster, timing=IMPATIENT):
            workloads = [cluster.ask("ml", "kept"), cluster.ask("ml", "also-kept"), cluster.ask("ml", "ends", WHOLE)]
            await eventually(lambda: cluster.are_allocated(workloads), 120, what="all are Allocated")
        [*kept, ends] = workloads
        node_of = {entry["workloadRef"]: entry["allocatedNodes"][0] for entry in cluster.allocations()}
        cluster.pod_with_claim("p", node_of["ml/ends"], ends)
        before = reserved(cluster, kept)
        if moment == START:
            cluster.add(ultraserver("new"))
            cluster.api.faults.add(injected)
        async with running_controller(cluster, timing=IMPATIENT) as controller:
            if moment != START:
                await passes(controller, cluster.api)
                cluster.api.faults.add(injected)
            if moment == BEGIN:
                cluster.ask("ml", "begins", WHOLE)
            if moment == END:
                cluster.delete(ends)
            await eventually(lambda: injected.hits, 60, what="a request meets the fault")
            assert reserved(cluster, kept) == before
            cluster.api.faults.clear()
            await cluster.has_a_calm_neighbour()
            assert reserved(cluster, kept) == before


def reserved(cluster: LargeCluster, workloads: Iterable[Obj]) -> list[Any]:
    """Return the reservations and the templates of workloads."""
    refs = {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in workloads}
    uids = {each["metadata"]["uid"] for each in workloads}
    parts = ("workloadRef", "allocationId", "phase", "allocatedNodes")
    entries = [[entry[part] for part in parts] for entry in cluster.allocations() if entry["workloadRef"] in refs]
    templates = cluster.api.objects("resourceclaimtemplates")
    owned = [each["metadata"]["uid"] for each in templates if each["metadata"]["ownerReferences"][0]["uid"] in uids]
    return [sorted(entries), sorted(owned)]


# -- jobs that reserve -------------------------------------------------------------------------------------------------

GROWS: Final = "while jobs get larger"
JOB_ROWS: Final = {
    "create neuronultraserverworkloads": BEGIN,
    "list pods": BEGIN,
    "patch pods/status": BEGIN,
    "patch neuronultraserverworkloads": GROWS,
    "get jobs": GROWS,
    "delete neuronultraserverworkloads": END,
}
"""The requests that only jobs cause, and when the controller sends them."""
JOBS: Final = 20


class ClusterWithJobs(LargeCluster):
    """A large cluster in which the jobs of two namespaces may reserve."""

    def __init__(self, api: EmbeddedApi) -> None:
        super().__init__(api)
        for kind, plural in (("", "validatingadmissionpolicies"), ("Binding", "validatingadmissionpolicybindings")):
            api.register(POLICIES, ("v1",), f"ValidatingAdmissionPolicy{kind}", plural, namespaced=False)
        guard(self)
        meta = {
            "labels": {"neuron.aws.com/reserve-for-jobs": "true"},
            "annotations": {"neuron.aws.com/max-reserved-nodes": "100"},
        }
        for namespace in ("ml", "calm"):
            api.patch("namespaces", namespace, {"metadata": meta})

    def submit_job(self, namespace: str, name: str) -> None:
        """Create a job of one pod, and its pod, which waits for its template."""
        template = pods(f"{name}-rct")
        annotations = {"neuron.aws.com/ultraservers": "topologySize=1"}
        meta = {"namespace": namespace, "name": name}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**meta, "annotations": annotations}}
        self.api.create({**job, "spec": {"parallelism": 1, "template": template}})
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"phase": "Pending", "conditions": [condition]}
        self.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"], "status": status}
        )

    def grow(self, namespace: str, name: str) -> None:
        self.api.patch("jobs", name, {"spec": {"parallelism": 2}}, namespace)

    def complete(self, namespace: str, name: str) -> None:
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.api.patch("jobs", name, {"status": done}, namespace)

    def count(self, namespace: str, name: str) -> int:
        """Return the number of servers that a job's workload has, 0 until it is Allocated."""
        stored = self.api.find(KIND, name, namespace)
        if stored is None or stored.get("status", {}).get("state") != "Allocated":
            return 0
        return int(stored["spec"]["serverCount"])

    async def runs_a_job(self, namespace: str, name: str) -> None:
        """A job reserves, wakes its pod, grows, and is released."""
        self.submit_job(namespace, name)
        await eventually(lambda: self.count(namespace, name) == 1, 60, what="the job is Allocated")
        await eventually(lambda: self.is_woken(namespace, name), 60, what="its pod is woken")
        self.grow(namespace, name)
        await eventually(lambda: self.count(namespace, name) == 2, 60, what="the larger job is Allocated")
        self.complete(namespace, name)
        await eventually(lambda: self.api.find(KIND, name, namespace) is None, 60, what="the job is released")

    def is_woken(self, namespace: str, name: str) -> bool:
        conditions = self.api.get("Pod", name, namespace)["status"]["conditions"]
        return any(condition["type"] == CONDITION for condition in conditions)


def running_jobs(cluster: Cluster) -> contextlib.AbstractAsyncContextManager[Controller]:
    jobs = {"first_s": 0.05, "longest_s": 0.2, "absent_s": 0.2, "guard_s": 0.2}
    return running_controller(cluster, "--jobs-may-reserve", "true", timing=quicker(PATIENT, jobs=jobs))


async def test_every_request_for_a_job_has_a_row() -> None:
    async with answering(ClusterWithJobs, controllers=False) as cluster, running_jobs(cluster):
        await cluster.runs_a_job("ml", "train")
        sent = [each for each in cluster.api.log if each.user_agent == NAME and each.namespace == "ml"]
        rows = {f"{each.verb} {each.resource}" for each in sent}
        assert rows - ROWS.keys() == JOB_ROWS.keys() - ROWS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", JOB_ROWS)
async def test_requests_for_jobs_without_an_answer_delay_no_other_namespace(row: str) -> None:
    verb, resource = row.split(" ")
    fault = InjectedFault(Do.HANG, verb=verb, resource=resource, namespace="ml", times=None)
    names = [f"j{number}" for number in range(JOBS)]
    async with answering(ClusterWithJobs, controllers=False) as cluster, running_jobs(cluster):
        await eventually(lambda: len(cluster.api.objects("neuronultraservers")) == OBJECTS // 4 + 2, 60)
        if JOB_ROWS[row] == BEGIN:
            cluster.api.faults.add(fault)
        for name in names:
            cluster.submit_job("ml", name)
        if JOB_ROWS[row] != BEGIN:
            await eventually(lambda: all(cluster.count("ml", name) for name in names), 120, what="all are Allocated")
            cluster.api.faults.add(fault)
            for name in names:
                (cluster.grow if JOB_ROWS[row] == GROWS else cluster.complete)("ml", name)
        await eventually(lambda: fault.hits, 60, what="a request hangs")
        await cluster.runs_a_job("calm", "neighbour")
