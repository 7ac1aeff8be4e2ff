"""The controller dies before and after each of its writes; another one on the same API server completes the work.

The result equals that of an undisturbed controller, and a node is never in two reservations.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from controller import settings as controller_settings
from controller.program import NAME, Controller
from neuron_dra.arguments import Parser
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.story.controller_cluster import Cluster, answering
from tests.support.controller_timings import QUICK
from tests.support.faulty_files import Moment
from tests.support.timings import quicker
from tests.support.waiting import eventually

LONG = bool(os.environ.get("NEURON_DRA_LONG"))
EVERY = 5  # without `LONG`
DONE_S = 120.0  # also on a busy machine
UNCERTAIN_S = 3.0
QUIET_PAUSES, QUIET_S = 20, 0.02
VOLATILE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# A write that adds only groups waits for `message_s`.
TIMING = quicker(QUICK, passes={"gather_s": 0.005}, writes={"first_eviction_s": 0.05, "message_s": 0.0})


class Death:
    """The point at which a controller dies: its `nth` write of this kind, from 1. `writes` counts its writes."""

    def __init__(self, write: str = "", nth: int = 0, moment: Moment = Moment.BEFORE) -> None:
        self._write, self._nth, self._moment = write, nth, moment
        self.writes: Counter[str] = Counter()
        self.dead = asyncio.Event()

    @property
    def is_certain(self) -> bool:
        """Whether every run has this write. Later ones may be merged, and the number of Events depends on timing."""
        return self._nth == 1 and not self._write.endswith(("/events/", "/events"))

    def __str__(self) -> str:
        return f"killed {self._moment.value} {self._write}, time {self._nth}"

    async def reach(self, moment: Moment, write: str, nth: int) -> None:
        """Die here, if so."""
        if (write, nth, moment) == (self._write, self._nth, self._moment):
            self.dead.set()
        await self.still_alive()

    async def still_alive(self) -> None:
        """Return at once, or, after death, never."""
        if self.dead.is_set():
            await asyncio.Event().wait()


class MortalClient(KubeClient):
    """Requests of a controller that may be dead."""

    death = Death()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._death = MortalClient.death

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        await self._death.still_alive()
        if method == "GET":
            return await super()._send(method, path, *rest)
        write = f"{method} {re.sub('(?<=events/).*', '', path.split('/', 3)[-1])}"  # an Event's name is random
        self._death.writes[write] += 1
        nth = self._death.writes[write]  # several are under way at once
        await self._death.reach(Moment.BEFORE, write, nth)
        answer = await super()._send(method, path, *rest)
        await self._death.reach(Moment.AFTER, write, nth)
        return answer


class Watched(Cluster):
    """A cluster that checks its invariant whenever nodes answer."""

    def tag_nodes(self) -> None:
        super().tag_nodes()
        held = [name for entry in self.allocations() for name in entry["allocatedNodes"]]
        assert len(held) == len(set(held)), f"a node in two reservations: {sorted(held)}"

    def resize(self, count: int) -> None:
        self.api.patch("neuronultraserverworkloads", "job", {"spec": {"serverCount": count}}, "ml")

    def servers(self) -> list[tuple[int, str, str]]:
        """Index, phase and first node of each slot."""
        entries = ((e["ultraserverIndex"], e["phase"], e["allocatedNodes"][0]) for e in self.allocations())
        return sorted(entries)

    def not_ready(self, name: str) -> None:
        condition = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.api.patch("nodes", name, {"status": {"conditions": [condition]}})

    def final_state(self) -> Obj:
        """Return all objects of the controller, without times and ids."""
        kinds = ("neuronultraservers", "neuronultraserverworkloads", "resourceclaimtemplates", "pods", "resourceclaims")
        found: Obj = {kind: [self._plain(item) for item in self.api.objects(kind)] for kind in kinds}
        found["labels"] = {n["metadata"]["name"]: n["metadata"]["labels"] for n in self.api.objects("nodes")}
        found["tags"] = sorted(self.tags())
        return found

    @staticmethod
    def _plain(item: Obj) -> Obj:
        meta = {k: v for k, v in item["metadata"].items() if k in ("name", "namespace", "labels", "finalizers")}
        rest = {key: value for key, value in item.items() if key != "metadata"}
        return {"metadata": meta, **_without_ids(rest)}


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "..." if key == "allocationId" else _without_ids(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_ids(each) for each in value]
    return VOLATILE.sub("...", value) if isinstance(value, str) else value


@contextlib.asynccontextmanager
async def controlling(cluster: Watched, death: Death) -> AsyncIterator[None]:
    """Run a controller that dies at this point; it stops at the end of the block."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", cluster.api.url, "--health-probe-bind-address=0", "--metrics-bind-address=0"]
    loaded = controller_settings.load(parser.parse_args([*words, "--grpc-address=0"]), {}, "here")
    MortalClient.death = death
    kube = KubeConfig(loaded.kube_api_server)
    client = MortalClient(kube, user_agent=NAME, timing=TIMING.client)
    task = asyncio.create_task(Controller(loaded, kube, client=client, timing=TIMING).run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# Flows


def submitted(cluster: Watched, strategy: str = "NoOp") -> None:
    cluster.api.create(
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": "job", "namespace": "ml"},
            "spec": {
                "instanceType": "trn3.48xlarge",
                "topologySize": 4,
                "serverCount": 1,
                "allocationPolicy": {"failureStrategy": strategy},
            },
        }
    )


def is_allocated(*servers: tuple[int, str, str]) -> Callable[[Watched], bool]:
    def allocated(cluster: Watched) -> bool:
        tagged = len(cluster.tags()) == 4 * len(servers)
        return cluster.state("job") == "Allocated" and cluster.servers() == list(servers) and tagged

    return allocated


def is_found(cluster: Watched) -> bool:
    labelled = [n for n in cluster.api.objects("nodes") if any("ultraserver" in key for key in n["metadata"]["labels"])]
    described = [item for item in cluster.api.objects("neuronultraservers") if item.get("status")]
    return len(described) == 2 and len(labelled) == 8


def is_gone(cluster: Watched) -> bool:
    return cluster.state("job") == "None" and not cluster.tags() and not cluster.allocations()


def pods_start(cluster: Watched) -> None:
    workload = cluster.api.get("neuronultraserverworkloads", "job", "ml")
    for n in range(4):
        cluster.pod_with_claim(f"pod-{n}", f"u0-{n}", workload)


ONE, OTHER, TWO = (0, "Bound", "u0-0"), (0, "Bound", "u1-0"), (1, "Bound", "u1-0")


@dataclass(frozen=True, slots=True)
class Flow:
    """`before` are actions with their conditions, under an undisturbed controller; `act` is the action under test."""

    name: str
    act: Callable[[Watched], None]
    done: Callable[[Watched], bool]
    before: tuple[tuple[Callable[[Watched], None], Callable[[Watched], bool]], ...] = ()


FOUND = (lambda cluster: None, is_found)
SUBMITTED = (submitted, is_allocated(ONE))
GROWN = (lambda cluster: cluster.resize(2), is_allocated(ONE, TWO))
FLOWS = [
    Flow("discovery", *FOUND),
    Flow("allocation", *SUBMITTED, (FOUND,)),
    Flow("growth", *GROWN, (SUBMITTED,)),
    Flow("shrink", lambda cluster: cluster.resize(1), is_allocated(ONE), (SUBMITTED, GROWN)),
    Flow(
        "release",
        lambda cluster: cluster.api.delete("neuronultraserverworkloads", "job", "ml"),
        is_gone,
        (SUBMITTED, (pods_start, lambda cluster: True)),
    ),
    Flow(
        "migration",
        lambda cluster: cluster.not_ready("u0-0"),
        is_allocated(OTHER),
        ((lambda cluster: submitted(cluster, "MigrateAffected"), is_allocated(ONE)),),
    ),
    Flow(
        "restart",
        lambda cluster: cluster.not_ready("u0-0"),
        is_allocated(OTHER),
        ((lambda cluster: submitted(cluster, "RestartAll"), is_allocated(ONE)),),
    ),
]


@contextlib.asynccontextmanager
async def begun(flow: Flow) -> AsyncIterator[Watched]:
    """Run the steps before the action."""
    async with answering(Watched) as cluster:
        if flow.before:
            async with controlling(cluster, Death()):
                for act, done in flow.before:
                    act(cluster)
                    await eventually(lambda done=done: done(cluster), DONE_S, f"the arrangement for {flow.name}")
                await quiet(cluster)
        yield cluster


async def quiet(cluster: Watched) -> None:
    """Wait until there are no more writes: a single long pause may pass while a busy machine runs something else."""
    revision, pauses = -1, 0
    while pauses < QUIET_PAUSES:
        pauses = pauses + 1 if revision == cluster.api.store.revision else 0
        revision = cluster.api.store.revision
        await asyncio.sleep(QUIET_S)


async def finished(flow: Flow, cluster: Watched, expected: Obj | None = None) -> Obj:
    """Wait for the end and return the objects; with `expected`, until they equal it."""
    await eventually(lambda: flow.done(cluster), DONE_S, f"the end of {flow.name}: {cluster.servers()}")
    if expected is None:
        await quiet(cluster)
    else:
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: cluster.final_state() == expected, DONE_S)
    assert flow.done(cluster)
    return cluster.final_state()


async def undisturbed(flow: Flow) -> tuple[Counter[str], Obj]:
    """Return an undisturbed controller's writes and their result."""
    async with begun(flow) as cluster:
        death = Death()
        async with controlling(cluster, death):
            flow.act(cluster)
            final_state = await finished(flow, cluster)
            return death.writes, final_state


async def disturbed(flow: Flow, death: Death, expected: Obj) -> Obj:
    """Return the result with a controller that dies and another after it."""
    async with begun(flow) as cluster:
        async with controlling(cluster, death):
            flow.act(cluster)
            try:
                await eventually(death.dead.is_set, DONE_S if death.is_certain else UNCERTAIN_S, "the death")
            except TimeoutError:
                if death.is_certain:
                    raise
        async with controlling(cluster, Death()):
            return await finished(flow, cluster, expected)


@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_next_controller_continues_after_a_crash(flow: Flow, record_property: Callable[[str, str], None]) -> None:
    writes, expected = await undisturbed(flow)
    points = [
        (write, nth, moment)
        for write, count in writes.items()
        for nth in range(1, count + 1)
        for moment in (Moment.BEFORE, Moment.AFTER)
    ]
    chosen = points if LONG else points[1::EVERY]
    wrong, died = [], 0
    for point in chosen:
        death = Death(*point)
        try:
            assert await disturbed(flow, death, expected) == expected
        except (AssertionError, TimeoutError) as err:
            wrong.append(f"{death}: {err}")
        died += death.dead.is_set()
    record_property("covered", f"controller killed, {flow.name}: {died} of {len(points)} points")
    assert not wrong, "\n".join(wrong)
