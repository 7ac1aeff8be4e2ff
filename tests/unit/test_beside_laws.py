"""What goes on beside the plans is bound by the laws of the plans: terms, turns, and one object, one failure (30)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.apply.beside import Beside
from controller.apply.fence import Fence
from controller.apply.leader import Alone
from controller.apply.requests import Applier
from controller.jobs import decide as jobs
from controller.jobs.early_pods import EarlyPods
from controller.jobs.reservations import JobReservations
from controller.jobs.watches import JobWatches
from controller.observe.caches import Caches
from controller.qualify.decide import decide as decide_tests
from controller.queue.model import body_for
from controller.queue.queues import AT_ONCE, Queues
from controller.queue.watches import QueueWatch
from controller.timing import DEFAULT_TIMING, JobTiming, PassTiming, QueueTiming
from hack.bench.plan import fleet
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Template
from tests.support.decide_all import WholeQueueView, admissions, decide_jobs
from tests.support.decide_all import decide_queues as decide_queue
from tests.support.sending import new_sender, pods_looked_for
from tests.support.waiting import eventually
from tests.unit.test_jobs_decide import job, view
from tests.unit.test_jobs_decide import workload as workload_of_job
from tests.unit.test_qualification_decide import ASKED, begun, seen
from tests.unit.test_queue_decide import NOTHING, NOW, RECORD, workload


class Term(Alone):
    """Leadership of which a test ends the term."""

    def __init__(self) -> None:
        self.term = 1


class Seen(KubeClient):
    """Sends through another client. `before` is called with method and path of each request."""

    def __init__(self, inner: KubeClient, before: Callable[[str, str], None] = lambda method, path: None) -> None:
        super().__init__(KubeConfig("seen:"))
        self._inner = inner
        self.before = before
        self.sent: list[tuple[str, str]] = []

    async def _send(self, method: str, path: str, *more: Any) -> bytes:
        self.before(method, path)
        self.sent.append((method, path))
        return await self._inner._send(method, path, *more)

    def watch(self, *arguments: Any, **options: Any) -> Any:
        return self._inner.watch(*arguments, **options)

    def writes(self) -> list[tuple[str, str]]:
        """Return the writes that were sent, Events aside."""
        return [each for each in self.sent if each[0] != "GET" and "/events" not in each[1]]


@pytest.fixture
def api() -> EmbeddedApi:
    made = EmbeddedApi()
    made.register_neuron_kinds()
    made.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
    for name in ("a", "b"):
        made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return made


def reservation(namespace: str, name: str, *, meta: Obj | None = None, status: Obj | None = None) -> Obj:
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"namespace": namespace, "name": name, "labels": labels, **(meta or {})},
        "spec": {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 1},
        **({"status": status} if status else {}),
    }


@contextlib.asynccontextmanager
async def queueing(api: EmbeddedApi, leadership: Alone) -> AsyncIterator[tuple[Queues, Caches[FleetIndex], Seen]]:
    """Yield queues in the first term, with all objects listed. They write while `writing`."""
    client = Seen(api.client("here"))
    caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    events = EventRecorder(client, "here")
    applier = Applier(client, caches, events, DEFAULT_TIMING, Fence(leadership))
    applier.fence.enter(1)
    watch = QueueWatch(client, lambda: None, QueueTiming())
    task = asyncio.gather(watch.run(), events.run())
    try:
        await eventually(lambda: not watch.unknown, what="Kueue's Workloads are listed")
        await caches.relist()
        yield Queues(client, caches, applier, watch, events, QueueTiming()), caches, client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def writing(queues: Queues) -> AsyncIterator[None]:
    task = asyncio.create_task(queues._sender.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_queue_sends_nothing_that_an_ended_term_decided(api: EmbeddedApi) -> None:
    """A replica that leads again has begun a pass before the write of its earlier term had its turn."""
    api.create(reservation("a", "train"))
    leadership = Term()
    async with queueing(api, leadership) as (queues, caches, client):
        queues.look(caches.index(), NOW)
        leadership.term = 2
        queues._applier.fence.enter(2)
        await queues._sender.send_all()
        assert client.writes() == []


async def test_a_release_is_not_sent_if_the_term_ends_while_the_job_is_read(api: EmbeddedApi) -> None:
    mark = {"annotations": {"neuron.aws.com/made-for": "Job/train/uid"}}
    api.create(reservation("a", "train", meta=mark))
    leadership = Term()
    client = Seen(api.client("here"))
    caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    events = EventRecorder(client, "here")
    applier = Applier(client, caches, events, DEFAULT_TIMING, Fence(leadership))
    applier.fence.enter(1)

    def end_the_term(method: str, path: str) -> None:
        if path.endswith("/jobs/train"):
            leadership.term = 2
            applier.fence.enter(2)

    client.before = end_the_term
    watches = JobWatches(client, lambda: None, JobTiming())
    tasks = [asyncio.create_task(run()) for run in watches.tasks().values()]
    try:
        await eventually(lambda: "Job" in watches.kinds, what="jobs are listed")
        await caches.relist()
        made = JobReservations(client, caches, applier, watches, events, JobTiming(), None, queues=True)
        await made.look(caches.index(), NOW)
        await applier.sender.send_all()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert ("GET", "/apis/batch/v1/namespaces/a/jobs/train") in client.sent
    assert client.writes() == []


async def test_namespaces_take_turns_in_queues(api: EmbeddedApi) -> None:
    for number in range(4 * AT_ONCE):
        api.create(reservation("a", f"w{number}"))
    api.create(reservation("b", "victim"))
    async with queueing(api, Alone()) as (queues, caches, client):
        queues.look(caches.index(), NOW)
        await queues._sender.send_all()
        assert ("POST", "/apis/kueue.x-k8s.io/v1beta2/namespaces/b/workloads") in client.writes()[:4]


async def test_events_of_one_namespace_do_not_keep_back_those_of_others(api: EmbeddedApi) -> None:
    """The first so many had their Event already, in each pass, and no other got one."""
    group = {"ultraserverIndex": 0, "nodes": ["n"], "ultraserver": "us-u0", "allocationId": "i"}
    conditions = [{"type": name, "status": "True", "reason": "x"} for name in ("QuotaReserved", "Admitted")]
    for namespace, number in (*(("a", number) for number in range(AT_ONCE + 4)), ("b", 0)):
        status = {"state": "Pending", "groups": [group], "queue": RECORD}
        api.create(reservation(namespace, f"w{number}", status=status))
        stored = api.get("NeuronUltraServerWorkload", f"w{number}", namespace)
        body = body_for(decode.workload(stored), {})
        body["spec"]["queueName"] = "other"
        api.create({**body, "status": {"conditions": conditions}})
    async with queueing(api, Alone()) as (queues, caches, client), writing(queues):
        for _ in range(2):
            queues.look(caches.index(), NOW)
        events = "/namespaces/b/events"
        await eventually(lambda: any(path.endswith(events) for _, path in client.sent), what="b has its Event")


async def test_a_workload_of_kueue_that_cannot_be_read_keeps_what_is_reserved(api: EmbeddedApi) -> None:
    api.create(reservation("a", "train", status={"state": "Allocated", "queue": RECORD}))
    body = body_for(decode.workload(api.get("NeuronUltraServerWorkload", "train", "a")), {})
    body["spec"]["priority"] = "of a newer schema"
    api.create(body)
    async with queueing(api, Alone()) as (queues, caches, _):
        [allowed] = queues.admissions(caches.index(), NOW).values()
        assert (allowed.revoked, allowed.reason) == (False, "QueueUnknown")
        assert body["metadata"]["name"] in allowed.message
        queues.look(caches.index(), NOW)
        assert queues._writes._wished == {}


async def test_an_unreadable_workload_exists_for_its_workload_of_kueue(api: EmbeddedApi) -> None:
    """The watch of workloads lags behind; what is Finished stays so."""
    api.create(reservation("a", "train", status={"state": "Allocated", "queue": RECORD}))
    stored = api.get("NeuronUltraServerWorkload", "train", "a")
    body = body_for(decode.workload(stored), {})
    api.create(body)
    stored["spec"]["instanceType"] = "\\ud800"
    text = msgspec.json.encode({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [stored]})

    class Hidden(Seen):
        async def _send(self, method: str, path: str, *more: Any) -> bytes:
            if method == "GET" and path.endswith("/neuronultraserverworkloads"):
                return text.replace(b"\\\\", b"\\")
            return await super()._send(method, path, *more)

    async with queueing(api, Alone()) as (queues, _, client):
        queues._client = hidden = Hidden(client)
        queues.look(FleetIndex(), NOW)
        await queues._sender.send_all()
        assert hidden.writes() == []


def test_an_error_about_one_job_is_its_event() -> None:
    """No decoder returns such a job; whatever raises in a decision costs that job alone."""
    bad: Any = None
    found = decide_jobs(view(replace(job(name="bad"), wish=bad), job(template=None)))
    assert [each.job.name for each in found.writes if isinstance(each, jobs.CreateWorkload)] == ["train"]
    assert [(each.job.name, each.reason) for each in found.notes] == [("bad", "InternalError")]
    assert list(found.errors) == ["Job ml/bad"]


def test_a_job_that_cannot_be_read_keeps_its_reservation() -> None:
    there = view(workloads=(workload_of_job(),))
    assert [type(each).__name__ for each in decide_jobs(there).writes] == ["DeleteWorkload"]
    assert decide_jobs(replace(there, unread_jobs={("Job", "ml/train")})).writes == []


def test_a_reservation_that_cannot_be_read_stays_although_its_job_asks_for_another() -> None:
    found = decide_jobs(replace(view(job(), workloads=(workload_of_job(template="x"),)), unread_workloads={"w-train"}))
    assert (found.writes, [each.reason for each in found.notes]) == ([], ["InternalError"])


async def test_a_pod_with_damage_keeps_no_other_pod_waiting() -> None:
    """Its own job may be another one: the pods of a namespace are read together."""
    asks: Any = [{"name": "n", "resourceClaimTemplateName": "rct"}]
    pods: list[Any] = []
    for number, claims in enumerate(["x", 7, [None], [7], {"a": 1}, asks]):
        meta = {"namespace": "ml", "name": f"p{number}", "resourceVersion": "1"}
        pods.append({"metadata": meta, "spec": {"resourceClaims": claims}})
    touched: list[str] = []

    class Pods(KubeClient):
        def __init__(self) -> None:
            super().__init__(KubeConfig("pods:"))

        async def _send(self, method: str, path: str, *_: Any) -> bytes:
            if method == "PATCH":
                touched.append(path)
                raise NotFound("gone")
            return msgspec.json.encode({"kind": "PodList", "metadata": {}, "items": pods})

    template = Template("ml", "rct", "t", owner=None, deleting=False)
    early = EarlyPods(Pods(), JobTiming(), new_sender(), lambda: None)
    early.put(("ml", "rct"), template)
    for minutes in (0, 1):
        await pods_looked_for(early, NOW + datetime.timedelta(minutes=minutes))
    assert touched == ["/api/v1/namespaces/ml/pods/p5/status"]


def test_an_error_about_one_qualification_lets_others_test() -> None:
    bad: Any = None
    index = fleet(8)
    view = seen(index, replace(ASKED, most=1))
    broken = replace(ASKED, name="broken", uid="b", most=bad)
    several = replace(
        view,
        asked={"broken": broken, **view.asked},
        surveys={"broken": view.surveys["nightly"], **view.surveys},
        due={"broken": view.due["nightly"], **view.due},
    )
    found = decide_tests(several)
    assert len(begun(found.writes)) == 1
    assert list(found.errors) == ["qualification broken"]


def test_an_error_about_one_workload_with_a_queue_is_its_own() -> None:
    bad: Any = None
    broken = replace(workload(), uid="1111111111", name="broken", size=bad, queue="team")
    sound = workload(record=None)
    both = WholeQueueView({}, "", lambda uid, of: NOTHING, (), (), {}, QueueTiming(), NOW, workloads=[broken, sound])
    assert list(decide_queue(both).writes) == [sound.uid]
    hidden = replace(both, workloads=[replace(broken, queue_record=bad), sound])
    allowed = admissions(hidden)
    assert (allowed[broken.uid].revoked, allowed[broken.uid].reason) == (False, "InternalError")
    assert allowed[sound.uid].reason == "WaitingForQuota"


async def test_an_error_beside_the_plans_does_not_end_the_controller() -> None:
    class Broken:
        looks = 0

        async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
            self.looks += 1
            raise KeyError("x")

        def end_waits(self) -> None:
            pass

    broken = Broken()
    timing = PassTiming(gather_s=0.0, retry_s=(0.01, 0.01))
    beside = Beside(broken, FleetIndex, lambda: True, timing, lambda: NOW)
    beside.changed.set()
    task = asyncio.create_task(beside.run())
    try:
        await eventually(lambda: broken.looks > 2, what="it looks again")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
