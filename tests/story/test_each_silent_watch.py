"""4.02: while the watch of an input is silent for 150 s, the controller does nothing that it cannot take back.

Each case first shows the controller something that would be a reason to act later. Then the watch of its kind dies
without a sign, and users take it back. The control is the same without silence and without taking it back: the
controller acts. The cases are those of the controller's own watches, so a new watch needs a case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from controller.jobs.kinds import KINDS
from neuron_dra.core.qualification import NAMESPACE as TESTS
from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.wire import Obj
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NAMESPACES,
    NEURON_QUALIFICATIONS,
    NEURON_WORKLOADS,
    PODS,
)
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.model import EXPIRED
from tests.support.fleet import doubts, qualifications
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.job_laws import ASKS
from tests.support.fleet.kueue import QUEUES, granted
from tests.support.fleet.nodes import BROKEN_MODES, MODES
from tests.support.fleet.pods import Job
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule
from tests.support.fleet.view import condition, place, state, template_name

ACTORS: Final = frozenset({"jobs", "queues", "qualifications"})
SILENT_S: Final = 150.0
LONG_S: Final = 700.0  # longer than every grace
TTL_S: Final = 120

Act = Callable[["World"], Awaitable[None]]


@dataclass(slots=True)
class World:
    """A fleet in which one workload, `made`, has nodes; its pods are those of `job`."""

    schedule: Schedule
    made: Obj
    job: Job | None = None

    @property
    def fleet(self) -> Fleet:
        return self.schedule.fleet

    @property
    def node(self) -> Any:
        """A node of the workload."""
        return self.fleet.nodes[self.fleet.view.of(self.made["metadata"]["uid"])[0].allocation.nodes[0]]

    @property
    def has_expired(self) -> bool:
        workload = self.fleet.view.workloads().get(self.made["metadata"]["uid"], {})
        return condition(workload, "InUse").get("reason") == EXPIRED

    def cannot_be_taken_back(self) -> Any:
        """Return the reservations that are not drained, the results of tests, and the quota that is granted."""
        held = {each.allocation.allocation_id: each.allocation.phase for each in self.fleet.view.held()}
        kept = [result for item in self.fleet.view.all("neuronultraservers") for result in results.read(item["status"])]
        quota = [granted(item) for item in self.fleet.view.all("workloads")]
        bound = sorted(name for name, phase in held.items() if phase is Phase.BOUND)
        return bound, [result.nodes for result in kept], quota, self.has_expired


async def until(world: World, holds: Callable[[], bool], what: str) -> None:
    deadline = world.fleet.clock.elapsed + 120.0
    while not holds():
        assert world.fleet.clock.elapsed < deadline, what
        await world.fleet.sleep(0.5)


async def allocated(world: World) -> None:
    uid = world.made["metadata"]["uid"]
    await until(world, lambda: state(world.fleet.view.workloads().get(uid, {})) == "Allocated", "it is Allocated")
    await world.fleet.sleep(5.0)  # so that its pods run


async def with_pods(schedule: Schedule, **spec: Any) -> World:
    """A workload whose pods run."""
    made = await schedule.fleet.submit("held", 4, 1, "MigrateAffected", **spec)
    assert made is not None
    world = World(schedule, made, schedule.fleet.start_job(made))
    await allocated(world)
    return world


async def without_pods(schedule: Schedule) -> World:
    """A workload that nobody uses, and that expires soon."""
    made = await schedule.fleet.submit("held", 4, 1, ttlSecondsUnused=TTL_S)
    assert made is not None
    world = World(schedule, made)
    await allocated(world)
    return world


async def with_quota(schedule: Schedule) -> World:
    """A workload that has quota of a queue."""
    for queue in schedule.fleet.kueue.queues.values():
        queue.quota = 8
    return await with_pods(schedule, queue=QUEUES[0])


async def with_results(schedule: Schedule) -> World:
    """A workload beside groups that were tested."""
    world = await with_pods(schedule)
    await qualifications.begin(schedule, topologySize=4)
    await until(world, lambda: len(world.cannot_be_taken_back()[1]) > 0, "a group is tested")
    return world


def of_kind(name: str, spec: Callable[[Obj, bool], Obj]) -> Callable[[Schedule], Awaitable[World]]:
    """Return the start with a job of a kind. `spec` returns that of one whose pods have this template, and may run."""

    async def begin(schedule: Schedule) -> World:
        fleet, resource = schedule.fleet, next(kind.resource for kind in KINDS if kind.name == name)
        assert fleet.api is not None
        if resource.group not in ("batch", "apps"):
            fleet.api.register(resource.group, (resource.version,), name, resource.plural)
            await fleet.sleep(70.0)  # until the controller looks for the kind again
        job = Job("train", USERS, "train-rct", 4)
        pod = job.pod()["spec"]
        pod["nodeSelector"] = {"node.kubernetes.io/instance-type": fleet.instance_type}
        body = {
            "apiVersion": f"{resource.group}/{resource.version}",
            "kind": name,
            "metadata": {"name": "train", "namespace": USERS, "annotations": {ASKS: "topologySize=4"}},
            "spec": spec({"spec": pod}, True),
        }
        await fleet.admin.create(resource, USERS, body)
        fleet.pods.jobs["train"] = job
        world = World(schedule, {}, job)

        def made() -> Any:
            return fleet.view.find("neuronultraserverworkloads", "train", USERS)

        await until(world, lambda: made() is not None, "the job has a reservation")
        world.made = dict(made())
        await allocated(world)
        return world

    return begin


def change_of(name: str, spec: Callable[[Obj, bool], Obj], *, runs: bool) -> Act:
    """Return what suspends a job of a kind, or resumes it; its pods restart when it is resumed."""

    async def act(world: World) -> None:
        resource = next(kind.resource for kind in KINDS if kind.name == name)
        changes = {key: value for key, value in spec({}, runs).items() if key in ("suspend", "replicas")}
        await world.fleet.patch(resource, USERS, "train", {"spec": changes})
        assert world.job is not None
        if runs:
            world.job.replicas = 0
            await world.fleet.sleep(20.0)
            world.job.replicas = 4

    return act


async def end_pods(world: World) -> None:
    if world.job is not None:
        world.job.replicas = 0


async def nothing(world: World) -> None:
    pass


async def lose_node(world: World) -> None:
    world.node.kubelet_up = False
    await world.fleet.set_ready(world.node, False)


async def return_node(world: World) -> None:
    world.node.kubelet_up = True
    await world.fleet.set_ready(world.node, True)


async def break_links(world: World) -> None:
    world.node.set_modes(BROKEN_MODES[-1])


async def mend_links(world: World) -> None:
    world.node.set_modes(MODES)


async def start_pods(world: World) -> None:
    world.job = world.fleet.start_job(world.made)


async def delete_workload(world: World) -> None:
    await world.fleet.remove(NEURON_WORKLOADS, *place(world.made))


async def delete_template(world: World) -> None:
    await world.fleet.remove(CLAIM_TEMPLATES, USERS, template_name(world.made))


async def delete_qualification(world: World) -> None:
    await world.fleet.remove(NEURON_QUALIFICATIONS, "", qualifications.NAME)


async def ask_again(world: World) -> None:
    await delete_qualification(world)
    await world.fleet.sleep(5.0)
    await qualifications.begin(world.schedule, topologySize=4)


async def evict_by_kueue(world: World) -> None:
    [item] = [each for each in world.fleet.view.all("workloads") if granted(each)]
    await world.fleet.kueue.evict(dict(item), "Preempted", "Preempted by another workload")


async def delete_class(world: World) -> None:
    await world.fleet.remove(DEVICE_CLASSES, "", "workload.neuron.aws.com")


async def forbid_nodes(world: World) -> None:
    """An administrator lowers the limit of the namespace, which ends nothing."""
    limit = {"annotations": {"neuron.aws.com/max-reserved-nodes": "0"}}
    await world.fleet.patch(NAMESPACES, "", USERS, {"metadata": limit})


async def delete_pods_of_tests(world: World) -> None:
    for pod in world.fleet.view.all("pods"):
        if pod["metadata"]["namespace"] == TESTS:
            await world.fleet.remove(PODS, TESTS, pod["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Case:
    """What the controller sees `first`, and what it does not see; `control` is what makes it act.

    None: the kind is a reason for nothing that cannot be taken back, so there is no control.
    """

    begin: Callable[[Schedule], Awaitable[World]]
    first: Act
    unseen: Act
    control: Act | None


def job_set(pods: Obj, runs: bool) -> Obj:
    inner = {"parallelism": 4, "completions": 4, "template": pods}
    return {"suspend": not runs, "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": inner}}]}


SPECS: Final[Mapping[str, Callable[[Obj, bool], Obj]]] = {
    "Job": lambda pods, runs: {"suspend": not runs, "parallelism": 4, "template": pods},
    "JobSet": job_set,
    "LeaderWorkerSet": lambda pods, runs: {
        "replicas": int(runs),
        "leaderWorkerTemplate": {"size": 4, "workerTemplate": pods},
    },
    "StatefulSet": lambda pods, runs: {"replicas": 4 if runs else 0, "template": pods},
}
JOB_CASES: Final = {
    kind.resource.plural: Case(
        of_kind(kind.name, SPECS[kind.name]),
        change_of(kind.name, SPECS[kind.name], runs=False),
        change_of(kind.name, SPECS[kind.name], runs=True),
        end_pods,
    )
    for kind in KINDS
}
CASES: Final[Mapping[str, Case]] = {
    "nodes": Case(with_pods, lose_node, return_node, nothing),
    "resourceslices": Case(with_pods, break_links, mend_links, nothing),
    "resourceclaims": Case(without_pods, nothing, start_pods, nothing),
    "neuronultraservers": Case(with_pods, nothing, delete_template, None),
    "neuronultraserverworkloads": Case(with_quota, nothing, delete_workload, delete_workload),
    "resourceclaimtemplates": Case(with_pods, nothing, delete_template, None),
    "deviceclasses": Case(with_pods, nothing, delete_class, None),
    "namespaces": Case(with_pods, nothing, forbid_nodes, None),
    "workloads": Case(with_quota, nothing, evict_by_kueue, evict_by_kueue),
    "neuronultraserverqualifications": Case(with_results, nothing, ask_again, delete_qualification),
    "pods": Case(with_results, nothing, delete_pods_of_tests, None),
    **JOB_CASES,
}


def play(case: Case, story: Callable[[World], Awaitable[None]]) -> None:
    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        await story(await case.begin(schedule))

    assert run(1, drive=drive, actors=ACTORS).violation == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plural", CASES)
def test_silence_of_a_watch_ends_nothing(plural: str) -> None:
    case = CASES[plural]

    async def story(world: World) -> None:
        await case.first(world)
        await world.fleet.sleep(3.0)
        before = world.cannot_be_taken_back()
        [leader] = [replica for replica in world.fleet.replicas if replica.leads]
        assert leader.line is not None
        assert leader.line.silence(plural) == 1
        await case.unseen(world)
        await world.fleet.sleep(SILENT_S)
        assert world.cannot_be_taken_back() == before

    play(case, story)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plural", [plural for plural, case in CASES.items() if case.control])
def test_what_is_seen_has_its_effect(plural: str) -> None:
    """The control."""
    case = CASES[plural]

    async def story(world: World) -> None:
        await case.first(world)
        await world.fleet.sleep(3.0)
        before = world.cannot_be_taken_back()
        assert case.control is not None
        await case.control(world)
        await world.fleet.sleep(LONG_S)
        assert world.cannot_be_taken_back() != before

    play(case, story)


def test_each_watch_of_the_controller_has_a_case() -> None:
    async def story(world: World) -> None:
        [leader] = [replica for replica in world.fleet.replicas if replica.leads]
        assert leader.controller is not None
        caches = leader.controller._caches
        assert caches is not None
        assert CASES.keys() == caches.by_name.keys() | caches.others.keys()

    play(CASES["nodes"], story)


async def stay_ahead(schedule: Schedule) -> str:
    """The API server's clock is ahead, and stays so: then it is the time."""
    for line in schedule.fleet.lines:
        line.date_ahead_s = 2 * doubts.DAY_S
    return "the time has passed"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "step", [doubts.jump_of_the_server, doubts.jump_of_a_machine, doubts.next_leader_is_ahead, stay_ahead]
)
def test_clock_that_jumps_ends_no_reservation(step: Callable[[Schedule], Awaitable[str | None]]) -> None:
    """The control is a server whose clock stays ahead."""

    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        made = await fleet.submit("held", 4, 1, ttlSecondsUnused=int(doubts.DAY_S))
        assert made is not None
        world = World(schedule, made)
        await allocated(world)
        assert await step(schedule) is not None
        await fleet.sleep(1.0)
        other = await fleet.submit("other", 4, 1)  # so that the controller plans
        assert other is not None
        await fleet.sleep(SILENT_S)
        assert world.has_expired == (step is stay_ahead)

    outcome = run(1, drive=drive, actors={"clocks"})
    assert bool(outcome.violation) == (step is stay_ahead), outcome.violation  # the law of the fleet, too
