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
    found = Manifests(raw=everything)
    runtimes = [each for each in everything if each["kind"] in RUNTIMES]
    ignored: dict[str, int] = {}
    for item in everything:
        kind, meta = str(item["kind"]), item["metadata"]
        where = "" if kind in CLUSTER_SCOPED else meta.get("namespace") or namespace
        if kind in KEPT or _is_gang(item):
            found.objects.append({**item, "metadata": {**meta, **({"namespace": where} if where else {})}})
        elif kind == "Pod":
            found.pods.append(_pod(item, meta["name"], where, f"Pod {meta['name']}"))
        elif kind == "DaemonSet":
            found.daemons.append(_pod(_spec(item).get("template"), meta["name"], where, f"DaemonSet {meta['name']}"))
        elif (made := _made(item, runtimes)) is not None:
            for name, template in made:
                found.pods.append(_pod(template, name, where, f"{kind} {meta['name']}"))
                if len(found.pods) > MOST_PODS:
                    raise SettingsError(f"{kind} {meta['name']}: more than {MOST_PODS} pods")
            found.notes += operators.notes(item, runtimes)
        elif kind == "NeuronUltraServerWorkload":
            found.workloads.append({**item, "metadata": {**meta, "namespace": where}})
        elif kind in RUNTIMES:
            continue
        elif kind == "PodTemplate" or _has_template(item):
            found.notes.append(f"not counted: {kind} {meta['name']}, which has a pod template")
        else:
            ignored[kind] = ignored.get(kind, 0) + 1
    if ignored:
        found.notes.append("not relevant here: " + ", ".join(f"{number} {kind}" for kind, number in ignored.items()))
    return found


def _is_gang(item: Wire) -> bool:
    """Return True for a PodGroup of Kubernetes itself, whose pods are placed together or not at all."""
    return item["kind"] == "PodGroup" and str(item.get("apiVersion", "")).startswith("scheduling.k8s.io/")


def _has_template(value: Any, depth: int = 8) -> bool:
    """Return True if a pod's spec is somewhere in an object, as in the workloads of operators that are not known."""
    if isinstance(value, list):
        return depth > 0 and any(_has_template(each, depth - 1) for each in value)
    if not isinstance(value, dict):
        return False
    spec = value.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        return True
    return depth > 0 and any(_has_template(each, depth - 1) for each in value.values())


def _made(item: Wire, runtimes: Sequence[Wire]) -> Iterable[tuple[str, Wire]] | None:
    """Return name and template of each pod of a workload, or None if this is no known one."""
    groups = operators.pods(item, runtimes)
    if groups is not None:
        return (pod for name, number, template in groups for pod in _numbered(item, template, number, name))
    if item["kind"] in _WORKLOADS:
        return _WORKLOADS[item["kind"]](item)
    return None


def _spec(item: Wire) -> Wire:
    """Return the spec of a workload, which may be missing."""
    spec = item.get("spec") or {}
    if not isinstance(spec, dict):
        raise SettingsError(f"{item['kind']} {item['metadata']['name']}: spec is {spec!r}: it must be an object")
    return spec


def _pod(source: Any, name: str, namespace: str, owner: str) -> Obj:
    spec = source.get("spec") if isinstance(source, dict) else None
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise SettingsError(f"{owner}: it has no pod spec with containers")
    meta = source.get("metadata") or {}
    if not isinstance(meta, dict):
        raise SettingsError(f"{owner}: the metadata of its pods is {meta!r}: it must be an object")
    metadata = {"name": name, "namespace": namespace, "uid": f"simulated-{namespace}-{name}"}
    past = {NODE_NAME: str(spec["nodeName"])} if spec.get("nodeName") else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": meta.get("labels") or {}, "annotations": {"owner": owner, **past}},
        "spec": {key: value for key, value in spec.items() if key != "nodeName"},
        "status": {"phase": "Pending"},
    }


def _numbered(item: Wire, template: Any, number: Any, owner: str) -> Iterable[tuple[str, Wire]]:
    if not isinstance(template, dict):
        raise SettingsError(f"{item['kind']} {item['metadata']['name']}: it has no pod template")
    if not isinstance(number, int) or isinstance(number, bool):
        raise SettingsError(f"{item['kind']} {item['metadata']['name']}: {number!r} is no number of pods")
    if number > MOST_PODS:
        raise SettingsError(f"{item['kind']} {item['metadata']['name']}: more than {MOST_PODS} pods")
    return ((f"{owner}-{each}", template) for each in range(number))


def _replicas(item: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(item)
    number = spec.get("replicas")
    return _numbered(item, spec.get("template"), 1 if number is None else number, item["metadata"]["name"])


def _job(item: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(item)
    parallel, all_of_it = spec.get("parallelism"), spec.get("completions")
    number = 1 if parallel is None else parallel
    if isinstance(all_of_it, int) and isinstance(number, int):
        number = min(number, all_of_it)
    return _numbered(item, spec.get("template"), number, item["metadata"]["name"])


def _cron_job(item: Wire) -> Iterable[tuple[str, Wire]]:
    template = _spec(item).get("jobTemplate")
    if not isinstance(template, dict):
        raise SettingsError(f"CronJob {item['metadata']['name']}: it has no jobTemplate")
    return _job({**template, "kind": "Job", "metadata": {"name": item["metadata"]["name"]}})


def _scaled_job(item: Wire) -> Iterable[tuple[str, Wire]]:
    """Return the pods of one job: KEDA creates as many jobs as its triggers ask for."""
    target = _spec(item).get("jobTargetRef")
    if not isinstance(target, dict):
        raise SettingsError(f"ScaledJob {item['metadata']['name']}: it has no jobTargetRef")
    return _job({"spec": target, "kind": "Job", "metadata": {"name": item["metadata"]["name"]}})


def _job_set(item: Wire) -> Iterable[tuple[str, Wire]]:
    entries = _spec(item).get("replicatedJobs") or []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict):
            raise SettingsError(f"JobSet {item['metadata']['name']}: {entry!r} is no replicated job")
        replicas = entry.get("replicas")
        name = f"{item['metadata']['name']}-{entry.get('name')}"
        jobs = _numbered(item, entry.get("template"), 1 if replicas is None else replicas, name)
        for owner, template in jobs:
            yield from _job({**template, "kind": "Job", "metadata": {"name": owner}})


def _leader_workers(item: Wire) -> Iterable[tuple[str, Wire]]:
    spec = _spec(item)
    inner = spec.get("leaderWorkerTemplate") or {}
    if not isinstance(inner, dict):
        raise SettingsError(f"LeaderWorkerSet {item['metadata']['name']}: {inner!r} is no leaderWorkerTemplate")
    replicas, size = (1 if each is None else each for each in (spec.get("replicas"), inner.get("size")))
    worker = inner.get("workerTemplate")
    for group in range(replicas if isinstance(replicas, int) else 0):
        owner = f"{item['metadata']['name']}-{group}"
        yield owner, inner.get("leaderTemplate") or worker or {}
        for number, (_, template) in enumerate(_numbered(item, worker, size, owner), start=1):
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
