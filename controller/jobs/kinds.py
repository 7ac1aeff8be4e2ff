"""The kinds of job that can reserve UltraServers: one row each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.jobs.model import Job, PodSet
from neuron_dra.core import names
from neuron_dra.core.job_wish import ANNOTATION, QUEUE_ANNOTATION
from neuron_dra.core.wire import Wire
from neuron_dra.kube.requests import JOB_SETS, JOBS, LEADER_WORKER_SETS, STATEFUL_SETS, Resource
from neuron_dra.planner.observed.model import QUEUE_LABEL

Sets = Iterator[tuple[int, Wire]]
"""How many pods run at the same time, and their template."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    - `pods`: returns the sets of pods of a spec.
    - `ends`: the conditions that say that it has ended, each with words for it.
    """

    name: str
    resource: Resource
    pods: Callable[[Wire], Sets]
    ends: Mapping[str, str]

    def job(self, item: Wire) -> Job | None:
        """Return an object of this kind as a job; None if it does not ask for UltraServers."""
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        annotations = meta.get("annotations") or {}
        if ANNOTATION not in annotations:
            return None
        return Job(
            api_version=f"{self.resource.group}/{self.resource.version}",
            kind=self.name,
            namespace=str(meta.get("namespace", "")),
            name=meta["name"],
            uid=str(meta.get("uid", "")),
            wish=str(annotations[ANNOTATION]),
            over=self._end(meta, status) or ("is suspended" if spec.get("suspend") else ""),
            ended=bool(self._end(meta, status)),
            queue=str((meta.get("labels") or {}).get(QUEUE_LABEL) or ""),
            asked_queue=str(annotations.get(QUEUE_ANNOTATION) or ""),
            managed_by=_foreign(spec),
            pods=tuple(_pod_set(count, template) for count, template in self.pods(spec)),
        )

    def _end(self, meta: Wire, status: Wire) -> str:
        """Return how it ended, empty if it did not."""
        if meta.get("deletionTimestamp"):
            return "is being deleted"
        for condition in status.get("conditions") or []:
            if condition.get("status") == "True" and condition.get("type") in self.ends:
                return self.ends[condition["type"]]
        return ""


OWN_CONTROLLERS: Final = ("kubernetes.io/job-controller", "jobset.sigs.k8s.io/jobset-controller")


def _foreign(spec: Wire) -> str:
    """Return which other program runs a job, such as that of MultiKueue; empty if none does."""
    manager = str(spec.get("managedBy") or "")
    return "" if manager in OWN_CONTROLLERS else manager


def _pod_set(count: int, template: Wire) -> PodSet:
    spec = template.get("spec") or {}
    template_names = [str(claim.get("resourceClaimTemplateName") or "") for claim in spec.get("resourceClaims") or []]
    selector = spec.get("nodeSelector") or {}
    return PodSet(
        max(0, count),
        tuple(template_name for template_name in dict.fromkeys(template_names) if template_name),
        str(selector.get(names.INSTANCE_TYPE_LABEL) or ""),
    )


def _number(value: object) -> int:
    """Return a number of replicas, by default 1."""
    return value if isinstance(value, int) else 1


def _job(spec: Wire) -> Sets:
    count = _number(spec.get("parallelism"))
    completions = spec.get("completions")
    if isinstance(completions, int):
        count = min(count, completions)
    yield count, spec.get("template") or {}


def _job_set(spec: Wire) -> Sets:
    for replicated_job in spec.get("replicatedJobs") or []:
        inner = (replicated_job.get("template") or {}).get("spec") or {}
        for count, template in _job(inner):
            yield _number(replicated_job.get("replicas")) * count, template


def _leader_workers(spec: Wire) -> Sets:
    groups = _number(spec.get("replicas"))
    inner = spec.get("leaderWorkerTemplate") or {}
    workers = inner.get("workerTemplate") or {}
    yield groups, inner.get("leaderTemplate") or workers
    yield groups * (_number(inner.get("size")) - 1), workers


def _replicas(spec: Wire) -> Sets:
    yield _number(spec.get("replicas")), spec.get("template") or {}


KINDS: Final = (
    Kind("Job", JOBS, _job, {"Complete": "is complete", "Failed": "has failed"}),
    Kind("JobSet", JOB_SETS, _job_set, {"Completed": "is complete", "Failed": "has failed"}),
    Kind("LeaderWorkerSet", LEADER_WORKER_SETS, _leader_workers, {}),
    Kind("StatefulSet", STATEFUL_SETS, _replicas, {}),
)


# The fields that are decoded of these objects. All else of them never becomes a Python object.


class _JobPart(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A part of an object. Absent fields stay absent."""


class _JobMeta(_JobPart):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Claim(_JobPart):
    resource_claim_template_name: str | None = None


class _PodSpec(_JobPart):
    node_selector: dict[str, str] | None = None
    resource_claims: list[_Claim] | None = None


class _PodTemplate(_JobPart):
    spec: _PodSpec | None = None


class _InnerSpec(_JobPart):
    parallelism: int | None = None
    completions: int | None = None
    template: _PodTemplate | None = None


class _InnerJob(_JobPart):
    spec: _InnerSpec | None = None


class _Replicated(_JobPart):
    replicas: int | None = None
    template: _InnerJob | None = None


class _LeaderWorker(_JobPart):
    size: int | None = None
    leader_template: _PodTemplate | None = None
    worker_template: _PodTemplate | None = None


class _JobSpec(_JobPart):
    suspend: bool | None = None
    managed_by: str | None = None
    parallelism: int | None = None
    completions: int | None = None
    replicas: int | None = None
    template: _PodTemplate | None = None
    replicated_jobs: list[_Replicated] | None = None
    leader_worker_template: _LeaderWorker | None = None


class _JobCondition(_JobPart):
    type: str = ""
    status: str = ""


class _JobStatus(_JobPart):
    conditions: list[_JobCondition] | None = None


class JobFields(_JobPart):
    """What is decoded of a job of any kind."""

    metadata: _JobMeta
    spec: _JobSpec | None = None
    status: _JobStatus | None = None


def read(raw: bytes) -> dict[str, Any]:
    """Return these fields of an object that was read alone. Raises one of kube.objects.MALFORMED."""
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(raw, type=JobFields))
    return fields
