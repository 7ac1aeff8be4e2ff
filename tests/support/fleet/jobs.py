"""The actor `jobs`: users run Jobs that reserve their own nodes, and the law that such a reservation has a reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from neuron_dra.core.wire import Obj, Wire
from neuron_dra.kube.requests import NEURON_WORKLOADS
from tests.support.fleet.fleet import JOBS, NAMESPACES
from tests.support.fleet.job_laws import ASKS, MADE_FOR, made_for, over
from tests.support.fleet.known import STRANGERS
from tests.support.fleet.kueue import QUEUES
from tests.support.fleet.mix import Actor
from tests.support.fleet.pods import Job

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

POLICY: Final = "neuron-dra-driver-jobs-reserve"
GROUP: Final = "admissionregistration.k8s.io"
MOST_JOBS: Final = 3


async def allow(schedule: Schedule) -> None:
    """An administrator installs the policy, and lets the jobs of all namespaces reserve."""
    api = schedule.fleet.api
    assert api is not None
    for kind, plural, spec in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", {"failurePolicy": "Fail"}),
        (
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            {"policyName": POLICY, "validationActions": ["Deny"]},
        ),
    ):
        api.register(GROUP, ("v1",), kind, plural, namespaced=False)
        api.create({"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec})
    for namespace in schedule.fleet.namespaces:
        meta: Obj = {"labels": {"neuron.aws.com/reserve-for-jobs": "true"}}
        if schedule.fleet.limits.get(namespace) is None:
            meta["annotations"] = {"neuron.aws.com/max-reserved-nodes": "1000"}
        await schedule.fleet.patch(NAMESPACES, "", namespace, {"metadata": meta})


def _of_users(schedule: Schedule) -> list[Wire]:
    """All Jobs but forged ones, which have no pods."""
    return [each for each in schedule.fleet.view.all("jobs") if each["metadata"]["namespace"] != STRANGERS]


def _jobs(schedule: Schedule, *, suspended: bool | None = None) -> list[Wire]:
    """The Jobs that exist and have not ended."""
    found = [each for each in _of_users(schedule) if not over(each) or each["spec"].get("suspend")]
    return [each for each in found if suspended in (None, bool(each["spec"].get("suspend")))]


def _pick(schedule: Schedule, *, suspended: bool | None = None) -> Wire | None:
    found = _jobs(schedule, suspended=suspended)
    return schedule.rng.choice(found) if found else None


def _run(schedule: Schedule, job: Wire, replicas: int) -> None:
    """Keep this number of pods of a Job, as its controller does."""
    schedule.fleet.pods.jobs[job["metadata"]["name"]].replicas = replicas


async def _patch(schedule: Schedule, job: Wire, patch: Obj, part: str = "") -> None:
    await schedule.fleet.patch(JOBS, job["metadata"]["namespace"], job["metadata"]["name"], patch, part)


async def submit_job(schedule: Schedule) -> str | None:
    """A user runs a Job that asks for its nodes."""
    if len(_jobs(schedule)) >= MOST_JOBS:
        return None
    schedule.made += 1
    name, namespace, size = f"job{schedule.made}", schedule.namespace(), schedule.rng.choice((1, 2, 4))
    count = size * schedule.rng.randint(1, max(1, len(schedule.fleet.nodes) // size // 2))
    job = Job(name, namespace, f"{name}-rct", count)
    spec = job.pod()["spec"]
    spec["nodeSelector"] = {"node.kubernetes.io/instance-type": schedule.fleet.instance_type}
    strategy = schedule.rng.choice(("NoOp", "RestartAll", "MigrateAffected"))
    asks = f"topologySize={size}, failureStrategy={strategy}"
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "annotations": {ASKS: asks, **_queue(schedule)}},
        "spec": {"parallelism": count, "template": {"spec": spec}},
    }
    await schedule.fleet.admin.create(JOBS, namespace, body)
    schedule.fleet.pods.jobs[name] = job
    await schedule.fleet.sleep(0.5)  # until the observer sees it
    return f"create Job {name} in {namespace}: {count} pods, {asks}"


def _queue(schedule: Schedule) -> Obj:
    """Return the annotation of a Job whose reservation is queued, if there are queues."""
    if "queues" not in schedule.fleet.actors or schedule.rng.random() < 0.4:
        return {}
    return {"neuron.aws.com/queue": schedule.rng.choice(QUEUES)}


async def scale_job(schedule: Schedule) -> str | None:
    """A user changes the number of pods, also to one that fills no groups."""
    job = _pick(schedule, suspended=False)
    if job is None:
        return await submit_job(schedule)
    number = schedule.rng.choice((0, 1, 2, 3, 4, 8))
    await _patch(schedule, job, {"spec": {"parallelism": number}})
    _run(schedule, job, number)
    return f"scale Job {job['metadata']['name']} to {number}"


async def suspend_job(schedule: Schedule) -> str | None:
    """A user suspends a Job, whose pods are deleted then."""
    job = _pick(schedule, suspended=False)
    if job is None:
        return await submit_job(schedule)
    await _patch(schedule, job, {"spec": {"suspend": True}})
    _run(schedule, job, 0)
    return f"suspend Job {job['metadata']['name']}"


async def resume_job(schedule: Schedule) -> str | None:
    """A user resumes a Job, or suspends one for a moment."""
    job = _pick(schedule, suspended=True) or _pick(schedule)
    if job is None:
        return await submit_job(schedule)
    if not job["spec"].get("suspend"):
        await _patch(schedule, job, {"spec": {"suspend": True}})
        await asyncio.sleep(schedule.rng.uniform(0.0, 5.0))
    await _patch(schedule, job, {"spec": {"suspend": False}})
    _run(schedule, job, job["spec"]["parallelism"])
    return f"resume Job {job['metadata']['name']}"


async def end_job(schedule: Schedule) -> str | None:
    """A Job is complete or has failed."""
    job = _pick(schedule)
    if job is None:
        return await submit_job(schedule)
    _run(schedule, job, 0)
    kind = schedule.rng.choice(("Complete", "Failed"))
    await _patch(schedule, job, {"status": {"conditions": [{"type": kind, "status": "True"}]}}, "status")
    return f"Job {job['metadata']['name']} is {kind}"


async def delete_job(schedule: Schedule) -> str | None:
    """A user deletes a Job, with or without its pods."""
    found = _of_users(schedule)
    if not found:
        return await submit_job(schedule)
    job, orphans = schedule.rng.choice(found), schedule.rng.random() < 0.4
    await _delete(schedule, job, orphans=orphans)
    return f"delete Job {job['metadata']['name']}{', and leave its pods' if orphans else ''}"


async def _delete(schedule: Schedule, job: Wire, *, orphans: bool) -> None:
    meta = job["metadata"]
    made = schedule.fleet.view.find("neuronultraserverworkloads", meta["name"], meta["namespace"])
    if orphans and made is not None:
        patch = {"metadata": {"ownerReferences": None}}
        await schedule.fleet.patch(NEURON_WORKLOADS, meta["namespace"], meta["name"], patch)
    if not orphans:
        _run(schedule, job, 0)
    await schedule.fleet.remove(JOBS, meta["namespace"], meta["name"])
    await schedule.fleet.sleep(0.5)


async def end_orphans(schedule: Schedule) -> str | None:
    """The pods of Jobs that are gone end; without any, a Job is deleted and leaves its pods."""
    ended = _end_orphans(schedule)
    if ended:
        return f"the pods of {', '.join(ended)} end"
    job = _pick(schedule)
    if job is None:
        return await submit_job(schedule)
    await _delete(schedule, job, orphans=True)
    return f"delete Job {job['metadata']['name']}, and leave its pods"


def _end_orphans(schedule: Schedule) -> list[str]:
    """End the pods of Jobs that are gone, and return the Jobs' names."""
    there = {each["metadata"]["name"] for each in _of_users(schedule)}
    found = []
    for each in schedule.fleet.pods.jobs.values():
        if each.name.startswith("job") and each.replicas and each.name not in there:
            each.replicas = 0
            found.append(each.name)
    return found


async def change_annotation(schedule: Schedule) -> str | None:
    """A user changes or removes what a Job asks for."""
    job = _pick(schedule)
    if job is None:
        return await submit_job(schedule)
    asks = schedule.rng.choice(("topologySize=1", "topologySize=2, failureStrategy=NoOp", "topologySize=9", None))
    await _patch(schedule, job, {"metadata": {"annotations": {ASKS: asks}}})
    return f"Job {job['metadata']['name']} asks for {asks}"


async def forge_mark(schedule: Schedule) -> str | None:
    """A user marks a workload as made for some job."""
    workload = schedule.workload()
    if workload is None:
        return None
    job = _pick(schedule)
    mark = f"Job/{job['metadata']['name']}/{job['metadata']['uid']}" if job is not None else "Job/nobody/nothing"
    meta = workload["metadata"]
    patch = {"metadata": {"annotations": {MADE_FOR: mark}}}
    await schedule.fleet.patch(NEURON_WORKLOADS, meta["namespace"], meta["name"], patch)
    return f"workload {meta['name']} says that it was made for {mark}"


async def end_all(schedule: Schedule) -> None:
    """All Jobs are deleted, and their pods end."""
    for job in _of_users(schedule):
        await _delete(schedule, job, orphans=False)
    for workload in schedule.fleet.view.all("neuronultraserverworkloads"):  # their pods would keep forged ones
        if made_for(workload):
            for each in schedule.fleet.pods.jobs.values():
                if schedule.fleet.jobs_of.get(each.name) == workload["metadata"]["uid"]:
                    each.replicas = 0
    _end_orphans(schedule)


ACTORS: Final = {
    "jobs": Actor(
        about="Jobs that reserve their own nodes; every reservation belongs to a job or a pod, and matches the "
        "annotation of its job",
        steps={
            submit_job: 6,
            scale_job: 2,
            suspend_job: 1,
            resume_job: 2,
            end_job: 2,
            delete_job: 2,
            end_orphans: 2,
            change_annotation: 1,
            forge_mark: 1,
        },
        begin=allow,
        heal=end_all,
        embedded=True,
        issue="35",
    )
}
