"""Decisions about jobs cost what changed, and are those that a look at everything would find (30, net 3)."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from controller.apply.fence import unelected
from controller.apply.requests import Applier
from controller.fleet.fleet_index import FleetIndex
from controller.jobs.guard import POLICY
from controller.jobs.reservations import AT_ONCE, JobReservations
from controller.jobs.watches import JobWatches
from controller.observe.caches import Caches
from controller.observe.model import JOBS_LABEL, LIMIT_ANNOTATION
from controller.timing import DEFAULT_TIMING, JobTiming
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.reflector import Reflector
from tests.unit.test_jobs_decide import item, pods
from tests.unit.test_plan_costs import counted
from tests.unit.test_queue_decide import NOW


class Server(KubeClient):
    """Has the policy that guards the label, and stores what it gets. `made` are the workloads, `told` the Events."""

    def __init__(self) -> None:
        super().__init__(KubeConfig("none:"))
        self.made: list[Obj] = []
        self.told: list[Obj] = []

    async def _send(self, method: str, path: str, params: Any, body: Any, *_: object) -> bytes:
        if method == "GET":
            found = {"policyName": POLICY, "validationActions": ["Deny"]}
            return msgspec.json.encode({"metadata": {"name": POLICY}, "spec": found, "items": []})
        if path.endswith("/events"):
            self.told.append(body)
            return msgspec.json.encode(body)
        self.made.append(body)
        meta = {**body["metadata"], "uid": f"made-{len(self.made)}", "resourceVersion": str(100_000 + len(self.made))}
        return msgspec.json.encode({**body, "metadata": meta})


class Followed:
    """Reservations for jobs of a controller whose objects are put in by hand."""

    def __init__(self) -> None:
        self.server = Server()
        self.now = NOW
        self.caches = Caches(self.server, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        events = EventRecorder(self.server, "here")
        self.applier = Applier(self.server, self.caches, events, DEFAULT_TIMING, unelected())
        self.watches = JobWatches(self.server, lambda: None, JobTiming())
        for each in self.watches.reflectors.values():
            each.synced.set()
        program = self.server, self.caches, self.applier, self.watches, events, JobTiming()
        self.jobs = JobReservations(*program, None, queues=True)
        self.jobs._watched._term = self.applier.fence.term
        self._version = 0

    def store(self, reflector: Reflector, stored: Obj) -> None:
        """Put an object in, with another version."""
        self._version += 1
        reflector.remember({**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self._version)}})

    def namespace(self, name: str, limit: str = "9999") -> None:
        meta: Obj = {"name": name, "uid": name, "labels": {JOBS_LABEL: "true"}}
        self.store(self.caches.namespaces, {"metadata": {**meta, "annotations": {LIMIT_ANNOTATION: limit}}})

    def job(self, name: str, template: str = "", namespace: str = "ml", **options: Any) -> None:
        made = item({"parallelism": 4, "template": pods(template or f"rct-{name}")}, name=name, **options)
        made["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
        self.store(self.watches._by_kind["Job"], made)

    async def look(self) -> int:
        """Look once; return how many lines of the controller that takes."""
        index = self.caches.index()
        with counted() as found:
            await self.jobs.look(index, self.now)
        return found[0]

    async def settle(self, steps: int) -> list[int]:
        """Look so many times, with time between; return what each look costs."""
        costs = []
        for _ in range(steps):
            costs.append(await self.look())
            self.now += datetime.timedelta(seconds=0.05)
        return costs


async def decided(number: int) -> Followed:
    """Return the reservations of so many jobs of one namespace that cannot have any, after all was told."""
    there = Followed()
    there.namespace("ml")
    for each in range(number):
        there.job(f"j{each}", text="topologySize=3")
    await there.settle(number // AT_ONCE + 8)
    assert len(there.server.told) == number
    return there


@pytest.mark.xfail(strict=True, reason="a look decides about all jobs")
async def test_a_look_costs_what_changed_however_many_jobs_there_are() -> None:
    costs = []
    for number in (20, 600):
        there = await decided(number)
        nothing = await there.look()
        there.job("j7")
        costs.append((nothing, await there.look()))
        assert [each["metadata"]["name"] for each in there.server.made] == ["j7"]
    assert costs[0] == costs[1]
    assert costs[0][0] < 200


@pytest.mark.xfail(strict=True, reason="a look decides about all jobs")
async def test_a_burst_costs_each_look_a_budget_and_ends() -> None:
    """2,000 new jobs of one namespace; a job of another one has its turn at once."""
    there = Followed()
    for name in ("ml", "other"):
        there.namespace(name)
    for each in range(2_000):
        there.job(f"j{each}")
    there.job("small", namespace="other")
    costs = [await there.look()]
    assert "small" in [each["metadata"]["name"] for each in there.server.made]
    costs += await there.settle(2_001 // AT_ONCE + 4)
    assert sorted(each["metadata"]["name"] for each in there.server.made) == sorted(
        ["small", *(f"j{each}" for each in range(2_000))]
    )
    assert max(costs[1:]) < 40_000
