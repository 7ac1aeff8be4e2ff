"""Actors that are tenants: excessive requests, contested names, and requests for others' devices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_WORKLOADS
from tests.support.fleet.fleet import NAMESPACES
from tests.support.fleet.mix import Actor
from tests.support.fleet.pods import plain_template
from tests.support.fleet.settled import MOST_REFUSED_S
from tests.support.fleet.user_steps import end_job, start_job
from tests.support.fleet.view import place, state, template_name

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

SHARED: Final = "shared-rct"  # a template name that several workloads request
BURST: Final = "burst"  # names begin with it
ROGUE: Final = "rogue-node"  # a foreign template with the DeviceClass of reserved devices
LIMIT: Final = "neuron.aws.com/max-reserved-nodes"
WORKLOAD_CLASS: Final = f"workload.{names.DRIVER}"


async def request_too_much(schedule: Schedule) -> str | None:
    """A user requests a serverCount beyond any fleet."""
    rng, fleet = schedule.rng, schedule.fleet
    schedule.made += 1
    name, size = f"typo{schedule.made}", rng.choice((1, 2, 4))
    count = rng.choice((len(fleet.nodes) // size + 1, 100, 1000))
    made = await fleet.submit(name, size, count, "NoOp", "", schedule.namespace())
    if made is None:
        return None
    if rng.random() < 0.5:
        await fleet.sleep(700.0)  # longer than the starvation threshold
    return f"create workload {name}: {count} x {size}, more than there is"


async def grow_beyond_the_fleet(schedule: Schedule) -> str | None:
    """A user makes a workload larger than the fleet, or corrects it."""
    workload = schedule.workload()
    if workload is None:
        return None
    meta, spec, nodes = workload["metadata"], workload["spec"], len(schedule.fleet.nodes)
    wanted = 1000 if spec["serverCount"] * spec["topologySize"] <= nodes else 1
    place = meta["namespace"], meta["name"]
    await schedule.fleet.patch(NEURON_WORKLOADS, *place, {"spec": {"serverCount": wanted}})
    job = schedule.job_of(workload)
    if job is not None and wanted == 1:
        job.replicas = int(spec["topologySize"])
    schedule.fleet.resized(meta["uid"], wanted)
    return f"resize workload {meta['name']}: {spec['serverCount']} -> {wanted}"


async def request_whole_fleet(schedule: Schedule) -> str | None:
    """A user requests the whole fleet."""
    schedule.made += 1
    name, size = f"giant{schedule.made}", schedule.rng.choice((1, 2, 4))
    count = len(schedule.fleet.nodes) // size
    made = await schedule.fleet.submit(name, size, count, "NoOp", "", schedule.namespace())
    return f"create workload {name}: {count} x {size}, all there is" if made else None


async def submit_many(schedule: Schedule) -> str | None:
    """A user creates many different workloads at once, more than there are nodes for."""
    rng, fleet, namespace = schedule.rng, schedule.fleet, schedule.namespace()
    if any(each["metadata"]["name"].startswith(BURST) for each in fleet.workloads()):
        return await delete_many(schedule)
    number = rng.randint(12, 30)
    for _ in range(number):
        schedule.made += 1
        size = rng.choice((1, 2, 4))
        count = rng.randint(1, len(fleet.nodes) // size)
        strategy = rng.choice(("NoOp", "RestartAll", "MigrateAffected"))
        await fleet.submit(f"{BURST}{schedule.made}", size, count, strategy, "", namespace)
    return f"create {number} workloads at once in {namespace}"


async def delete_many(schedule: Schedule) -> str | None:
    """A user deletes those at once, all or most of them."""
    fleet, left = schedule.fleet, schedule.rng.choice((0, 0, 3))
    found = [each for each in fleet.workloads() if each["metadata"]["name"].startswith(BURST)]
    for workload in found[left:]:
        await fleet.remove(NEURON_WORKLOADS, *place(workload))
    return f"delete {len(found[left:])} workloads at once" if found[left:] else None


async def wait_long(schedule: Schedule) -> str | None:
    """Wait for as long as large workloads wait, or delay others."""
    seconds = schedule.rng.choice((700.0, 1300.0, 2500.0))
    await schedule.fleet.sleep(seconds)
    return f"{seconds:g} s pass"


async def change_spec(schedule: Schedule) -> str | None:
    """A user changes fields that are mutable until nodes are reserved."""
    found = [
        each
        for each in schedule.fleet.workloads()
        if not each.get("status") or state(each) == "Pending"  # the CRD's rule, which the embedded server does not have
    ]
    if not found:
        return None
    workload = schedule.rng.choice(found)
    meta, spec = workload["metadata"], workload["spec"]
    size = schedule.rng.choice([each for each in (1, 2, 4) if each != spec["topologySize"]])
    change: Obj = {"topologySize": size}
    if schedule.rng.random() < 0.3:
        change["resourceClaimTemplate"] = {"name": f"{meta['name']}-other"}
    # Only if the object is unchanged, as the CRD's rule requires.
    guard = {"resourceVersion": meta["resourceVersion"]}
    place = meta["namespace"], meta["name"]
    await schedule.fleet.patch(NEURON_WORKLOADS, *place, {"metadata": guard, "spec": change})
    job = schedule.job_of(workload)
    if job is not None:
        job.replicas = size * int(spec["serverCount"])
        renamed = change.get("resourceClaimTemplate")
        if renamed is not None:
            job.template = renamed["name"]
            for pod in schedule.fleet.pods.of_job(job):  # they keep the old name
                await schedule.fleet.pods.delete(pod)
    return f"change the spec of workload {meta['name']}: topologySize {spec['topologySize']} -> {size}"


async def create_and_change(schedule: Schedule) -> str | None:
    """A user creates a workload, and changes its topologySize before it has a status."""
    schedule.made += 1
    name = f"c{schedule.made}"
    made = await schedule.fleet.submit(name, 2, 1, "NoOp", "", schedule.namespace())
    if made is None:
        return None
    schedule.fleet.start_job(made, 4)
    await schedule.fleet.sleep(schedule.rng.uniform(0.0, 0.2))
    found = next((w for w in schedule.fleet.workloads() if w["metadata"]["uid"] == made["metadata"]["uid"]), made)
    if found.get("status") and state(found) != "Pending":
        return f"create workload {name}: 1 x 2"
    guard = {"resourceVersion": found["metadata"]["resourceVersion"]}
    place = made["metadata"]["namespace"], name
    await schedule.fleet.patch(NEURON_WORKLOADS, *place, {"metadata": guard, "spec": {"topologySize": 4}})
    return f"create workload {name}: 1 x 2, and change its topologySize to 4"


async def share_a_template_name(schedule: Schedule) -> str | None:
    """Two workloads request one template name, mostly at once, and mostly a new one."""
    rng, namespace, did = schedule.rng, schedule.namespace(), []
    template = SHARED if rng.random() < 0.3 else f"{SHARED}-{schedule.made}"
    for _ in range(2):
        schedule.made += 1
        name, size = f"s{schedule.made}", rng.choice((1, 1, 2))
        if await schedule.fleet.submit(name, size, 1, "NoOp", template, namespace):
            did.append(f"{name} (1 x {size})")
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.3, 2.0)))
    return f"create workloads with the template name {template} in {namespace}: {', '.join(did)}"


async def replace_template(schedule: Schedule) -> str | None:
    """A user replaces a workload's template by another one."""
    workload = schedule.workload()
    if workload is None or schedule.foreign:
        return None
    place = workload["metadata"]["namespace"], template_name(workload)
    await schedule.fleet.remove(CLAIM_TEMPLATES, *place)
    await schedule.fleet.admin.create(CLAIM_TEMPLATES, place[0], {**plain_template(), "metadata": {"name": place[1]}})
    schedule.foreign.add(place)
    schedule.fleet.taken_templates.add("/".join(place))
    return f"somebody replaces the template {place[0]}/{place[1]} of workload {workload['metadata']['name']}"


async def begin_rogues(schedule: Schedule) -> None:
    """Each namespace has a template for devices that are reserved for others; no policy rejects it."""
    for namespace in schedule.fleet.namespaces:
        await schedule.fleet.admin.create(CLAIM_TEMPLATES, namespace, rogue_template())


async def start_rogue(schedule: Schedule) -> str | None:
    """Create pods that request reserved devices of any workload."""
    job = start_job(schedule, "rogue", ROGUE)
    return f"start {job.replicas} pods {job.name} that request reserved devices"


async def end_rogue(schedule: Schedule) -> str | None:
    """They go again."""
    job = end_job(schedule, ROGUE)
    return None if job is None else f"end rogue pods {job.name}"


async def end_rogues(schedule: Schedule) -> None:
    """Delete them after they had time to be rejected for too long."""
    await schedule.fleet.sleep(MOST_REFUSED_S + 30.0)
    await schedule.fleet.settle("before the rogues go")
    for job in schedule.fleet.pods.jobs.values():
        if job.template == ROGUE:
            job.replicas = 0


async def set_limit(schedule: Schedule) -> str | None:
    """The administrator sets the limit of a namespace, or removes it."""
    namespace = schedule.namespace()
    limit = schedule.rng.choice((None, "0", "1", "2", "4", "6"))
    await schedule.fleet.patch(NAMESPACES, "", namespace, {"metadata": {"annotations": {LIMIT: limit}}})
    schedule.fleet.safety.limited(namespace, None if limit is None else int(limit))
    schedule.fleet.limits[namespace] = limit
    return f"namespace {namespace} may reserve {limit or 'any number of'} nodes"


async def lift_limits(schedule: Schedule) -> None:
    """Remove all limits."""
    for namespace, limit in schedule.fleet.limits.items():
        if limit is not None:
            await schedule.fleet.patch(NAMESPACES, "", namespace, {"metadata": {"annotations": {LIMIT: None}}})
        schedule.fleet.safety.limited(namespace, None)
    schedule.fleet.limits.clear()


def rogue_template() -> Obj:
    """Return a template for one whole node that is reserved for any workload."""
    expression = f"device.attributes['{names.DRIVER}'].resourceType == 'neuron_node'"
    request = {
        "deviceClassName": WORKLOAD_CLASS,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": ROGUE},
        "spec": {"spec": {"devices": {"requests": [{"name": "neuron", "exactly": request}]}}},
    }


ACTORS: Final[dict[str, Actor]] = {
    "tenants": Actor("workloads, templates and pods are in three namespaces instead of one"),
    "impossible": Actor(
        "workloads that request more nodes than exist, immediately or by growing",
        {request_too_much: 4, grow_beyond_the_fleet: 2, wait_long: 1},
        issue="13.1",
    ),
    "giants": Actor(
        "workloads that request the whole fleet, and hours of waiting for it",
        {request_whole_fleet: 4, wait_long: 2},
        issue="13.1",
    ),
    "bursts": Actor(
        "users create a dozen workloads or more together, and delete them together",
        {submit_many: 2, delete_many: 3},
        issue="30",
    ),
    "spec-changes": Actor(
        "topologySize and the template's name change while the CRD allows it",
        {create_and_change: 4, change_spec: 4},
        issue="13.6",
    ),
    "template-names": Actor(
        "workloads share a template name, and foreign templates replace a workload's",
        {share_a_template_name: 6, replace_template: 2},
        issue="13.7",
    ),
    "rogues": Actor(
        "pods in any namespace whose claims have the class of reserved devices, without a policy that rejects them",
        {start_rogue: 9, end_rogue: 2},
        begin_rogues,
        end_rogues,
        issue="13.2, 13.12",
    ),
    "limits": Actor(
        "namespaces have a limit of nodes, which changes",
        {set_limit: 5},
        heal=lift_limits,
        issue="13.15",
    ),
}
