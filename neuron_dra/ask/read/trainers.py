"""The pods of operators that put a pod together from parts: Kubeflow's TrainJob, Grove, Argo. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuron_dra.core.wire import Wire

STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
Group = tuple[str, Any, Any]
"""Equal pods: name, number and template, as the manifest has them."""


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that should be an object, else an empty one."""
    if isinstance(value, dict):
        return value
    return {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a value that should be a list of them."""
    if isinstance(value, list):
        return [member for member in value if isinstance(member, dict)]
    return []


def train_job(raw_job: Wire, runtimes: Sequence[Wire]) -> Iterator[Group]:
    """Yield the nodes of a TrainJob: the pods of its runtime, with the job's own resources and claims.

    Source: kubeflow/trainer, pkg/apis/trainer/v1alpha1. Of a runtime that is not among the manifests nothing is known:
    its pods are taken to request what the job itself does.
    """
    name, spec = raw_job["metadata"]["name"], mapping(raw_job.get("spec"))
    trainer, runtime = mapping(spec.get("trainer")), runtime_of(raw_job, runtimes)
    job = _node_job(runtime)
    template = copy.deepcopy(mapping(mapping(mapping(job.get("template")).get("spec")).get("template")))
    if not mapping(template.get("spec")).get("containers"):
        template = {"spec": {"containers": [{"name": "node"}]}}
    _override(template["spec"], trainer)
    policy = mapping(mapping(mapping(runtime).get("spec")).get("mlPolicy"))
    number = trainer.get("numNodes", policy.get("numNodes", 1))
    yield f"{name}-node-0", number, template


def runtime_of(job: Wire, runtimes: Sequence[Wire]) -> Wire | None:
    """Return the runtime that a TrainJob names, if it is among the manifests."""
    runtime_ref = mapping(mapping(job.get("spec")).get("runtimeRef"))
    kind, name = runtime_ref.get("kind") or "ClusterTrainingRuntime", runtime_ref.get("name")
    for runtime in runtimes:
        if runtime["kind"] == kind and runtime["metadata"]["name"] == name:
            return runtime
    return None


def _node_job(runtime: Wire | None) -> dict[str, Any]:
    """Return the job of a runtime that trains: the one with the trainer's label, or named node."""
    inner = mapping(mapping(mapping(runtime).get("spec")).get("template"))
    jobs = mappings(mapping(inner.get("spec")).get("replicatedJobs"))
    for job in jobs:
        labels = mapping(mapping(mapping(job.get("template")).get("metadata")).get("labels"))
        if labels.get(STEP) == "trainer":
            return job
    return next((job for job in jobs if job.get("name") == "node"), {})


def _override(spec: dict[str, Any], trainer: Mapping[str, Any]) -> None:
    """Write a TrainJob's resources and claims into the pods of its runtime."""
    containers = mappings(spec.get("containers"))
    node = next((container for container in containers if container.get("name") == "node"), containers[0])
    job_resources = mapping(trainer.get("resourcesPerNode"))
    if job_resources:
        node["resources"] = {**mapping(node.get("resources")), **job_resources}
    claims = mappings(trainer.get("resourceClaimsPerNode"))
    if claims:
        spec["resourceClaims"] = [*mappings(spec.get("resourceClaims")), *claims]
        resources = mapping(node.get("resources"))
        node["resources"] = {**resources, "claims": [{"name": claim.get("name")} for claim in claims]}


def cliques(name: str, spec: Mapping[str, Any]) -> Iterator[Group]:
    """Yield the pods of Grove's PodCliqueSet: of each clique, and as often as its set and its scaling group say."""
    template = mapping(spec.get("template"))
    sets = spec.get("replicas", 1)
    groups = mappings(template.get("podCliqueScalingGroups"))
    for clique in mappings(template.get("cliques")):
        inner = mapping(clique.get("spec"))
        number = inner.get("replicas", 1)
        for group in groups:
            if clique.get("name") in (group.get("cliqueNames") or ()):
                number = _times(number, group.get("replicas", 1))
        yield f"{name}-{clique.get('name', 'clique')}", _times(sets, number), {"spec": mapping(inner.get("podSpec"))}


def _times(count: Any, factor: Any) -> Any:
    if isinstance(count, int) and isinstance(factor, int):
        return count * factor
    if factor == 1:
        return count
    return factor


def workflow(name: str, spec: Mapping[str, Any]) -> Iterator[Group]:
    """Yield a pod for each template of an Argo workflow that has containers; steps and graphs are not followed."""
    spec = mapping(spec.get("workflowSpec")) or spec
    for template in mappings(spec.get("templates")):
        listed = mappings(mapping(template.get("containerSet")).get("containers"))
        main = mapping(template.get("container")) or mapping(template.get("script"))
        if main:
            listed = [{"name": "main", **main}]
        if listed:
            chosen = {**mapping(spec.get("nodeSelector")), **mapping(template.get("nodeSelector"))}
            pod_spec = {"containers": listed, "nodeSelector": chosen}
            for field in ("tolerations", "affinity", "resourceClaims", "initContainers"):
                field_value = template.get(field, spec.get(field))
                pod_spec |= {field: field_value} if field_value is not None else {}
            yield f"{name}-{template.get('name', 'pod')}", 1, {"spec": pod_spec}
