"""Terms of leadership: who leads, what ends a term, and that nothing decided in an ended term is sent."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable, Generator

import pytest

from controller.apply.fence import EndedTerm, Fence
from controller.apply.leader import Alone, Leader
from controller.apply.loop import Reconciler
from controller.apply.requests import Applier
from controller.apply.status_throttle import StatusThrottle
from controller.apply.writes import Writes
from controller.metrics import Metrics
from controller.observe.caches import Caches
from controller.program import NAME as CONTROLLER
from controller.timing import DEFAULT_TIMING, LeaseTiming
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    Plan,
    WriteUltraServerStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS
from tests.story.controller_cluster import Cluster, answering, running_controller
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
NAME = "lease"
LEASE = LeaseTiming(duration_s=1, renew_deadline_s=0.6, retry_s=0.05)


class Term(Alone):
    """Leadership of which a test ends the term."""

    def __init__(self) -> None:
        self.term = 1


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield api


@contextlib.asynccontextmanager
async def electing(
    api: EmbeddedApi,
    identity: str,
    *,
    works: Callable[[], bool] = lambda: True,
    suspended: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Leader]:
    """Run one candidate."""
    async with KubeClient(KubeConfig(api.url)) as client:
        leader = Leader(client, NAMESPACE, NAME, identity, lambda: None, LEASE, works, suspended)
        task = asyncio.create_task(leader.run())
        try:
            yield leader
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def reconciler(client: KubeClient, leadership: Alone) -> tuple[Reconciler, Applier]:
    """Return a reconciler that has begun a pass in the first term, and what makes its writes."""
    caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    applier = Applier(client, caches, EventRecorder(client, "here"), DEFAULT_TIMING, Fence(leadership))
    applier.fence.enter(1)
    return Reconciler(caches, applier, leadership, Metrics(), DEFAULT_LIMITS, DEFAULT_TIMING), applier


@pytest.mark.parametrize(
    "action",
    [
        Evict("ml", "pod", "p"),
        DeleteTemplate("ml", "job", "t"),
        DeleteUltraServer("us-u0", "u", "1"),
        CreateTemplate({"metadata": {"name": "job", "namespace": "ml"}}),
        WriteUltraServerStatus("us-u0", "1", {}, {}, ("finalizer",)),
        LabelNode("node", "n", {}),
    ],
    ids=lambda action: type(action).__name__,
)
async def test_nothing_decided_in_an_ended_term_is_sent(api: EmbeddedApi, action: Action) -> None:
    """30.3: a replica that leads again sent evictions and deletions of its earlier term."""
    leadership = Term()
    async with api.client("here") as client:
        _, applier = reconciler(client, leadership)
        leadership.term = 2
        sent = len(api.log)
        with pytest.raises(EndedTerm):
            await applier.perform(action, NOW)
    assert len(api.log) == sent


async def test_unsent_write_is_no_failure(api: EmbeddedApi) -> None:
    leadership = Term()
    async with api.client("here") as client:
        caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        applier = Applier(client, caches, EventRecorder(client, "here"), DEFAULT_TIMING, Fence(leadership))
        writes = Writes(caches, applier, Metrics(), StatusThrottle(DEFAULT_TIMING.writes), DEFAULT_TIMING.writes)
        evict = Evict("ml", "pod", "p")
        writes.begin([evict], NOW)
        writes.wish([evict])
        leadership.term += 1
        sent = len(api.log)
        await applier.sender.send_all()
        writes.begin([evict], NOW)
        assert (len(api.log), writes.next_due()) == (sent, None)


async def test_plan_of_an_ended_term_is_abandoned(api: EmbeddedApi) -> None:
    leadership, steps = Term(), []

    def plan() -> Generator[None, None, Plan]:
        for number in range(4):
            steps.append(number)
            if number == 2:
                leadership.term += 1
            yield
        return Plan()

    async with api.client("here") as client:
        planner, _ = reconciler(client, leadership)
        with pytest.raises(EndedTerm):
            await planner._in_slices(plan())
    assert steps == [0, 1, 2]


async def test_other_tasks_run_between_the_steps_of_a_plan(api: EmbeddedApi) -> None:
    """30.3: a plan longer than the lease let it expire, and was repeated for ever."""
    seen: list[str] = []

    def plan() -> Generator[None, None, Plan]:
        for _ in range(3):
            seen.append("step")
            yield
        return Plan()

    async def renew() -> None:
        while True:
            seen.append("renewal")
            await asyncio.sleep(0)

    async with api.client("here") as client:
        planner, _ = reconciler(client, Term())
        task = asyncio.create_task(renew())
        await planner._in_slices(plan())
        task.cancel()
    assert seen[:6] == ["step", "renewal"] * 3


async def test_pass_without_progress_is_noticed(api: EmbeddedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with api.client("here") as client:
        planner, _ = reconciler(client, Term())
        assert planner.works()
        planner._progressed()
        assert planner.works()
        began = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: began + DEFAULT_TIMING.passes.progress_s + 1)
        assert not planner.works()


async def test_replica_with_a_hanging_planner_gives_up_the_lease(api: EmbeddedApi) -> None:
    """30.3: it led for ever."""
    works = True
    async with electing(api, "first", works=lambda: works) as first:
        await eventually(first.holds)
        async with electing(api, "second") as second:
            works = False
            await eventually(second.holds)
            assert not first.holds()


async def test_suspension_ends_a_term(api: EmbeddedApi) -> None:
    """30.3: the event loop's clock stands still while the machine is suspended."""
    suspended_s = 0.0
    async with electing(api, "first", suspended=lambda: suspended_s) as first:
        await eventually(first.holds)
        suspended_s = 60.0
        assert not first.holds()
        await eventually(first.holds)
        assert first.term == 2


async def lose(api: EmbeddedApi, holds: Callable[[], bool]) -> None:
    """Let a leader lose its Lease, which nobody else takes, and lead again."""
    await eventually(holds)
    broken = api.faults.add(InjectedFault(Do.RESPOND, verb="update", resource="leases", status=403, times=None))
    await eventually(lambda: broken.hits and not holds())
    api.faults.clear()
    await eventually(holds)


def take(api: EmbeddedApi, name: str) -> None:
    """Let another replica have held the Lease until long ago."""
    lease = api.get("leases", name, NAMESPACE)
    changed = {
        "holderIdentity": "other",
        "renewTime": "2026-03-01T12:00:00.000000Z",
        "leaseTransitions": lease["spec"]["leaseTransitions"] + 1,
    }
    api.replace({**lease, "spec": {**lease["spec"], **changed}})


async def test_tenure_ends_when_another_replica_held_the_lease(api: EmbeddedApi) -> None:
    async with electing(api, "first") as first:
        await eventually(first.holds)
        await lose(api, first.holds)
        assert (first.term, first.tenure) == (2, 1)
        take(api, NAME)
        await eventually(lambda: first.term == 3)
        assert first.tenure == 2


async def test_tenure_ends_with_a_takeover_that_had_no_answer(api: EmbeddedApi) -> None:
    """The next read shows this replica as the holder, but another one has held the Lease since its last term."""
    async with electing(api, "first") as first:
        await eventually(first.holds)
        lost = api.faults.add(InjectedFault(Do.DROP_AFTER, verb="update", resource="leases", times=None))
        take(api, NAME)
        await eventually(lambda: not first.holds())
        await eventually(lambda: api.get("leases", NAME, NAMESPACE)["spec"]["holderIdentity"] == "first")
        assert lost.hits > 0
        api.faults.clear()
        await eventually(first.holds)
        assert (first.term, first.tenure) == (2, 2)


async def test_tenure_ends_with_the_lease_itself(api: EmbeddedApi) -> None:
    async with electing(api, "first") as first:
        await eventually(first.holds)
        broken = api.faults.add(InjectedFault(Do.RESPOND, resource="leases", status=403, times=None))
        await eventually(lambda: broken.hits and not first.holds())
        api.delete("leases", NAME, NAMESPACE)
        api.faults.clear()
        await eventually(first.holds)
        assert (first.term, first.tenure) == (2, 2)


async def test_only_a_term_after_another_leader_lists_again() -> None:
    """30.3: a leader that gets its Lease back opens its watches again instead, because they may be dead."""
    async with answering(Cluster) as cluster:
        api = cluster.api
        api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        timing = quicker(QUICK, lease={"duration_s": 4, "renew_deadline_s": 3.0})
        flags = ("--leader-elect", "--queues", "true", "--jobs-may-reserve", "true", "--qualifications", "true")
        async with running_controller(cluster, *flags, timing=timing) as controller:
            leads = controller.leadership.holds
            cluster.submit("before")
            await eventually(lambda: cluster.state("before") == "Allocated", what="the workload is Allocated")
            await eventually(lambda: api.watches.count("jobs") == 1, what="jobs are watched")
            kinds = {each.resource for each in api.requests("watch")}
            api.log.clear()

            await lose(api, leads)
            cluster.submit("again", count=1)
            await eventually(lambda: cluster.state("again") == "Pending", what="the next term plans")
            beside = {"nodes", "resourceclaims", "workloads", "jobs"}
            await eventually(
                lambda: {each.resource for each in api.requests("watch")} >= beside, what="watches are opened"
            )
            assert {each.resource for each in api.requests("list")} & kinds == set()
            assert {each.resource for each in api.requests("watch")} <= kinds

            take(api, CONTROLLER)
            await eventually(lambda: {each.resource for each in api.requests("list")} >= kinds, what="it lists all")


async def test_plan_keeps_its_index_while_it_pauses(api: EmbeddedApi) -> None:
    async with api.client("here") as client:
        caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}}
        with caches.pinned():
            caches.nodes.remember(node)
            assert caches.index().node_by_name == {}
        assert {*caches.index().node_by_name} == {"n"}
