"""Claims that are reserved for PodGroups: they do not name the pods, and only the end of the group frees them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from neuron_dra.core.wire import Obj, Wire
from neuron_dra.errors import ApiError
from neuron_dra.kube.requests import RESOURCE_CLAIMS
from tests.support.fleet.mix import Actor
from tests.support.fleet.view import group_of, groups_in

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

LOOK_S: Final = 1.0
ENDS_S: Final = 30.0  # from the end of a group's pods on a node to that of its claim there


async def form_group(schedule: Schedule) -> str | None:
    """A user makes the pods of a workload a group: they are created anew, as members of it."""
    fleet = schedule.fleet
    jobs = [job for job in fleet.pods.jobs.values() if job.name in fleet.jobs_of and job.replicas and not job.group]
    if not jobs:
        return None
    schedule.made += 1
    job = schedule.rng.choice(jobs)
    job.group = f"group{schedule.made}"
    for pod in fleet.pods.of_job(job):
        await fleet.pods.delete(pod)
    return f"the pods of {job.name} are PodGroup {job.group}"


async def begin(schedule: Schedule) -> None:
    """Kubernetes reserves claims for groups, and users delete groups whose pods have ended."""
    schedule.fleet.spawn(_follow(schedule))


async def _follow(schedule: Schedule) -> None:
    since: dict[str, float] = {}  # by UID of the claim: when its group's pods were gone
    while True:
        await asyncio.sleep(LOOK_S)
        users = {name: pod for pod in schedule.fleet.view.all("pods") for name in _claims_of(pod)}
        for claim in list(schedule.fleet.view.all("resourceclaims")):
            meta = claim["metadata"]
            pod = users.get(f"{meta['namespace']}/{meta['name']}")
            if pod is not None:
                since.pop(meta["uid"], None)
            with contextlib.suppress(ApiError):
                if pod is not None and group_of(pod) and (claim.get("status") or {}).get("allocation"):
                    await _reserve_for_group(schedule, claim, group_of(pod))
                elif pod is None and groups_in(claim):
                    now = asyncio.get_running_loop().time()
                    if now >= since.setdefault(meta["uid"], now) + ENDS_S:
                        await _end_group(schedule, claim)


def _claims_of(pod: Wire) -> list[str]:
    """Return namespace/name of a pod's claims."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return [f"{pod['metadata']['namespace']}/{each['resourceClaimName']}" for each in made]


async def _reserve_for_group(schedule: Schedule, claim: Wire, group: str) -> None:
    """Reserve a claim for a group, which then is what keeps it, and not the pod. Raises ApiError."""
    meta, fleet = claim["metadata"], schedule.fleet
    if group not in groups_in(claim):
        holder: Obj = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": f"uid-{group}"}
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"reservedFor": [holder]}}
        await fleet.patch(RESOURCE_CLAIMS, meta["namespace"], meta["name"], patch, "status")
        fleet.trace(f"claim {meta['name']} is reserved for PodGroup {group}")
    if meta.get("ownerReferences"):
        no_owner: Obj = {"metadata": {"uid": meta["uid"], "ownerReferences": None}}
        await fleet.patch(RESOURCE_CLAIMS, meta["namespace"], meta["name"], no_owner)


async def _end_group(schedule: Schedule, claim: Wire) -> None:
    """A user deletes a group, and Kubernetes frees its claim. Raises ApiError."""
    meta, fleet = claim["metadata"], schedule.fleet
    fleet.trace(f"the group of claim {meta['name']} is deleted")
    await fleet.remove(RESOURCE_CLAIMS, meta["namespace"], meta["name"])
    patch = {"metadata": {"uid": meta["uid"]}, "status": {"reservedFor": None}}
    await fleet.patch(RESOURCE_CLAIMS, meta["namespace"], meta["name"], patch, "status")


ACTORS: Final[dict[str, Actor]] = {
    "group-claims": Actor(
        "claims are reserved for PodGroups, which keep them until a user deletes the group",
        {form_group: 6},
        begin=begin,
        embedded=True,
        issue="35",
    ),
}
