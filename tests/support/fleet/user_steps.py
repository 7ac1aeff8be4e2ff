"""Steps of users in every run: workloads, pods, claims, templates and budgets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NEURON_WORKLOADS, RESOURCE_CLAIMS
from tests.support.fleet.fleet import BUDGETS, USERS
from tests.support.fleet.pods import PLAIN, Job, plain_template
from tests.support.fleet.view import place, template_name

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

STRATEGIES: Final = ("NoOp", "RestartAll", "MigrateAffected", "ReplaceAffected")
MOST_WORKLOADS: Final = 5


async def create(schedule: Schedule) -> str | None:
    """Somebody wants UltraServers."""
    if len(schedule.fleet.workloads()) >= MOST_WORKLOADS:
        return None
    size = schedule.rng.choice((1, 2, 2, 4, 4))
    most = max(1, len(schedule.fleet.nodes) // size)
    count = schedule.rng.randint(1, min(most, 3))
    schedule.made += 1
    name = f"w{schedule.made}" if schedule.rng.random() < 0.8 else schedule.rng.choice(("again", "anew"))
    template, namespace = schedule.rng.choice(("", f"{name}-rct")), schedule.namespace()
    made = await schedule.fleet.submit(name, size, count, schedule.rng.choice(STRATEGIES), template, namespace)
    if made is None:
        return None
    if schedule.rng.random() < 0.8:
        schedule.fleet.start_job(made)
    spec = made["spec"]
    where = f" in {namespace}" if namespace != USERS else ""
    return f"create workload {name}{where}: {count} x {size}, {spec['allocationPolicy']['failureStrategy']}"


async def resize(schedule: Schedule) -> str | None:
    """A user scales a workload."""
    workload = schedule.workload()
    if workload is None:
        return None
    name, size, count = (
        workload["metadata"]["name"],
        workload["spec"]["topologySize"],
        workload["spec"]["serverCount"],
    )
    wanted = schedule.rng.choice(
        [n for n in (1, 2, 3, 4) if n != count and n * size <= len(schedule.fleet.nodes)] or [count]
    )
    if wanted == count:
        return None
    await schedule.fleet.patch(NEURON_WORKLOADS, *place(workload), {"spec": {"serverCount": wanted}})
    job = schedule.job_of(workload)
    if job is not None:
        job.replicas = wanted * size
    schedule.fleet.resized(workload["metadata"]["uid"], wanted)
    return f"resize workload {name}: {count} -> {wanted}"


async def delete(schedule: Schedule) -> str | None:
    """A user deletes a workload, and may create it again at once."""
    workload = schedule.workload()
    if workload is None:
        return None
    meta, spec = workload["metadata"], workload["spec"]
    await schedule.fleet.remove(NEURON_WORKLOADS, *place(workload))
    job = schedule.job_of(workload)
    if job is not None and schedule.rng.random() < 0.5:
        job.replicas = 0
    return f"delete workload {meta['name']} ({spec['serverCount']} x {spec['topologySize']})"


async def start_pods(schedule: Schedule) -> str | None:
    """The pods of a workload come later."""
    workload = schedule.workload()
    if workload is None or schedule.job_of(workload) is not None:
        return None
    job = schedule.fleet.start_job(workload)
    return f"start {job.replicas} pods of {workload['metadata']['name']}"


async def plain_pods(schedule: Schedule) -> str | None:
    """A user runs a pod on a whole node, without a workload."""
    job = start_job(schedule, "plain", PLAIN)
    return f"start {job.replicas} plain pods {job.name}"


async def end_plain_pods(schedule: Schedule) -> str | None:
    """Plain pods end."""
    job = end_job(schedule, PLAIN)
    return None if job is None else f"end plain pods {job.name}"


def start_job(schedule: Schedule, prefix: str, template: str) -> Job:
    """Start one or two pods with a claim template, in a namespace of a user, and return their job."""
    schedule.made += 1
    job = Job(f"{prefix}{schedule.made}", schedule.namespace(), template, schedule.rng.randint(1, 2))
    schedule.fleet.pods.jobs[job.name] = job
    return job


def end_job(schedule: Schedule, template: str) -> Job | None:
    """End the pods of one job with this claim template, and return the job; None if there is none."""
    jobs = [job for job in schedule.fleet.pods.jobs.values() if job.template == template and job.replicas]
    if not jobs:
        return None
    job = schedule.rng.choice(jobs)
    job.replicas = 0
    return job


async def race_for_a_node(schedule: Schedule) -> str | None:
    """A plain pod and a workload compete for nodes, and the scheduler's view is old."""
    schedule.fleet.scheduler_line.lag_s = (0.0, schedule.rng.choice((0.2, 2.0, 6.0)))
    steps = [plain_pods, create]
    schedule.rng.shuffle(steps)
    first = await steps[0](schedule)
    await asyncio.sleep(schedule.rng.uniform(0.0, 1.0))
    return f"{first}, and {await steps[1](schedule)}"


async def delete_pod(schedule: Schedule) -> str | None:
    """A user deletes a pod; its owner creates another."""
    pods = schedule.fleet.view.all("pods")
    if not pods:
        return None
    pod = dict(schedule.rng.choice(pods))
    await schedule.fleet.pods.delete(pod, now=schedule.rng.random() < 0.3)
    return f"delete pod {pod['metadata']['name']}"


async def delete_template(schedule: Schedule) -> str | None:
    """A user deletes the template of a workload."""
    workload = schedule.workload()
    if workload is None:
        return None
    place = workload["metadata"]["namespace"], template_name(workload)
    if place in schedule.foreign:
        return None
    await schedule.fleet.remove(CLAIM_TEMPLATES, *place)
    return f"the template of {workload['metadata']['name']} is deleted"


async def take_template_name(schedule: Schedule) -> str | None:
    """A user creates a template with the name that a later workload requests."""
    if schedule.foreign:
        return None
    name, namespace = f"w{schedule.made + 1}", schedule.namespace()
    await schedule.fleet.admin.create(CLAIM_TEMPLATES, namespace, {**plain_template(), "metadata": {"name": name}})
    schedule.foreign.add((namespace, name))
    schedule.fleet.taken_templates.add(f"{namespace}/{name}")
    return f"somebody has a template {namespace}/{name}"


async def free_template_name(schedule: Schedule) -> str | None:
    """A user deletes the blocking template."""
    if not schedule.foreign:
        return None
    namespace, name = sorted(schedule.foreign)[0]
    await schedule.fleet.remove(CLAIM_TEMPLATES, namespace, name)
    schedule.foreign.discard((namespace, name))
    schedule.fleet.taken_templates.discard(f"{namespace}/{name}")
    return f"somebody's template {namespace}/{name} is gone"


async def force_delete_claim(schedule: Schedule) -> str | None:
    """A user deletes a claim in use, including its finalizers."""
    claims = [c for c in schedule.fleet.view.all("resourceclaims") if (c.get("status") or {}).get("allocation")]
    if not claims:
        return None
    meta = schedule.rng.choice(claims)["metadata"]
    with contextlib.suppress(ApiError):
        await schedule.fleet.patch(RESOURCE_CLAIMS, meta["namespace"], meta["name"], {"metadata": {"finalizers": None}})
    await schedule.fleet.remove(RESOURCE_CLAIMS, meta["namespace"], meta["name"])
    return f"claim {meta['name']} is deleted by force"


async def budget(schedule: Schedule) -> str | None:
    """A budget forbids all evictions until it is deleted."""
    if schedule.fleet.budgets:
        await schedule.remove_budgets()
        return "the budget is gone"
    spec = {"minAvailable": 1000, "selector": {}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "tight"}, "spec": spec}
    for namespace in schedule.fleet.namespaces:
        await schedule.fleet.admin.create(BUDGETS, namespace, body)
    schedule.fleet.budgets = True
    return "a budget forbids evictions"
