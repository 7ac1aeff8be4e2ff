"""Why a workload does not run: what its pods wait for, each cause once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from neuron_dra.ask.read.pod_views import PodPlace, PodView
from neuron_dra.ask.read.views import WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Finding, Report
from neuron_dra.ask.why import answer, podless, queue
from neuron_dra.ask.why.contention import deployment_of
from neuron_dra.ask.world import unseen
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
    pods = []
    for pod in world.snapshot.all("Pod"):
        if PodPlace.of(pod).metadata.namespace == namespace and _belongs(pod, kind, name):
            pods.append(pod)
    return pods


def _belongs(pod: Wire, kind: str, name: str) -> bool:
    meta = PodView.of(pod).metadata
    if any(meta.labels.get(label) == name for label in LABELS.get(kind, ())):
        return True
    if kind == "Deployment":
        return deployment_of(pod) == name
    return any(owner.name == name for owner in meta.owners(kind))


def report(world: World, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a workload; None if neither it, nor pods of it, nor Events about it were read."""
    subject = f"{kind} {namespace or 'default'}/{name}"
    pods = pods_of(world, kind, name, namespace)
    waits = _reservation(world, subject, kind, name, namespace)
    if waits is not None:
        count = (f"it has {words.count(len(pods), 'pod')}",)
        return replace(waits, notes=(*waits.notes, *count))
    refused = queue.refusal(world, subject, kind, name, namespace)
    if not pods:
        return refused or podless.report(world, subject, kind, name, namespace)
    groups: dict[tuple[str, str], list[tuple[Wire, Report]]] = defaultdict(list)
    fine = 0
    for pod, pod_report in _reports(world, pods):
        if pod_report.fine:
            fine += 1
        else:
            first_cause = pod_report.findings[0].text if pod_report.findings else ""
            groups[pod_report.state, first_cause].append((pod, pod_report))
    if not groups:
        not_seen = tuple(filter(None, [unseen.note(world.snapshot)]))
        return Report(subject, f"has {words.count(len(pods), 'pod')}, and none waits", notes=not_seen, fine=True)
    if refused is not None:
        return refused
    ordered = sorted(groups.values(), key=len, reverse=True)
    largest_group = ordered[0]
    _, largest_report = largest_group[0]
    state, *other_states = (_state(group) for group in ordered)
    findings = list(largest_report.findings[:1])
    for text, group in zip(other_states, ordered[1:], strict=True):
        _, group_report = group[0]
        cause = group_report.findings[0] if group_report.findings else Finding("Unknown", "unknown")
        findings.append(replace(cause, text=f"{text}: {cause.text}"))
    pod_names = words.listed((pod["metadata"]["name"] for pod, _ in largest_group), 6)
    notes = [f"pods: {pod_names}"]
    if fine:
        notes.append(f"{words.count(fine, 'other pod')} {'runs or has' if fine == 1 else 'run or have'} ended")
    return Report(subject, state, tuple(findings), (*notes, *largest_report.notes))


def _reservation(world: World, subject: str, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about a job that waits for its own reservation; None if that is not its problem."""
    reserved = queue.of_job(world, kind, name, namespace)
    if reserved is None:
        return None
    reservation_report = answer.of(world, queue.RESERVATION, reserved)
    if reservation_report.fine or WorkloadView.of(reserved).status.state == "Allocated":
        return None  # its pods show what is wrong
    return replace(reservation_report, subject=f"{subject}, by its {reservation_report.subject}")


def _state(group: Sequence[tuple[Wire, Report]]) -> str:
    """Return how many pods are in a state, as in "3 pods wait for a node"."""
    state = group[0][1].state
    if len(group) > 1:
        state = state.replace("waits ", "wait ", 1).replace("does not", "do not", 1)
        state = state.replace("is being", "are being", 1).replace("has ", "have ", 1)
    return f"{words.count(len(group), 'pod')} {state}"


def _reports(world: World, pods: Sequence[Wire]) -> list[tuple[Wire, Report]]:
    """Return a report for each pod; pods that wait with equal demands have the same one."""
    report_by_demand: dict[bytes, Report] = {}
    reports = []
    for pod in pods:
        pod_view = PodView.of(pod)
        has_claims = bool(pod_view.status.resource_claim_statuses)
        if pod_view.spec.node_name or pod_view.metadata.deletion_timestamp:
            reports.append((pod, answer.of(world, "Pod", pod)))
            continue
        key = msgspec.json.encode((pod_view.status.phase, has_claims, pod["spec"]))
        if key not in report_by_demand:
            report_by_demand[key] = answer.of(world, "Pod", pod)
        reports.append((pod, report_by_demand[key]))
    return reports
