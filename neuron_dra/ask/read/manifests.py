"""The pods and other objects that manifests lead to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.ask.read import operators
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.errors import SettingsError

NODE_NAME: Final = "neuron.aws.com/spec.nodeName"
"""An annotation of pods: the node that their manifest names, past the scheduler."""
SIMULATED: Final = "simulated-"
"""The beginning of the UIDs of pods that a simulation made from manifests."""
MOST_PODS: Final = 100_000
CLUSTER_SCOPED: Final = ("DeviceClass", "DeviceTaintRule", "ResourceSlice", "Node", "Namespace")
KEPT: Final = (*CLUSTER_SCOPED, "ResourceClaim", "ResourceClaimTemplate", "ResourceQuota")
RUNTIMES: Final = ("TrainingRuntime", "ClusterTrainingRuntime")
"""Kinds of Kubeflow that TrainJobs name; they have no pods of their own."""


@dataclass(slots=True)
class Manifests:
    """`pods` in the order of the manifests, `objects` that they use, and remarks about what is not simulated.

    `daemons` are pods of DaemonSets, of which each node gets one; `workloads` reserve UltraServers. `raw` are the
    objects as they were read.
    """

    pods: list[Obj] = field(default_factory=list)
    objects: list[Obj] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    daemons: list[Obj] = field(default_factory=list)
    raw: list[Wire] = field(default_factory=list)
    workloads: list[Obj] = field(default_factory=list)


def expand(items: Iterable[Wire], namespace: str) -> Manifests:
    """Return the pods and objects of manifests; `namespace` is that of objects that name none."""
    everything = list(items)
    expanded = Manifests(raw=everything)
    runtimes = [raw_object for raw_object in everything if raw_object["kind"] in RUNTIMES]
    ignored: dict[str, int] = {}
    for raw_object in everything:
        kind, meta = str(raw_object["kind"]), raw_object["metadata"]
        where = "" if kind in CLUSTER_SCOPED else meta.get("namespace") or namespace
        if kind in KEPT or _is_gang(raw_object):
            expanded.objects.append({**raw_object, "metadata": {**meta, **({"namespace": where} if where else {})}})
        elif kind == "Pod":
            expanded.pods.append(_pod(raw_object, meta["name"], where, f"Pod {meta['name']}"))
        elif kind == "DaemonSet":
            template = _spec(raw_object).get("template")
            expanded.daemons.append(_pod(template, meta["name"], where, f"DaemonSet {meta['name']}"))
        elif (pod_templates := _pods_of_workload(raw_object, runtimes)) is not None:
            for name, template in pod_templates:
                expanded.pods.append(_pod(template, name, where, f"{kind} {meta['name']}"))
                if len(expanded.pods) > MOST_PODS:
                    raise SettingsError(f"{kind} {meta['name']}: more than {MOST_PODS} pods")
            expanded.notes += operators.notes(raw_object, runtimes)
        elif kind == "NeuronUltraServerWorkload":
            expanded.workloads.append({**raw_object, "metadata": {**meta, "namespace": where}})
        elif kind in RUNTIMES:
            continue
        elif kind == "PodTemplate" or _has_template(raw_object):
            expanded.notes.append(f"not counted: {kind} {meta['name']}, which has a pod template")
        else:
            ignored[kind] = ignored.get(kind, 0) + 1
    if ignored:
        expanded.notes.append("not relevant here: " + ", ".join(f"{number} {kind}" for kind, number in ignored.items()))
    return expanded


def _is_gang(raw_object: Wire) -> bool:
    """Return True for a PodGroup of Kubernetes itself, whose pods are placed together or not at all."""
    return raw_object["kind"] == "PodGroup" and str(raw_object.get("apiVersion", "")).startswith("scheduling.k8s.io/")


def _has_template(value: Any, depth: int = 8) -> bool:
    """Return True if a pod's spec is somewhere in an object, as in the workloads of operators that are not known."""
    if isinstance(value, list):
        return depth > 0 and any(_has_template(part, depth - 1) for part in value)
    if not isinstance(value, dict):
        return False
    spec = value.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        return True
    return depth > 0 and any(_has_template(part, depth - 1) for part in value.values())


def _pods_of_workload(workload: Wire, runtimes: Sequence[Wire]) -> Iterable[tuple[str, Wire]] | None:
    """Return name and template of each pod of a workload, or None if this is no known one."""
    groups = operators.pods(workload, runtimes)
    if groups is not None:
        return (pod for name, number, template in groups for pod in _numbered(workload, template, number, name))
    if workload["kind"] in _WORKLOADS:
        return _WORKLOADS[workload["kind"]](workload)
    return None


def _spec(workload: Wire) -> Wire:
    """Return the spec of a workload, which may be missing."""
    spec = workload.get("spec") or {}
    if not isinstance(spec, dict):
        name = f"{workload['kind']} {workload['metadata']['name']}"
        raise SettingsError(f"{name}: spec is {spec!r}: it must be an object")
    return spec


def _pod(source: Any, name: str, namespace: str, owner: str) -> Obj:
    spec = source.get("spec") if isinstance(source, dict) else None
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise SettingsError(f"{owner}: it has no pod spec with containers")
    meta = source.get("metadata") or {}
    if not isinstance(meta, dict):
        raise SettingsError(f"{owner}: the metadata of its pods is {meta!r}: it must be an object")
    metadata = {"name": name, "namespace": namespace, "uid": f"{SIMULATED}{namespace}-{name}"}
    past = {NODE_NAME: str(spec["nodeName"])} if spec.get("nodeName") else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": meta.get("labels") or {}, "annotations": {"owner": owner, **past}},
        "spec": {key: value for key, value in spec.items() if key != "nodeName"},
        "status": {"phase": "Pending"},
    }


def _numbered(workload: Wire, template: Any, number: Any, owner: str) -> Iterable[tuple[str, Wire]]:
    if not isinstance(template, dict):
        raise SettingsError(f"{workload['kind']} {workload['metadata']['name']}: it has no pod template")
    if not isinstance(number, int) or isinstance(number, bool):
        raise SettingsError(f"{workload['kind']} {workload['metadata']['name']}: {number!r} is no number of pods")
    if number > MOST_PODS:
        raise SettingsError(f"{workload['kind']} {workload['metadata']['name']}: more than {MOST_PODS} pods")
    return ((f"{owner}-{index}", template) for index in range(number))


def _replicas(workload: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(workload)
    number = spec.get("replicas")
    return _numbered(workload, spec.get("template"), 1 if number is None else number, workload["metadata"]["name"])


def _job(job: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(job)
    parallel, all_of_it = spec.get("parallelism"), spec.get("completions")
    number = 1 if parallel is None else parallel
    if isinstance(all_of_it, int) and isinstance(number, int):
        number = min(number, all_of_it)
    return _numbered(job, spec.get("template"), number, job["metadata"]["name"])


def _cron_job(cron_job: Wire) -> Iterable[tuple[str, Wire]]:
    template = _spec(cron_job).get("jobTemplate")
    if not isinstance(template, dict):
        raise SettingsError(f"CronJob {cron_job['metadata']['name']}: it has no jobTemplate")
    return _job({**template, "kind": "Job", "metadata": {"name": cron_job["metadata"]["name"]}})


def _scaled_job(scaled_job: Wire) -> Iterable[tuple[str, Wire]]:
    """Return the pods of one job: KEDA creates as many jobs as its triggers ask for."""
    target = _spec(scaled_job).get("jobTargetRef")
    if not isinstance(target, dict):
        raise SettingsError(f"ScaledJob {scaled_job['metadata']['name']}: it has no jobTargetRef")
    return _job({"spec": target, "kind": "Job", "metadata": {"name": scaled_job["metadata"]["name"]}})


def _job_set(job_set: Wire) -> Iterable[tuple[str, Wire]]:
    replicated_jobs = _spec(job_set).get("replicatedJobs") or []
    for replicated_job in replicated_jobs if isinstance(replicated_jobs, list) else [replicated_jobs]:
        if not isinstance(replicated_job, dict):
            raise SettingsError(f"JobSet {job_set['metadata']['name']}: {replicated_job!r} is no replicated job")
        replicas = replicated_job.get("replicas")
        name = f"{job_set['metadata']['name']}-{replicated_job.get('name')}"
        jobs = _numbered(job_set, replicated_job.get("template"), 1 if replicas is None else replicas, name)
        for owner, template in jobs:
            yield from _job({**template, "kind": "Job", "metadata": {"name": owner}})


def _leader_workers(leader_worker_set: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(leader_worker_set)
    inner = spec.get("leaderWorkerTemplate") or {}
    if not isinstance(inner, dict):
        name = leader_worker_set["metadata"]["name"]
        raise SettingsError(f"LeaderWorkerSet {name}: {inner!r} is no leaderWorkerTemplate")
    replicas, size = (1 if count is None else count for count in (spec.get("replicas"), inner.get("size")))
    worker = inner.get("workerTemplate")
    for group in range(replicas if isinstance(replicas, int) else 0):
        owner = f"{leader_worker_set['metadata']['name']}-{group}"
        yield owner, inner.get("leaderTemplate") or worker or {}
        for number, (_, template) in enumerate(_numbered(leader_worker_set, worker, size, owner), start=1):
            if number < size:
                yield f"{owner}-{number}", template


_WORKLOADS: Final[Mapping[str, Callable[[Wire], Iterable[tuple[str, Wire]]]]] = {
    "Deployment": _replicas,
    "ReplicaSet": _replicas,
    "StatefulSet": _replicas,
    "Job": _job,
    "JobSet": _job_set,
    "LeaderWorkerSet": _leader_workers,
    "CronJob": _cron_job,
    "ScaledJob": _scaled_job,
}
