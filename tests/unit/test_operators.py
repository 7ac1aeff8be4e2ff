"""`simulate` on what operators create: Ray, Kubeflow, Volcano and KServe (18.2)."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.ask.read import manifests
from neuron_dra.core.wire import Obj
from neuron_dra.errors import SettingsError

POD = {"spec": {"containers": [{"name": "c"}]}}


def of(api: str, kind: str, **spec: Any) -> Obj:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def names(item: Obj) -> list[str]:
    return [pod["metadata"]["name"] for pod in manifests.expand([item], "default").pods]


def ray(**group: Any) -> dict[str, Any]:
    workers = {"groupName": "w", "template": POD, **group}
    return {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [workers]}


@pytest.mark.parametrize(
    ("item", "pods"),
    [
        (of("ray.io/v1", "RayCluster", **ray(replicas=2)), ["x-head-0", "x-w-0", "x-w-1"]),
        (of("ray.io/v1", "RayService", rayClusterConfig=ray(minReplicas=1)), ["x-head-0", "x-w-0"]),
        (of("ray.io/v1", "RayJob", rayClusterSpec=ray(replicas=1, numOfHosts=2)), ["x-head-0", "x-w-0", "x-w-1"]),
        (of("ray.io/v1", "RayJob", clusterSelector={"ray.io/cluster": "other"}), []),
        (of("ray.io/v1", "RayCluster", **ray(replicas=0, minReplicas=1, maxReplicas=3)), ["x-head-0", "x-w-0"]),
        (of("ray.io/v1", "RayCluster", **ray(replicas=9, minReplicas=0, maxReplicas=1)), ["x-head-0", "x-w-0"]),
        (
            of(
                "kubeflow.org/v2beta1",
                "MPIJob",
                mpiReplicaSpecs={"Launcher": {"template": POD}, "Worker": {"replicas": 2, "template": POD}},
            ),
            ["x-launcher-0", "x-worker-0", "x-worker-1"],
        ),
        (
            of("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Master": {"replicas": 1, "template": POD}}),
            ["x-master-0"],
        ),
        (of("ray.io/v1", "RayCluster", **ray(replicas=9, minReplicas=5, maxReplicas=1)), ["x-head-0", "x-w-0"]),
        (of("ray.io/v1", "RayCluster", **ray(replicas=9, suspend=True)), ["x-head-0"]),
        (
            of(
                "kubeflow.org/v1",
                "MPIJob",
                mpiReplicaSpecs={"Launcher": {"template": POD}, "Worker": {"template": POD}},
            ),
            ["x-launcher-0"],
        ),
        (
            of("batch.volcano.sh/v1alpha1", "Job", tasks=[{"name": "t", "replicas": 2, "template": POD}]),
            ["x-t-0", "x-t-1"],
        ),
        (of("serving.kserve.io/v1beta1", "InferenceService", predictor={"model": {}}), ["x-predictor-0"]),
        (
            of("serving.kserve.io/v1beta1", "InferenceService", predictor={"minReplicas": 2, **POD["spec"]}),
            ["x-predictor-0", "x-predictor-1"],
        ),
    ],
)
def test_operators_kinds_become_pods(item: Obj, pods: list[str]) -> None:
    assert names(item) == pods


@pytest.mark.parametrize("field", ["model", "pytorch", "huggingface"])
def test_a_model_is_the_container_of_its_runtime(field: str) -> None:
    limits = {"resources": {"limits": {"aws.amazon.com/neuron": 1}}}
    other = {"name": "kserve-container", "env": []}
    item = of("serving.kserve.io/v1beta1", "InferenceService", predictor={field: limits, "containers": [other]})
    [pod] = manifests.expand([item], "default").pods
    assert pod["spec"]["containers"] == [{"name": "kserve-container", **limits}]


@pytest.mark.parametrize(
    "item",
    [
        of("ray.io/v1", "RayCluster", headGroupSpec={}),
        of("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Master": {"replicas": "two", "template": POD}}),
        of("batch.volcano.sh/v1alpha1", "Job", tasks=[{"name": "t"}]),
        of("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={1: {}}),
        of("ray.io/v1", "RayCluster", headGroupSpec={"template": {**POD, "metadata": 5}}),
        {**of("jobset.x-k8s.io/v1alpha2", "JobSet"), "spec": ["a"]},
        of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=5),
        of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[{"name": "j", "template": {"spec": 5}}]),
        of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", leaderWorkerTemplate={"leaderTemplate": "x"}),
        {**of("kubeflow.org/v1", "PyTorchJob"), "spec": {1: 2, "pytorchReplicaSpecs": {"Master": {}}}},
    ],
)
def test_what_cannot_be_placed_is_named(item: Obj) -> None:
    with pytest.raises(SettingsError, match=r"x(-j-0)?: "):
        names(item)


def test_a_billion_jobs_without_pods_are_not_counted() -> None:
    empty = {"name": "j", "replicas": 10**9, "template": {"spec": {"parallelism": 0, "template": POD}}}
    with pytest.raises(SettingsError, match="JobSet x: more than 100000 pods"):
        names(of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=[empty]))


def test_another_scheduler_is_noted() -> None:
    found = manifests.expand([of("batch.volcano.sh/v1alpha1", "Job", tasks=[{"template": POD}])], "default")
    assert len(found.pods) == 1
    assert found.notes == [
        "Job x: Volcano's own scheduler places its pods; here they are placed as the default one would"
    ]
    assert manifests.expand([of("batch/v1", "Job", template=POD)], "default").notes == []


def test_workers_of_an_inference_service_are_named_as_not_counted() -> None:
    predictor = {"model": {"modelFormat": {"name": "huggingface"}}, "workerSpec": {"pipelineParallelSize": 2}}
    found = manifests.expand([of("serving.kserve.io/v1beta1", "InferenceService", predictor=predictor)], "default")
    assert found.notes == ["InferenceService x: the workers of its predictor (workerSpec) are not counted"]


@pytest.mark.parametrize("kind", ["Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"])
def test_templates_of_argo_are_pods(kind: str) -> None:
    templates = [{"name": "train", "container": {"image": "x"}}]
    spec: dict[str, Any] = {"templates": templates}
    item = of("argoproj.io/v1alpha1", kind, **({"workflowSpec": spec} if kind == "CronWorkflow" else spec))
    assert names(item) == ["x-train-0"]
