"""A plan's writes: which ones the outbox gets, and what counts as reserved until the answer. ADR 16, issue 4.05."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from controller.apply.outbox import MOST_OF_NAMESPACE
from controller.apply.requests import Applier
from controller.apply.status_throttle import StatusThrottle
from controller.apply.writes import Writes
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase
from neuron_dra.core.wire import Obj
from neuron_dra.errors import Forbidden, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    DeleteTemplate,
    Evict,
    LabelNode,
    SetFinalizers,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import EXPIRED, IN_USE, Reservation

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


class Server(KubeClient):
    """An API server that stores each write after one iteration of the loop, or rejects it.

    It records the methods and paths, and the largest number of requests at the same time.
    """

    def __init__(self) -> None:
        super().__init__(KubeConfig("server:"))
        self.is_rejected: Callable[[str], bool] = lambda path: False
        self.is_silent: Callable[[str], bool] = lambda path: False
        self.answers: dict[str, Obj] = {}
        self.begun: list[str] = []
        self.sent: list[str] = []
        self.most = 0
        self._version = 100

    async def _send(self, method: str, path: str, params: Any, body: Any, *_: object) -> bytes:
        name = path.partition("/namespaces/")[2] or path.rpartition("/")[2]
        self.begun.append(f"{method} {name}")
        self.most = max(self.most, len(self.begun) - len(self.sent))
        await asyncio.sleep(0)
        self.sent.append(f"{method} {name}")
        if self.is_rejected(path):
            raise Forbidden("a policy rejects it", status=403)
        if self.is_silent(path):
            raise Unavailable("no answer")
        if f"{method} {name}" in self.answers:
            return json.dumps(self.answers[f"{method} {name}"]).encode()
        parts = path.strip("/").split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        self._version += 1
        named = parts[-2] if parts[-1] in ("status", "eviction") else parts[-1]
        meta = {"uid": f"uid-{named}", "name": named, "resourceVersion": str(self._version)}
        if namespace:
            meta["namespace"] = namespace
        own = (body or {}).get("metadata") or {}
        rest = {key: value for key, value in (body or {}).items() if key != "metadata"}
        is_done = method == "DELETE" or path.endswith("/eviction")
        kind = {"kind": "Status", "apiVersion": "v1", "status": "Success"} if is_done else {}
        return json.dumps({**rest, **kind, "metadata": {**meta, **own, "resourceVersion": str(self._version)}}).encode()


class There:
    """The writes of a controller over that server, with workloads in its cache."""

    def __init__(self, *workloads: str) -> None:
        self.server = Server()
        self.caches = Caches(self.server, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        for name in workloads:
            self.store(name)
        self.caches.nodes.remember(stored("v1", "Node", "", "n"))
        for number in range(64):
            name = f"us-{number}"
            self.caches.ultraservers.remember(stored("neuron.aws.com/v1beta1", "NeuronUltraServer", NAMESPACE, name))
        self.applier = Applier(self.server, self.caches, EventRecorder(self.server, "here"), DEFAULT_TIMING)
        timing = DEFAULT_TIMING.writes
        self.now = NOW
        self.writes = Writes(self.caches, self.applier, Metrics(), StatusThrottle(timing), timing, lambda: self.now)

    def store(self, name: str, version: str = "1") -> None:
        self.caches.workloads.remember(
            stored("neuron.aws.com/v1beta1", "NeuronUltraServerWorkload", "ml", name, version)
        )

    async def make(self, *actions: Action) -> list[str]:
        """Make the writes of a plan; return those that were sent, without duplicates of one that went to many."""
        before = len(self.server.sent)
        self.writes.begin(actions, self.now)
        self.writes.wish(actions)
        await self.applier.sender.send_all()
        return self.server.sent[before:]


def stored(version: str, kind: str, namespace: str, name: str, resource_version: str = "1") -> Obj:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": resource_version}
    if namespace:
        meta["namespace"] = namespace
    spec = {"instanceType": "t", "topologySize": 1, "serverCount": 1} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec, "status": {}}


RESERVED = Reservation("us-1", Allocation("ml", "a", "uid-a", "id", Phase.PENDING, ("n",), 1, 0))


def reservation(name: str, *owners: str) -> Action:
    uids = frozenset(f"uid-{owner}" for owner in owners)
    return WriteUltraServerStatus(name, "1", {}, {}, added=(RESERVED,), owners=uids)


def owners(name: str) -> frozenset[str]:
    return frozenset({f"uid-{name}"})


def finalizer(name: str) -> Action:
    return SetFinalizers("ml", name, "1", ("ours",), owners=owners(name))


def template(name: str) -> Action:
    meta = {"namespace": "ml", "name": name}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {}}
    return CreateTemplate(body, owners=owners(name))


def status(name: str, state: str = "Allocated", version: str = "1") -> Action:
    return WriteWorkloadStatus(
        "ml", name, f"uid-{name}", version, {}, {"state": state}, warning=False, owners=owners(name)
    )


def eviction(number: int, owner: str) -> Action:
    return Evict("ml", f"p{number}", f"uid-p{number}", owners=owners(owner))


RESERVES = f"PATCH {NAMESPACE}/neuronultraservers/us-1/status"
READS = f"GET {NAMESPACE}/neuronultraservers"
CREATES = "POST ml/resourceclaimtemplates"
TELLS = "PATCH ml/neuronultraserverworkloads/{}/status"


async def test_all_reservations_of_a_workload_are_sent_up_to_a_bound_at_once() -> None:
    there = There()
    sent = await there.make(*(reservation(f"us-{number}", "a") for number in range(64)))
    assert (len(sent), there.server.most) == (64, MOST_OF_NAMESPACE)


async def test_only_the_first_step_of_a_workload_is_wished() -> None:
    there = There("a", "b")
    plan = [template("a"), status("a"), status("b")]
    assert sorted(await there.make(*plan)) == [TELLS.format("b"), CREATES]


async def test_step_after_a_reservation_waits_for_the_next_plan() -> None:
    there = There("a")
    assert await there.make(reservation("us-1", "a"), template("a")) == [RESERVES]


async def test_reservation_waits_for_no_step_of_a_workload() -> None:
    """The write is for all workloads on an UltraServer, and none waits for another one."""
    there = There("a", "b")
    there.caches.templates.remember(stored("resource.k8s.io/v1", "ResourceClaimTemplate", "ml", "a"))
    deletion = DeleteTemplate("ml", "a", "uid-a", owners=owners("a"))
    assert RESERVES in await there.make(deletion, reservation("us-1", "a", "b"))


async def test_workload_says_that_it_waits_while_its_reservation_is_removed() -> None:
    there = There("a")
    assert sorted(await there.make(reservation("us-1", "a"), status("a", "Pending"))) == [TELLS.format("a"), RESERVES]


async def test_rejected_reservation_stops_only_its_workload() -> None:
    there = There("a", "b")
    there.server.is_rejected = lambda path: "us-1" in path
    assert await there.make(reservation("us-1", "a"), template("a"), status("b")) == [RESERVES, TELLS.format("b")]


async def test_write_that_was_rejected_holds_back_later_steps() -> None:
    there = There("a", "b")
    there.server.is_rejected = lambda path: "templates" in path
    assert await there.make(template("a")) == [CREATES]
    assert await there.make(template("a"), status("a"), status("b")) == [TELLS.format("b")]


async def test_status_does_not_wait_for_evictions() -> None:
    there = There("a")
    sent = await there.make(eviction(1, "a"), eviction(2, "a"), status("a"))
    assert len(sent) == 3
    there.store("a", "200")
    later = status("a", "Deallocating", "200")
    assert await there.make(eviction(1, "a"), eviction(2, "a"), later) == [TELLS.format("a")]


async def test_eviction_waits_for_the_deletion_of_the_template() -> None:
    there = There("a")
    there.caches.templates.remember(stored("resource.k8s.io/v1", "ResourceClaimTemplate", "ml", "a"))
    deletion = DeleteTemplate("ml", "a", "uid-a", owners=owners("a"))
    assert await there.make(deletion, eviction(1, "a")) == ["DELETE ml/resourceclaimtemplates/a"]


async def test_namespace_has_so_many_requests_at_once() -> None:
    there = There()
    sent = await there.make(*(eviction(number, "a") for number in range(48)))
    assert (len(sent), there.server.most) == (48, MOST_OF_NAMESPACE)


@pytest.mark.parametrize(
    "action",
    [
        finalizer("a"),
        status("a"),
        DeleteTemplate("ml", "a", "uid-of-another", owners=owners("a")),
        LabelNode("n", "uid-of-another", {}),
        template("taken"),
    ],
    ids=lambda action: type(action).__name__,
)
async def test_write_of_an_object_that_has_changed_is_dropped(action: Action) -> None:
    """ADR 16, rule 3: conflicts stay at 0."""
    there = There()
    there.store("a", "2")
    for name in ("a", "taken"):
        there.caches.templates.remember(stored("resource.k8s.io/v1", "ResourceClaimTemplate", "ml", name))
    assert await there.make(action) == []


async def test_write_of_an_object_that_cannot_be_read_is_left_to_the_server() -> None:
    """Plans see the version that was last read. The rejection lets the write wait, where a dropped one would not."""
    there = There("a")
    item = there.caches.workloads.items["ml/a"]
    there.caches.workloads.put("ml/a", {**item, "metadata": {**item["metadata"], "resourceVersion": "2"}})
    assert await there.make(status("a")) == [TELLS.format("a")]


async def test_waiting_workloads_come_after_those_that_move_forward() -> None:
    many = [f"w{number}" for number in range(100)]
    there = There("forward", *many)
    sent = await there.make(*(finalizer(name) for name in many), template("forward"))
    assert sent[:1] == [CREATES]
    assert len(sent) == 101


async def test_reservation_counts_as_made_from_its_request_to_the_answer() -> None:
    """ADR 16, rule 5."""
    there = There("a")
    there.server.is_silent = lambda path: "us-1" in path
    assert await there.make(reservation("us-1", "a")) == [RESERVES]
    assert (there.writes.assumed(), there.writes.unsettled_owners) == ((RESERVED,), owners("a"))


async def test_rejected_reservation_does_not_count() -> None:
    there = There("a")
    there.server.is_rejected = lambda path: "us-1" in path
    assert await there.make(reservation("us-1", "a")) == [RESERVES]
    assert there.writes.assumed() == ()


async def test_reservation_without_an_answer_counts_until_its_object_was_read() -> None:
    there = There("a")
    there.server.is_silent = lambda path: "us-1" in path and "status" in path
    await there.make(reservation("us-1", "a"))
    there.server.answers[READS] = {"kind": "NeuronUltraServerList", "metadata": {"resourceVersion": "9"}, "items": []}
    assert await there.make(template("a")) == [READS]
    assert (there.writes.assumed(), there.writes.unsettled_owners) == ((), owners("a"))
    assert await there.make(template("a")) == [CREATES]
    assert there.writes.unsettled_owners == frozenset()


async def test_write_that_gives_up_nodes_is_not_sent_late() -> None:
    """Its claims were read immediately before it was decided."""
    there = There("a")
    condition = {"type": IN_USE, "status": "False", "reason": EXPIRED, "message": ""}
    before, after = {"groups": [{"nodes": ["n"]}]}, {"state": "Allocated", "conditions": [condition]}
    expiry = WriteWorkloadStatus("ml", "a", "uid-a", "1", before, after, warning=True, owners=owners("a"))
    assert expiry.expires
    there.writes.begin([expiry], there.now)
    there.writes.wish([expiry])
    there.now += datetime.timedelta(seconds=10)
    await there.applier.sender.send_all()
    assert there.server.sent == []
