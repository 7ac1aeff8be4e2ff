"""4.02: each write that the API server can reject for ever is shown, and what stands beside it is true.

`ROWS` is the table: a write, how it comes about, and the object that shows its rejection. The writes are found in the
source, so that a new one needs a row.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.program import Controller
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import InjectedFault
from neuron_dra.kube import requests
from tests.story.controller_cluster import Cluster, running_controller
from tests.story.test_controller_faults import waits_since
from tests.story.test_jobs_reserve import allowed, pods
from tests.story.test_jobs_reserve import submit as submit_job
from tests.story.test_queues import LABEL
from tests.story.test_unscheduled_pods import waits_with_claim, without_services
from tests.story.test_unseen_tests import TESTS, ask
from tests.support.controller_timings import BRIEF_LEASE
from tests.support.timings import quicker
from tests.support.waiting import eventually

MARKER = "exceeded quota: BECAUSE-XYZ"
WORKLOADS = "neuronultraserverworkloads"
ULTRASERVERS = "neuronultraservers"
QUALIFICATIONS = "neuronultraserverqualifications"
TEMPLATES = "resourceclaimtemplates"
TIMING = quicker(
    BRIEF_LEASE,
    jobs={"first_s": 0.05, "longest_s": 0.2, "absent_s": 0.2, "guard_s": 0.2},
    queues={"relist_s": 0.2, "first_s": 0.05, "longest_s": 0.2},
    qualify={"reserve_s": 30.0, "start_s": 30.0, "settle_s": 0.2, "again_s": 0.2, "longest_s": 0.5, "status_s": 0.1}
    | {"absent_s": 0.3, "look_s": 0.05, "survey_s": 0.05, "first_s": 0.05, "longest_write_s": 0.2},
    pods={"idle_s": 0.1},
)
FLAGS = ("--jobs-may-reserve=true", "--queues=true", "--qualifications=true", "--leader-elect=true")

Write = tuple[str, str]
"""Verb and resource."""


@dataclass
class Scene:
    """A cluster with a controller; `write` is rejected from `reject` on."""

    there: Cluster
    controller: Controller
    write: Write
    namespace: str
    status: int

    def reject(self) -> None:
        verb, resource = self.write
        self.there.api.faults.add(
            InjectedFault(
                verb=verb,
                resource=resource,
                namespace=self.namespace,
                status=self.status,
                message=MARKER,
                times=None,
            )
        )

    async def allocated(self, **of: Any) -> Obj:
        made = self.there.submit("train", count=1, **of)
        await eventually(lambda: self.there.state("train") == "Allocated", what="train is Allocated")
        return made

    def delete(self, name: str = "train") -> None:
        self.there.api.delete(WORKLOADS, name, "ml")


Story = Callable[[Scene], Awaitable[None]]


async def begins(scene: Scene) -> None:
    scene.reject()
    scene.there.submit("train", count=1)


async def ends(scene: Scene) -> None:
    await scene.allocated()
    scene.reject()
    scene.delete()


async def ends_with_a_pod(scene: Scene) -> None:
    made = await scene.allocated()
    scene.there.pod_with_claim("p", scene.there.allocations()[0]["allocatedNodes"][0], made)
    scene.reject()
    scene.delete()


async def has_a_pod(scene: Scene) -> None:
    """The address of rank 0 is written."""
    made = await scene.allocated()
    scene.reject()
    scene.there.pod_with_claim("p", scene.there.allocations()[0]["allocatedNodes"][0], made)
    scene.there.api.patch("pods", "p", {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}, "ml")


async def has_another_pod(scene: Scene) -> None:
    """The pod with rank 0 gets another address."""
    made = await scene.allocated()
    scene.there.pod_with_claim("p", scene.there.allocations()[0]["allocatedNodes"][0], made)
    scene.there.api.patch("pods", "p", {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}, "ml")
    slices = "its address is published"
    await eventually(lambda: "10.0.0.9" in str(scene.there.api.objects("endpointslices")), what=slices)
    scene.reject()
    scene.there.api.patch("pods", "p", {"status": {"podIP": "10.0.0.10", "podIPs": [{"ip": "10.0.0.10"}]}}, "ml")
    [claim] = scene.there.api.objects("resourceclaims")
    labels = {"metadata": {"labels": {"changed": "true"}}}
    scene.there.api.patch("resourceclaims", claim["metadata"]["name"], labels, "ml")


async def refuses_a_pod(scene: Scene) -> None:
    await scene.allocated()
    scene.reject()
    other = {"metadata": {"name": "other", "uid": "another-workload"}}
    scene.there.pod_with_claim("p", scene.there.allocations()[0]["allocatedNodes"][0], other)
    waits_since(scene.there, "p", 121)


async def has_a_pod_of_former(scene: Scene) -> None:
    without_services(scene.there)
    scene.there.submit("job", count=1)
    await eventually(lambda: scene.there.state("job") == "Allocated", what="job is Allocated")
    scene.reject()
    waits_with_claim(scene.there, "p", "of-an-earlier-one")


async def topology_is_changed(scene: Scene) -> None:
    await scene.allocated()
    scene.reject()
    first = scene.there.api.get(ULTRASERVERS, "us-u0", NAMESPACE)
    scene.there.api.patch(ULTRASERVERS, "us-u0", {"spec": {"topology": first["spec"]["topology"][:2]}}, NAMESPACE)


async def nodes_go(scene: Scene) -> None:
    await eventually(lambda: len(scene.there.api.objects(ULTRASERVERS)) == 2, what="both UltraServers exist")
    scene.reject()
    for place in range(4):
        for kind in ("resourceslices", "nodes"):
            for item in scene.there.api.objects(kind):
                if (item["spec"].get("nodeName") or item["metadata"]["name"]) == f"u1-{place}":
                    scene.there.api.delete(kind, item["metadata"]["name"])


async def nothing(scene: Scene) -> None:
    scene.reject()


# -- jobs --------------------------------------------------------------------------------------------------------------


async def job_begins(scene: Scene) -> None:
    scene.reject()
    submit_job(scene.there)


async def job_is_allocated(scene: Scene) -> None:
    submit_job(scene.there, parallelism=4)
    await eventually(lambda: scene.there.state("train") == "Allocated", what="the job's reservation is Allocated")


async def job_grows(scene: Scene) -> None:
    await job_is_allocated(scene)
    scene.reject()
    scene.there.api.patch("jobs", "train", {"spec": {"parallelism": 8}}, "ml")


async def job_ends(scene: Scene) -> None:
    await job_is_allocated(scene)
    scene.reject()
    done = [{"type": "Complete", "status": "True"}]
    scene.there.api.patch("jobs", "train", {"status": {"conditions": done}}, "ml")


async def job_has_early_pods(scene: Scene) -> None:
    scene.there.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "early", "namespace": "ml"}, **pods()}
    )
    scene.reject()
    submit_job(scene.there, parallelism=4)


# -- queues ------------------------------------------------------------------------------------------------------------


def queued(scene: Scene) -> None:
    scene.there.submit("train", count=1, labels={LABEL: "team"})


async def queue_begins(scene: Scene) -> None:
    scene.reject()
    queued(scene)


async def is_queued(scene: Scene) -> Obj:
    queued(scene)
    await eventually(lambda: scene.there.api.objects("workloads"), what="Kueue's Workload exists")
    [kueue_workload] = scene.there.api.objects("workloads")
    return kueue_workload


async def queue_ends(scene: Scene) -> None:
    await is_queued(scene)
    scene.reject()
    scene.delete()


async def queue_is_left(scene: Scene) -> None:
    await is_queued(scene)
    scene.reject()
    scene.there.api.patch(WORKLOADS, "train", {"metadata": {"labels": {LABEL: None}}}, "ml")


async def queued_one_grows(scene: Scene) -> None:
    await is_queued(scene)
    scene.reject()
    scene.there.api.patch(WORKLOADS, "train", {"spec": {"serverCount": 2}}, "ml")


async def queue_admits(scene: Scene) -> None:
    """`status.queue` is written."""
    found = await is_queued(scene)
    scene.reject()
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assigned = {"name": found["spec"]["podSets"][0]["name"], "count": 4, "flavors": {}, "resourceUsage": {}}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": moment}
        for kind in ("QuotaReserved", "Admitted")
    ]
    admission = {"clusterQueue": "team", "podSetAssignments": [assigned]}
    status = {"admission": admission, "conditions": conditions}
    scene.there.api.patch("workloads", found["metadata"]["name"], {"status": status}, "ml")


# -- tests of UltraServers ---------------------------------------------------------------------------------------------


async def test_begins(scene: Scene) -> None:
    scene.reject()
    ask(scene.there)


async def a_test_runs(scene: Scene) -> None:
    ask(scene.there)
    await eventually(lambda: scene.there.api.objects("pods", TESTS), what="a test has pods")


async def test_passes(scene: Scene) -> None:
    await a_test_runs(scene)
    scene.reject()
    for pod in scene.there.api.objects("pods", TESTS):
        ended = {"name": "test", "state": {"terminated": {"exitCode": 0}}}
        status = {"phase": "Succeeded", "containerStatuses": [ended]}
        with contextlib.suppress(Exception):
            scene.there.api.patch("pods", pod["metadata"]["name"], {"status": status}, TESTS)


async def qualification_is_gone(scene: Scene) -> None:
    """Its tests end."""
    await a_test_runs(scene)
    scene.reject()
    scene.there.api.delete(QUALIFICATIONS, "q")


test_begins.__test__ = test_passes.__test__ = False  # type: ignore[attr-defined]

WORKLOAD = "NeuronUltraServerWorkload"
ON_WORKLOAD = f"Event on {WORKLOAD}"
LOST_EVENTS = "neuron_ultraserver_lost_events_total"


@dataclass(frozen=True)
class Row:
    """A write, how it comes about, and what shows its rejection: a kind with a status, an Event, or a metric."""

    verb: str
    resource: str
    story: Story
    where: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb}-{self.resource.replace('/', '-')}-{self.story.__name__}"


ROWS = (
    Row("create", TEMPLATES, begins, WORKLOAD),
    Row("delete", TEMPLATES, ends, WORKLOAD),
    Row("patch", WORKLOADS, begins, WORKLOAD),
    Row("patch", WORKLOADS, ends, WORKLOAD),
    Row("patch", f"{WORKLOADS}/status", begins, ON_WORKLOAD),
    Row("create", "pods/eviction", ends_with_a_pod, WORKLOAD),
    Row("create", "pods/eviction", refuses_a_pod, "Event on Pod"),
    Row("create", "pods/eviction", has_a_pod_of_former, "Event on Pod"),
    Row("create", "services", begins, ON_WORKLOAD),
    Row("create", "endpointslices", has_a_pod, ON_WORKLOAD),
    Row("update", "endpointslices", has_another_pod, ON_WORKLOAD),
    Row("create", ULTRASERVERS, nothing, "Event on NeuronUltraServer"),
    Row("patch", ULTRASERVERS, begins, "Event on NeuronUltraServer"),
    Row("patch", ULTRASERVERS, topology_is_changed, "Event on NeuronUltraServer"),
    Row("patch", f"{ULTRASERVERS}/status", begins, "Event on NeuronUltraServer"),
    Row("delete", ULTRASERVERS, nodes_go, "Event on NeuronUltraServer"),
    Row("patch", "nodes", nothing, "Event on Node"),
    Row("create", "leases", nothing, "Event on Lease"),
    Row("update", "leases", nothing, "Event on Lease"),
    Row("create", "events", begins, LOST_EVENTS),
    Row("create", WORKLOADS, job_begins, "Event on Job", "ml"),
    Row("patch", WORKLOADS, job_grows, "Event on Job", "ml"),
    Row("delete", WORKLOADS, job_ends, ON_WORKLOAD, "ml"),
    Row("patch", "pods/status", job_has_early_pods, ON_WORKLOAD, "ml"),
    Row("create", "workloads", queue_begins, ON_WORKLOAD),
    Row("patch", "workloads", queued_one_grows, ON_WORKLOAD),
    Row("patch", "workloads", queue_is_left, ON_WORKLOAD),
    Row("delete", "workloads", queue_is_left, ON_WORKLOAD),
    Row("update", "workloads/status", queue_ends, "Event on Workload"),
    Row("patch", "workloads", queue_ends, "Event on Workload"),
    Row("patch", f"{WORKLOADS}/status", queue_admits, ON_WORKLOAD),
    Row("create", WORKLOADS, test_begins, "NeuronUltraServerQualification", TESTS),
    Row("create", "pods", test_begins, "NeuronUltraServerQualification", TESTS),
    Row("delete", WORKLOADS, test_passes, "Event on NeuronUltraServerQualification", TESTS),
    Row("delete", WORKLOADS, qualification_is_gone, "Event on NeuronUltraServerQualification", TESTS),
    Row("delete", "pods", qualification_is_gone, "Event on Pod", TESTS),
    Row("patch", f"{ULTRASERVERS}/status", test_passes, "Event on NeuronUltraServer"),
    Row("patch", f"{QUALIFICATIONS}/status", test_begins, "Event on NeuronUltraServerQualification"),
)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with allowed(controllers=False) as made:
        made.api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        made.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TESTS}})
        yield made


def shown(scene: Scene) -> set[str]:
    """Return what shows the marker: kinds of objects with it in their status, Events by the kind, and the metric."""
    api = scene.there.api
    found = set()
    for kind in (WORKLOADS, ULTRASERVERS, QUALIFICATIONS):
        found |= {item["kind"] for item in api.objects(kind) if MARKER in str(item.get("status"))}
    found |= {f"Event on {e['involvedObject']['kind']}" for e in api.objects("events") if MARKER in e["message"]}
    if scene.controller.metrics.registry.get_sample_value(LOST_EVENTS):
        found.add(LOST_EVENTS)
    return found


@contextlib.asynccontextmanager
async def played(there: Cluster, row: Row, status: int) -> AsyncIterator[Scene]:
    async with running_controller(there, *FLAGS, timing=TIMING) as controller:
        scene = Scene(there, controller, (row.verb, row.resource), row.namespace, status)
        await row.story(scene)
        yield scene


@pytest.mark.parametrize("status", [403, 422])
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_rejection_is_shown(cluster: Cluster, row: Row, status: int) -> None:
    async with played(cluster, row, status) as scene:
        await eventually(lambda: row.where in shown(scene), what=f"it is shown: {row.where}")


@pytest.mark.parametrize("row", [row for row in ROWS if row.where == WORKLOAD], ids=str)
async def test_no_condition_beside_a_rejection_is_false(cluster: Cluster, row: Row) -> None:
    """ "Waiting for all nodes" is false when a quota rejected the template."""
    async with played(cluster, row, 403) as scene:

        def conditions() -> dict[str, Obj]:
            item = scene.there.api.get(WORKLOADS, "train", "ml")
            return {each["type"]: each for each in (item.get("status") or {}).get("conditions") or []}

        await eventually(lambda: MARKER in str(conditions().get("Ready")), what="its condition says why")
        told = {kind: each["message"] for kind, each in conditions().items() if kind in ("Ready", "Progressing")}
        assert [kind for kind, message in told.items() if MARKER not in message] == []


async def test_nothing_is_shown_without_a_rejection(cluster: Cluster) -> None:
    """The control."""
    async with running_controller(cluster, *FLAGS, timing=TIMING) as controller:
        scene = Scene(cluster, controller, ("create", TEMPLATES), "", 403)
        await scene.allocated()
        assert shown(scene) == set()


# -- the table is whole ------------------------------------------------------------------------------------------------


def writes() -> Iterator[Write]:
    """Yield verb and resource of each write in the source of the controller."""
    for path in sorted([*Path("controller").rglob("*.py"), *Path("neuron_dra/planner").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from _write_of(node, node.func.attr)


def _write_of(call: ast.Call, method: str) -> Iterator[Write]:
    """Yield the write of a call of KubeClient, or of `Applier._patch`."""
    verbs = {"create": "create", "patch": "patch", "_patch": "patch", "replace": "update", "delete": "delete"}
    kinds = [getattr(requests, each.id, None) for each in call.args if isinstance(each, ast.Name)]
    kind = next((each for each in kinds if isinstance(each, requests.Resource)), None)
    if method == "evict":
        yield "create", "pods/eviction"
    elif method in verbs and kind is not None:
        literals = {each.value for each in call.args if isinstance(each, ast.Constant)}
        yield verbs[method], f"{kind.plural}/status" if "status" in literals else kind.plural


def test_every_write_has_a_row() -> None:
    found = set(writes())
    assert len(found) > 20, "the writes are not found any more"
    assert found - {(row.verb, row.resource) for row in ROWS} == set()
