"""The law of the actor `jobs`: a reservation for a job has a reason, and is as its job asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuron_dra.core.wire import Wire
from tests.support.fleet.known import Known
from tests.support.fleet.view import View, workload_uid

MADE_FOR: Final = "neuron.aws.com/made-for"
"""The annotation of the workload of a job."""
ASKS: Final = "neuron.aws.com/ultraservers"


def made_for(workload: Wire) -> str:
    return str((workload["metadata"].get("annotations") or {}).get(MADE_FOR) or "")


def over(job: Wire) -> bool:
    """Return True if a Job needs no nodes."""
    ended = any(each.get("status") == "True" for each in (job.get("status") or {}).get("conditions") or [])
    return ended or bool(job["spec"].get("suspend")) or job["spec"].get("parallelism", 1) == 0


def _size(job: Wire) -> int:
    """Return topologySize of what a Job asks for; 0 if it asks for nothing that can be."""
    asks = (job["metadata"].get("annotations") or {}).get(ASKS) or ""
    found = {f"topologySize={size}": size for size in (1, 2, 4)}.get(asks.partition(",")[0], 0)
    return found if found and job["spec"]["parallelism"] % found == 0 else 0


def problems(view: View, known: Known) -> Iterator[str]:
    """Yield a sentence for each reservation without a reason, and each Job whose reservation is not as it asks.

    Jobs reserve nothing in a namespace that may reserve any number of nodes.
    """
    jobs = {f"Job/{each['metadata']['name']}/{each['metadata']['uid']}": each for each in view.all("jobs")}
    used = {uid for claims in view.uses().values() for claim in claims if (uid := workload_uid(claim))}
    marked: dict[tuple[str, str], list[Wire]] = {}
    for workload in view.workloads().values():
        meta = workload["metadata"]
        if made_for(workload):
            marked.setdefault((meta["namespace"], made_for(workload)), []).append(workload)
    for (namespace, mark), workloads in marked.items():
        job = jobs.get(mark)
        living = job is not None and job["metadata"]["namespace"] == namespace and not over(job)
        living = living and job is not None and ASKS in (job["metadata"].get("annotations") or {})
        for workload in workloads:
            meta = workload["metadata"]
            if not living and meta["uid"] not in used and not meta.get("deletionTimestamp"):
                yield f"workload {meta['name']} is reserved for {mark}, which needs nothing, and no pod uses it"
    for mark, job in jobs.items():
        meta = job["metadata"]
        size = 0 if over(job) else _size(job)
        own = [
            each for each in marked.get((meta["namespace"], mark), []) if not each["metadata"].get("deletionTimestamp")
        ]
        taken = view.find("neuronultraserverworkloads", meta["name"], meta["namespace"])
        allowed = meta["namespace"] not in known.unlimited
        if size and allowed and not own and taken is None:
            yield f"Job {meta['name']} has no reservation"
        for workload in own if size else ():
            if workload["metadata"]["name"] != meta["name"]:
                # It only says that it was made for the job, so it goes when no pod uses it.
                if workload["metadata"]["uid"] not in used:
                    yield f"workload {workload['metadata']['name']} says that it was made for Job {meta['name']}"
                continue
            spec: Any = workload["spec"]
            number, nodes = job["spec"]["parallelism"], spec["serverCount"] * spec["topologySize"]
            may_change = allowed or nodes > number  # without a limit of its namespace, a job reserves nothing more
            if spec["topologySize"] == size and nodes != number and may_change:
                yield f"Job {meta['name']} has {number} pods, and a reservation of {nodes} nodes"
