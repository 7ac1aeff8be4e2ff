"""The actors `silence`, `clocks` and `forgeries`: what the controller sees is old, late, or written by others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    ENDPOINT_SLICES,
    KUEUE_WORKLOADS,
    RESOURCE_CLAIMS,
    SERVICES,
    Resource,
)
from tests.support.fleet.fleet import JOBS, NAMESPACES
from tests.support.fleet.job_laws import ASKS
from tests.support.fleet.known import STRANGERS
from tests.support.fleet.mix import Actor
from tests.support.fleet.pods import plain_template
from tests.support.fleet.view import template_name

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

SILENT_S: Final = (20.0, 100.0, 150.0)
DAY_S: Final = 86_400.0
AHEAD_S: Final = (60.0, 3_600.0, 2 * DAY_S)
MOMENT_S: Final = 1.0  # shorter than the time for which responses must agree


async def silence_watches(schedule: Schedule) -> str | None:
    """The watches of one kind, or all watches, of the leader or of a plugin die without a sign; users go on."""
    fleet, rng = schedule.fleet, schedule.rng
    lines = [replica.line for replica in fleet.replicas if replica.line is not None and replica.up]
    lines += [node.line for node in fleet.nodes.values() if node.line is not None and rng.random() < 0.2]
    if not lines:
        return None
    line = rng.choice(lines)
    plural = rng.choice(("", *sorted({watch.plural for watch in line.watches})))
    number = line.silence(plural)
    if number == 0:
        return None
    fleet.trace(f"{number} watches of {plural or 'everything'} of {line.name} are silent")
    seconds, did = rng.choice(SILENT_S), []
    for _ in range(rng.randint(1, 3)):
        did.append(await _act(schedule))
        await fleet.sleep(seconds / 3)
    return f"{line.name} did not see: {'; '.join(did)}"


async def _act(schedule: Schedule) -> str:
    """Let a user or a node act, as in any other step."""
    steps = [step for step in schedule.mix.steps if step not in ACTORS["silence"].steps]
    step = schedule.rng.choice(steps)
    try:
        return await step(schedule) or "nothing"
    except ApiError as err:
        return f"tried to {step.__name__}: {err}"


async def jump_of_the_server(schedule: Schedule) -> str | None:
    """The API server that answers is days ahead for a moment."""
    lines = [line for line in schedule.fleet.lines if not line.dead]
    for line in lines:
        line.date_ahead_s = 2 * DAY_S
    await schedule.fleet.sleep(MOMENT_S)
    for line in lines:
        line.date_ahead_s = 0.0
    return f"the API server was two days ahead for {MOMENT_S:g} s"


async def jump_of_a_machine(schedule: Schedule) -> str | None:
    """The clock of a controller's machine jumps for a moment."""
    replica = schedule.rng.choice(schedule.fleet.replicas)
    replica.ahead_s += 2 * DAY_S
    await schedule.fleet.sleep(MOMENT_S)
    replica.ahead_s -= 2 * DAY_S
    return f"the machine of {replica.name} was two days ahead for {MOMENT_S:g} s"


async def next_leader_is_ahead(schedule: Schedule) -> str | None:
    """The leader dies, and the clock of the next one is ahead."""
    fleet = schedule.fleet
    leaders = [replica for replica in fleet.replicas if replica.leads]
    if not leaders:
        return None
    others = [replica for replica in fleet.replicas if replica is not leaders[0]] or leaders
    for replica in others:
        replica.ahead_s = schedule.rng.choice(AHEAD_S)
    await leaders[0].kill()

    async def again() -> None:
        await asyncio.sleep(60.0)
        leaders[0].start()

    fleet.spawn(again())
    return f"{leaders[0].name} dies, and the machines of the others are {others[0].ahead_s:g} s ahead"


async def submit_with_a_limit(schedule: Schedule) -> str | None:
    """A user gives a reservation back if it is unused for a day."""
    schedule.made += 1
    name = f"brief{schedule.made}"
    made = await schedule.fleet.submit(name, 1, 1, "NoOp", "", schedule.namespace(), ttlSecondsUnused=int(DAY_S))
    return None if made is None else f"create workload {name}, which may be unused for a day"


async def set_clocks(schedule: Schedule) -> None:
    """All clocks are right."""
    for line in schedule.fleet.lines:
        line.date_ahead_s = 0.0
    for replica in schedule.fleet.replicas:
        replica.ahead_s = 0.0


async def open_namespace(schedule: Schedule) -> None:
    """A tenant has a namespace without anything else."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STRANGERS}}
    await schedule.fleet.ensure(NAMESPACES, "", body)


async def forge_dependents(schedule: Schedule) -> str | None:
    """A tenant forges what belongs to another tenant's workload, in its own namespace."""
    fleet, rng = schedule.fleet, schedule.rng
    workload = schedule.workload()
    if workload is None:
        return None
    meta, spec = workload["metadata"], workload["spec"]
    owner = {
        "apiVersion": rng.choice(("neuron.aws.com/v1beta1", "neuron.aws.com/v1", "v1")),
        "kind": "NeuronUltraServerWorkload",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    schedule.made += 1
    name = rng.choice((template_name(workload), meta["name"], f"aa{schedule.made}", f"zz{schedule.made}"))
    forged: dict[Resource, Obj] = {
        CLAIM_TEMPLATES: plain_template(),
        RESOURCE_CLAIMS: {"apiVersion": "resource.k8s.io/v1", "spec": plain_template()["spec"]["spec"]},
        SERVICES: {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None"}},
        ENDPOINT_SLICES: {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.9.9.9"]}],
        },
    }
    if "queues" in fleet.actors:
        is_finished = {"type": "Finished", "status": "True", "reason": "Done", "message": ""}
        forged[KUEUE_WORKLOADS] = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "spec": {"queueName": "none", "podSets": []},
            "status": {"conditions": [is_finished]},
        }
    if "jobs" in fleet.actors:
        asks = {ASKS: f"topologySize={spec['topologySize']}"}
        forged[JOBS] = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True}, "metadata": asks}
    for resource, body in forged.items():
        annotations = body.get("metadata") if resource is JOBS else None
        made = {
            "name": name,
            "namespace": STRANGERS,
            "labels": meta.get("labels") or {},
            "annotations": annotations or {},
            "ownerReferences": [owner],
        }
        await fleet.ensure(resource, STRANGERS, {**body, "metadata": made})
    return f"a stranger forges the dependents of {meta['namespace']}/{meta['name']}, with the name {name}"


async def remove_forgeries(schedule: Schedule) -> str | None:
    """The tenant deletes them: nothing of the other tenant goes with them."""
    fleet = schedule.fleet
    kinds = [CLAIM_TEMPLATES, RESOURCE_CLAIMS, SERVICES, ENDPOINT_SLICES]
    if "queues" in fleet.actors:
        kinds.append(KUEUE_WORKLOADS)
    if "jobs" in fleet.actors:
        kinds.append(JOBS)
    number = 0
    for resource in kinds:
        async for page in fleet.admin.list(resource, STRANGERS):
            for item in page.decoded(dict).objects:
                await fleet.remove(resource, STRANGERS, item["metadata"]["name"])
                number += 1
    return f"{number} forgeries are deleted" if number else None


async def end_forgeries(schedule: Schedule) -> None:
    """Nothing is forged."""
    await remove_forgeries(schedule)


ACTORS: Final[dict[str, Actor]] = {
    "silence": Actor(
        "watches of the controller and of plugins die without a sign, while users and nodes act",
        {silence_watches: 5},
        issue="4.02",
    ),
    "clocks": Actor(
        "the clocks of the API server and of machines jump, and the next leader is ahead; no workload expires early",
        {
            jump_of_the_server: 3,
            jump_of_a_machine: 2,
            next_leader_is_ahead: 2,
            submit_with_a_limit: 2,
        },
        heal=set_clocks,
        embedded=True,
        issue="4.02",
    ),
    "forgeries": Actor(
        "a tenant forges the dependents of others' workloads in its own namespace, and deletes them",
        {forge_dependents: 4, remove_forgeries: 1},
        begin=open_namespace,
        heal=end_forgeries,
        embedded=True,
        issue="4.02",
    ),
}
