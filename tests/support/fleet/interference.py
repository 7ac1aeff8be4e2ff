"""Non-interference: a tenant's requests in its own namespace do not delay a victim's workload beyond a limit.

The tenant has a node limit and a quota of devices, which leave room for the victim wherever the tenant's nodes are; it
makes any requests within and beyond them. It does nothing that a tenant cannot do, such as deleting others' objects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_WORKLOADS
from tests.support.fleet import qualifications
from tests.support.fleet.fleet import (
    NAMESPACES,
    TENANTS,
    USERS,
    Fleet,
)
from tests.support.fleet.kueue import QUEUES
from tests.support.fleet.pods import PLAIN, Job, plain_template
from tests.support.fleet.run import Outcome, run
from tests.support.fleet.safety import Violation
from tests.support.fleet.schedule import Schedule
from tests.support.fleet.tenants import LIMIT, ROGUE
from tests.support.fleet.view import condition, parsed, state

ACTORS: Final = frozenset({"tenants", "rogues"})
BESIDE: Final = ACTORS | {"qualifications", "queues", "jobs"}
"""What goes on beside the plans is on, too."""
TENANT: Final = TENANTS[0]
STEPS: Final = 8
PAUSES: Final = ((0.0, 0.05, 0.3, 2.0, 20.0, 700.0), (6, 6, 6, 6, 2, 3))
GIANT_S: Final = 1800.0
"""The time for which one large workload may delay others: the controller's --starvation-limit."""
HOLDS_BACK_S: Final = 600.0
"""How long a workload has waited when it begins to: the controller's --starvation-threshold."""
NEAR_S: Final = 10.0  # a node that the tenant's pod has just taken causes another choice
LOOK_S: Final = 0.1
SIZES: Final = (1, 2, 4)
MINUTE_S: Final = 60
ROTATE_S: Final = 600


class Tenant:
    """One tenant: it may reserve `limit` nodes, and run plain pods on `plain` others.

    Its limit is `enforced` by the controller, or it respects the limit except for impossible requests.
    """

    def __init__(self, schedule: Schedule, limit: int, plain: int, *, enforced: bool) -> None:
        self.schedule = schedule
        self.fleet = schedule.fleet
        self.rng = schedule.rng
        self.limit = limit
        self.plain = plain
        self.enforced = enforced
        self.left = limit
        self.made = 0
        self.has_a_giant = False  # since the victim came

    async def begin(self) -> None:
        """Have the limit."""
        if not self.enforced:
            return
        annotations = {LIMIT: str(self.limit)}
        await self.fleet.patch(NAMESPACES, "", TENANT, {"metadata": {"annotations": annotations}})

    def look(self) -> None:
        """Record whether it waits for a valid request, which may delay others for a time."""
        for each in self._workloads():
            spec = each["spec"]
            nodes = int(spec["topologySize"]) * int(spec["serverCount"])
            self.has_a_giant |= nodes <= self.limit and state(each) != "Allocated"

    async def act(self) -> str | None:
        """Do something."""
        choices: tuple[tuple[Callable[[], Awaitable[str | None]], int], ...] = (
            (self.ask, 4),
            (self.request_too_much, 3),
            (self.grow, 2),
            (self.delete, 1),
            (self.change, 1),
            (self.run_plain, 2),
            (self.run_rogue, 3),
            (self.take_names, 1),
        )
        step = self.rng.choices([each for each, _ in choices], [weight for _, weight in choices])[0]
        try:
            return await step()
        except ApiError as err:
            return f"tried to {step.__name__}: {err}"

    def _name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    async def ask(self) -> str | None:
        """Request existing nodes, within its limit or beyond it, with pods."""
        size = self.rng.choice((1, 2, 4))
        count = self.rng.randint(1, len(self.fleet.nodes) // size)
        if not self.enforced and size * count > self.left:
            return None
        self.left -= size * count
        name = self._name("t")
        made = await self.fleet.submit(name, size, count, namespace=TENANT)
        assert made is not None
        if self.rng.random() < 0.5:
            self.fleet.start_job(made)
        return f"asks for {count} x {size}"

    async def request_too_much(self) -> str | None:
        """Request more nodes than exist."""
        size = self.rng.choice((1, 2, 4))
        count = self.rng.choice((len(self.fleet.nodes) // size + 1, 100, 1024))
        await self.fleet.submit(self._name("typo"), size, count, namespace=TENANT)
        return f"asks for {count} x {size}"

    def _workloads(self) -> list[Obj]:
        return [each for each in self.fleet.workloads() if each["metadata"]["namespace"] == TENANT]

    def _workload(self) -> Obj | None:
        found = self._workloads()
        return self.rng.choice(found) if found else None

    async def grow(self) -> str | None:
        """Let a workload grow beyond the fleet."""
        workload = self._workload()
        if workload is None:
            return None
        name = workload["metadata"]["name"]
        await self.fleet.patch(NEURON_WORKLOADS, TENANT, name, {"spec": {"serverCount": 1024}})
        return f"has {name} grow to 1024"

    async def delete(self) -> str | None:
        """Delete a workload."""
        workload = self._workload()
        if workload is None:
            return None
        await self.fleet.remove(NEURON_WORKLOADS, TENANT, workload["metadata"]["name"])
        return f"deletes {workload['metadata']['name']}"

    async def change(self) -> str | None:
        """Change the size of one that is Pending."""
        workload = self._workload()
        if workload is None or state(workload) != "Pending":
            return None
        if not self.enforced and int(workload["spec"]["serverCount"]) <= len(self.fleet.nodes):
            return None
        meta, size = workload["metadata"], self.rng.choice((1, 2, 4))
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"topologySize": size}}
        await self.fleet.patch(NEURON_WORKLOADS, TENANT, meta["name"], patch)
        return f"changes the size of {meta['name']} to {size}"

    async def run_plain(self) -> str | None:
        """Run a pod on a whole node."""
        if not self.plain:
            return None
        job = Job(self._name("plain"), TENANT, PLAIN, 1)
        self.plain -= 1
        self.fleet.pods.jobs[job.name] = job
        return "runs a plain pod"

    async def run_rogue(self) -> str | None:
        """Run pods that request devices reserved for others."""
        job = Job(self._name("rogue"), TENANT, ROGUE, self.rng.randint(1, 3))
        self.fleet.pods.jobs[job.name] = job
        return f"runs {job.replicas} rogue pods"

    async def take_names(self) -> str | None:
        """Create a workload, or a template, with the name of the victim's."""
        if self.rng.random() < 0.5:
            await self.fleet.submit("victim", 1, 1024, namespace=TENANT)
            return "has a workload that is called victim"
        body = {**plain_template(), "metadata": {"name": "victim"}}
        await self.fleet.admin.create(CLAIM_TEMPLATES, TENANT, body)
        return "has a template that is called victim"


async def drive(fleet: Fleet, steps: int) -> None:
    """Allocate the victim's workload alone, then beside the tenant. Raises Violation."""
    schedule = Schedule(fleet)
    await schedule.begin()
    limit, plain = fleet.rng.choice(((0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (1, 2)))
    tenant = Tenant(schedule, limit, plain, enforced=fleet.rng.random() < 0.5)
    await tenant.begin()
    # Each of the tenant's nodes may be in a different group.
    room = {size: len(fleet.nodes) // size - limit - plain for size in (1, 2, 4)}
    size = fleet.rng.choice([size for size, groups in room.items() if groups > 0])
    count = fleet.rng.randint(1, room[size])
    alone_s = await allocated(fleet, size, count, None, 60.0)
    await fleet.remove(NEURON_WORKLOADS, USERS, "victim")
    await fleet.settle("the victim was here alone")
    before = fleet.rng.randint(0, steps)
    for number in range(before):
        await _step(fleet, tenant, number)
    most_s = 2 * alone_s + GIANT_S + NEAR_S
    took_s = await allocated(fleet, size, count, tenant, most_s)
    fleet.trace(f"the victim was allocated after {took_s:.2f} s, and alone after {alone_s:.2f} s")
    if took_s > (most_s if tenant.has_a_giant else most_s - GIANT_S):
        raise Violation(f"the victim was allocated after {took_s:.0f} s or not at all, and alone after {alone_s:.2f} s")
    for number in range(before, steps):
        await _step(fleet, tenant, number)
    await fleet.sleep(60.0)


async def _step(fleet: Fleet, tenant: Tenant, number: int) -> None:
    did = await tenant.act()
    if did is not None:
        fleet.trace(f"STEP {number}: the tenant {did}")
    await fleet.sleep(fleet.rng.choices(*PAUSES)[0])


async def allocated(fleet: Fleet, size: int, count: int, tenant: Tenant | None, most_s: float) -> float:
    """Submit the victim's workload; return how long it took to be Allocated, or a little more than `most_s`."""
    made = await fleet.submit("victim", size, count)
    assert made is not None
    began = fleet.clock.elapsed
    while fleet.clock.elapsed - began <= most_s:
        found = fleet.view.workloads().get(made["metadata"]["uid"])
        if found is not None and state(found) == "Allocated":
            break
        await fleet.sleep(LOOK_S if fleet.clock.elapsed - began < 2 * NEAR_S else NEAR_S)
        if tenant is not None:
            tenant.look()
            if fleet.rng.random() < 0.2:
                with contextlib.suppress(ApiError):
                    await tenant.act()
    return fleet.clock.elapsed - began


async def rotate(fleet: Fleet, steps: int) -> None:
    """A tenant always waits for the whole fleet, with a new request each time. Raises Violation.

    One node is taken, so that it never gets it. The victim's jobs need a node each, for a minute.
    """
    schedule = Schedule(fleet)
    await schedule.begin()
    await fleet.submit("holder", 1, 1)
    await fleet.settle("one node is taken")
    held: list[float] = []  # when a job of the victim was seen to be held back
    for number in range(steps):
        await fleet.submit(f"giant{number}", 1, len(fleet.nodes), namespace=TENANT)
        await fleet.submit(f"job{number}", 1, 1)
        for each in fleet.workloads():
            meta = each["metadata"]
            age_s = (fleet.clock.now() - parsed(meta["creationTimestamp"])).total_seconds()
            if (meta["namespace"] == TENANT and age_s > GIANT_S) or _has_run(each):
                await fleet.remove(NEURON_WORKLOADS, meta["namespace"], meta["name"])
        for _ in range(ROTATE_S // MINUTE_S):
            await fleet.sleep(MINUTE_S)
            jobs = (each for each in fleet.workloads() if each["metadata"]["namespace"] == USERS)
            if any(condition(each, "Ready").get("reason") == "WaitsForOlder" for each in jobs):
                held.append(fleet.clock.elapsed)
    fleet.trace(f"jobs were held back for {len(held)} min of {steps * ROTATE_S // MINUTE_S}")
    most = max(sum(first <= each < first + 2 * GIANT_S for each in held) for first in held)
    if most > GIANT_S // MINUTE_S + 1:
        raise Violation(f"jobs were held back for {most} min of {2 * GIANT_S / MINUTE_S:.0f}")


async def flood(fleet: Fleet, steps: int) -> None:
    """A tenant creates `steps` different workloads at once, all beyond its limit. Raises Violation.

    The victim has its nodes as soon as without them: they wait for no node, so they hold nobody back.
    """
    schedule = Schedule(fleet)
    await schedule.begin()
    await Tenant(schedule, 0, 0, enforced=True).begin()
    await _beside_requests(fleet, [(SIZES[number % 3], 1 + number % 1024) for number in range(steps)], held_back_s=0.0)


async def flood_beyond_the_fleet(fleet: Fleet, steps: int) -> None:
    """A tenant without a limit creates `steps` workloads at once, each for more nodes than there are. Raises Violation.

    The victim has its nodes as soon as without them.
    """
    await Schedule(fleet).begin()
    most = len(fleet.nodes)
    requests = [(SIZES[number % 3], most + 1 + number % (1024 - most)) for number in range(steps)]
    await _beside_requests(fleet, requests, held_back_s=0.0)


async def flood_beside_all(fleet: Fleet, steps: int) -> None:
    """As `flood`, while free UltraServers are tested, and half of the requests name a queue. Raises Violation."""
    schedule = Schedule(fleet)
    await schedule.begin()
    await qualifications.begin(schedule, topologySize=4, maxGroups=2)
    await Tenant(schedule, 0, 0, enforced=True).begin()
    requests = [(SIZES[number % 3], 1 + number % 1024) for number in range(steps)]
    await _beside_requests(fleet, requests, held_back_s=0.0, queue=QUEUES[0])


async def flood_of_giants(fleet: Fleet, steps: int) -> None:
    """A tenant creates `steps` workloads at once, each for all nodes that there are. Raises Violation.

    One node is taken, so that they wait, and the victim comes when they hold others back. They do so as long as one of
    them may, and not one after another.
    """
    await Schedule(fleet).begin()
    await fleet.submit("holder", 1, 1)
    await fleet.settle("one node is taken")
    requests = [(1, len(fleet.nodes))] * steps
    await _beside_requests(fleet, requests, held_back_s=GIANT_S, waited_s=HOLDS_BACK_S + NEAR_S)


async def _beside_requests(
    fleet: Fleet, requests: list[tuple[int, int]], held_back_s: float, waited_s: float = 0.0, queue: str = ""
) -> None:
    """Allocate the victim alone, then beside these (size, count) of the tenant. Raises Violation.

    The requests have waited for `waited_s` when it comes, and may hold it back for `held_back_s`. Every second one has
    the `queue`.
    """
    alone_s = await allocated(fleet, 1, 4, None, 60.0)
    await fleet.remove(NEURON_WORKLOADS, USERS, "victim")
    await fleet.settle("the victim was here alone")
    creations = (
        fleet.submit(f"flood{number}", size, count, namespace=TENANT, queue=queue if number % 2 else "")
        for number, (size, count) in enumerate(requests)
    )
    await asyncio.gather(*creations)
    await fleet.sleep(waited_s)
    most_s = 2 * alone_s + held_back_s + NEAR_S
    took_s = await allocated(fleet, 1, 4, None, most_s)
    waiting = sum(each["metadata"]["namespace"] == TENANT for each in fleet.workloads())
    fleet.trace(f"beside {waiting} requests, allocated after {took_s:.2f} s, and alone after {alone_s:.2f} s")
    if took_s > most_s:
        raise Violation(f"the victim was allocated after {took_s:.0f} s or not at all, and alone after {alone_s:.2f} s")


def _has_run(workload: Obj) -> bool:
    """Return True if it is a job of the victim that has its node."""
    return workload["metadata"]["name"].startswith("job") and state(workload) == "Allocated"


def beside_a_victim(seed: int, *, ultraservers: int = 2, steps: int = STEPS, **more: Any) -> Outcome:
    """Run one seed with one controller, which never stops: leader election of two would take a third of it."""
    return run(seed, ultraservers=ultraservers, steps=steps, drive=drive, actors=ACTORS, replicas=1, **more)
