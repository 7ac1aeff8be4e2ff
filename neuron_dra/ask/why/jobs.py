"""Why a workload does not run: what its pods wait for, each cause once; its pods alone show it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Finding, Report
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.why import queue
from neuron_dra.ask.why import workload as why_workload
from neuron_dra.ask.why.contention import deployment_of
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "Job": ("batch.kubernetes.io/job-name", "job-name"),
    "JobSet": ("jobset.sigs.k8s.io/jobset-name",),
    "LeaderWorkerSet": ("leaderworkerset.sigs.k8s.io/name",),
    "RayCluster": ("ray.io/cluster",),
    "TrainJob": ("jobset.sigs.k8s.io/jobset-name",),
    "MPIJob": ("training.kubeflow.org/job-name",),
    "PyTorchJob": ("training.kubeflow.org/job-name",),
}
"""Labels of pods with the name of their workload, by its kind."""
KINDS: Final[Mapping[str, str]] = {
    "deploy": "Deployment",
    "deployment": "Deployment",
    "rs": "ReplicaSet",
    "replicaset": "ReplicaSet",
    "sts": "StatefulSet",
    "statefulset": "StatefulSet",
    "ds": "DaemonSet",
    "daemonset": "DaemonSet",
    "job": "Job",
    "jobset": "JobSet",
    "lws": "LeaderWorkerSet",
    "leaderworkerset": "LeaderWorkerSet",
    "raycluster": "RayCluster",
    "trainjob": "TrainJob",
    "mpijob": "MPIJob",
    "pytorchjob": "PyTorchJob",
}
"""The words for kinds of workloads in TYPE/NAME."""


def pods_of(world: World, kind: str, name: str, namespace: str) -> list[Wire]:
    """Return the pods of a workload, by labels, owner or, for a Deployment, the name of the ReplicaSet."""
    here = (pod for pod in world.snapshot.all("Pod") if (pod["metadata"].get("namespace") or "") == namespace)
    return [pod for pod in here if _belongs(pod, kind, name)]


def _belongs(pod: Wire, kind: str, name: str) -> bool:
    labels = pod["metadata"].get("labels") or {}
    if any(labels.get(each) == name for each in LABELS.get(kind, ())):
        return True
    if kind == "Deployment":
        return deployment_of(pod) == name
    owners = pod["metadata"].get("ownerReferences") or ()
    return any((each.get("kind"), each.get("name")) == (kind, name) for each in owners)


def report(world: World, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a workload; None if neither pods nor Events of it are known."""
    subject = f"{kind} {namespace or 'default'}/{name}"
    pods = pods_of(world, kind, name, namespace)
    waits = _reservation(world, subject, kind, name, namespace)
    if waits is not None:
        count = (f"it has {words.count(len(pods), 'pod')}",)
        return replace(waits, notes=(*waits.notes, *count))
    refused = queue.refusal(world, subject, kind, name, namespace)
    if not pods:
        return refused or _without_pods(world, subject, kind, name, namespace)
    groups: dict[tuple[str, str], list[tuple[Wire, Report]]] = defaultdict(list)
    fine = 0
    for pod, found in _reports(world, pods):
        if found.fine:
            fine += 1
        else:
            first = found.findings[0].text if found.findings else ""
            groups[found.state, first].append((pod, found))
    if not groups:
        return Report(subject, f"has {words.count(len(pods), 'pod')}, and none waits", fine=True)
    if refused is not None:
        return refused
    ordered = sorted(groups.values(), key=len, reverse=True)
    state, *rest = (_state(each) for each in ordered)
    findings = list(ordered[0][0][1].findings[:1])
    for text, group in zip(rest, ordered[1:], strict=True):
        own = group[0][1].findings[:1] or (Finding("Unknown", "unknown"),)
        findings.append(replace(own[0], text=f"{text}: {own[0].text}"))
    named = words.listed((pod["metadata"]["name"] for pod, _ in ordered[0]), 6)
    notes = (f"pods: {named}", *((f"{words.count(fine, 'pod')} of it run or have ended",) if fine else ()))
    return Report(subject, state, tuple(findings), (*notes, *ordered[0][0][1].notes))


def _reservation(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a job that waits for its own reservation; None if that is not its problem."""
    reserved = queue.of_job(world, kind, name, namespace)
    if reserved is None:
        return None
    found = why_workload.report(world, reserved)
    if found.fine or reserved.get("status", {}).get("state") == "Allocated":
        return None  # its pods show what is wrong
    return replace(found, subject=f"{subject}, by its {found.subject}")


def _state(group: Sequence[tuple[Wire, Report]]) -> str:
    """Return how many pods are in a state, as in "3 pods wait for a node"."""
    state = group[0][1].state
    if len(group) > 1:
        state = state.replace("waits ", "wait ", 1).replace("does not", "do not", 1)
        state = state.replace("is being", "are being", 1).replace("has ", "have ", 1)
    return f"{words.count(len(group), 'pod')} {state}"


def _reports(world: World, pods: Sequence[Wire]) -> list[tuple[Wire, Report]]:
    """Return a report for each pod; pods that wait with equal demands have the same one."""
    known: dict[bytes, Report] = {}
    found = []
    for pod in pods:
        made = bool((pod.get("status") or {}).get("resourceClaimStatuses"))
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            found.append((pod, why_pod.report(world, pod)))
            continue
        key = msgspec.json.encode(((pod.get("status") or {}).get("phase"), made, pod["spec"]))
        if key not in known:
            known[key] = why_pod.report(world, pod)
        found.append((pod, known[key]))
    return found


def _without_pods(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a workload that has no pods, from the Events about it and its ReplicaSets."""
    for event in world.snapshot.all("Event"):
        about = event.get("involvedObject") or {}
        own = about.get("kind") == kind and about.get("name") == name
        of_set = kind == "Deployment" and about.get("kind") == "ReplicaSet"
        own = own or (of_set and str(about.get("name")).rpartition("-")[0] == name)
        if own and (about.get("namespace") or "") == namespace and event.get("reason") == "FailedCreate":
            return Report(subject, "has no pods", (Finding("PodsNotCreated", str(event.get("message"))),))
    return None
