"""The pods that operators create from their own kinds: Ray, Kubeflow, Volcano and KServe. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from neuron_dra.ask.read import trainers
from neuron_dra.core.wire import Wire

_MODELS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton"),
    *("xgboost", "art"),
)
"""Fields of a KServe component that stand for its container."""


class Pods(NamedTuple):
    """Equal pods: `number` and `template` are as the manifest has them, which may be wrong."""

    name: str
    number: Any
    template: Any


def pods(operator_object: Wire, runtimes: Sequence[Wire] = ()) -> list[Pods] | None:
    """Return the pods of an operator's object, or None if its kind is not one of those here.

    `runtimes` are the training runtimes that a TrainJob may name.
    """
    if _is_train_job(operator_object):
        return [Pods(*equal_pods) for equal_pods in trainers.train_job(operator_object, runtimes)]
    group, _, _ = str(operator_object.get("apiVersion", "")).partition("/")
    pods_of_kind = _KINDS.get((group, str(operator_object["kind"])))
    if pods_of_kind is None:
        return None
    return list(pods_of_kind(operator_object["metadata"]["name"], trainers.mapping(operator_object.get("spec"))))


def _is_train_job(operator_object: Wire) -> bool:
    api_version = str(operator_object.get("apiVersion", ""))
    return operator_object["kind"] == "TrainJob" and api_version.startswith("trainer.kubeflow.org/")


def notes(operator_object: Wire, runtimes: Sequence[Wire] = ()) -> list[str]:
    """Return what a reader of the simulated pods should know.

    Source: volcano-sh/volcano, pkg/webhooks/admission/jobs/mutate: pods of a Job are for the scheduler `volcano`.
    """
    kind, name = operator_object["kind"], operator_object["metadata"]["name"]
    spec = trainers.mapping(operator_object.get("spec"))
    if kind == "ScaledJob":
        most = spec.get("maxReplicaCount", 100)
        return [f"ScaledJob {name}: the pods of one job; KEDA creates up to {most} jobs"]
    if _is_train_job(operator_object) and trainers.runtime_of(operator_object, runtimes) is None:
        named = trainers.mapping(spec.get("runtimeRef")).get("name")
        text = f"its runtime {named} is not among the manifests: its pods are taken to request what the job itself does"
        return [f"TrainJob {name}: {text}"]
    if kind == "InferenceService" and trainers.mapping(trainers.mapping(spec.get("predictor")).get("workerSpec")):
        return [f"InferenceService {name}: the workers of its predictor (workerSpec) are not counted"]
    if kind == "PodCliqueSet" and _has_key(spec, "resourceSharing"):
        return [f"PodCliqueSet {name}: resourceSharing is not simulated: the claims that Grove creates are not counted"]
    if str(operator_object.get("apiVersion", "")).startswith("argoproj.io/"):
        return [f"{kind} {name}: a pod for each of its templates; steps and graphs are not followed"]
    if not str(operator_object.get("apiVersion", "")).startswith("batch.volcano.sh/"):
        return []
    return [f"Job {name}: Volcano's own scheduler places its pods; here they are placed as the default one would"]


def _has_key(value: Any, name: str) -> bool:
    """Return whether a mapping in a value has this key."""
    if isinstance(value, list):
        return any(_has_key(inner, name) for inner in value)
    return isinstance(value, dict) and (name in value or any(_has_key(inner, name) for inner in value.values()))


def _or(value: Any, default: int) -> Any:
    if value is None:
        return default
    return value


def _ray_cluster(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the head and the workers, as many as KubeRay starts with.

    Source: ray-project/kuberay, ray-operator/controllers/ray/utils/util.go, GetWorkerGroupDesiredReplicas.
    """
    if "headGroupSpec" in spec:
        yield Pods(f"{name}-head", 1, trainers.mapping(spec["headGroupSpec"]).get("template"))
    for group in trainers.mappings(spec.get("workerGroupSpecs")):
        number, hosts = _or(group.get("replicas"), 0), _or(group.get("numOfHosts"), 1)
        if isinstance(number, int) and isinstance(hosts, int):
            least, most = (group.get(bound) for bound in ("minReplicas", "maxReplicas"))
            number = max(number, least) if isinstance(least, int) else number
            number = min(number, most) if isinstance(most, int) else number
            number = 0 if group.get("suspend") is True else number * hosts
        yield Pods(f"{name}-{group.get('groupName', 'workers')}", number, group.get("template"))


def _ray_service(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    return _ray_cluster(name, trainers.mapping(spec.get("rayClusterConfig")))


def _ray_job(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the pods of the job's own cluster; a job that selects an existing cluster has none."""
    return _ray_cluster(name, trainers.mapping(spec.get("rayClusterSpec")))


def _kubeflow(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the pods of each role: one if there is no number, but no workers of an MPIJob.

    Source: kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/default.go; kubeflow/trainer, pkg/apis/kubeflow.org/v1.
    """
    for key, roles in spec.items():
        if str(key).endswith("ReplicaSpecs"):
            for role, raw_role in trainers.mapping(roles).items():
                replicas = trainers.mapping(raw_role)
                default = 0 if (key, role) == ("mpiReplicaSpecs", "Worker") else 1
                number = _or(replicas.get("replicas"), default)
                yield Pods(f"{name}-{str(role).lower()}", number, replicas.get("template"))


def _volcano(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    for task in trainers.mappings(spec.get("tasks")):
        yield Pods(f"{name}-{task.get('name', 'task')}", _or(task.get("replicas"), 1), task.get("template"))


def _kserve(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield a pod for each replica that always runs, at least one.

    A component is a pod's spec with more fields. Its `model`, or a field with the name of a framework, stands for the
    container of the serving runtime.
    """
    for component in ("predictor", "transformer", "explainer"):
        component_spec = trainers.mapping(spec.get(component))
        listed = trainers.mappings(component_spec.get("containers"))
        model = next((component_spec[field] for field in _MODELS if isinstance(component_spec.get(field), dict)), None)
        if model is not None:
            model_container = {"name": "kserve-container", "resources": trainers.mapping(model.get("resources"))}
            others = [container for container in listed if container.get("name") != model_container["name"]]
            listed = [model_container, *others]
        if component_spec:
            number = component_spec.get("minReplicas")
            template = {"spec": {**component_spec, "containers": listed}}
            yield Pods(f"{name}-{component}", max(1, number) if isinstance(number, int) else 1, template)


def _knative(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the pods of a Knative Service that always run, at least one."""
    template = trainers.mapping(spec.get("template"))
    annotations = trainers.mapping(trainers.mapping(template.get("metadata")).get("annotations"))
    least = str(annotations.get("autoscaling.knative.dev/min-scale") or "1")
    yield Pods(name, max(1, int(least)) if least.isdigit() else 1, template)


def _node_set(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the pods of a NodeSet of Slurm."""
    yield Pods(name, _or(spec.get("replicas"), 1), spec.get("template"))


def _cliques(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    return (Pods(*equal_pods) for equal_pods in trainers.cliques(name, spec))


def _workflow(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    return (Pods(*equal_pods) for equal_pods in trainers.workflow(name, spec))


_KINDS: Final[Mapping[tuple[str, str], Callable[[str, dict[str, Any]], Iterator[Pods]]]] = {
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayService"): _ray_service,
    ("ray.io", "RayJob"): _ray_job,
    **{
        ("kubeflow.org", f"{framework}Job"): _kubeflow
        for framework in ("MPI", "PyTorch", "TF", "XGBoost", "Paddle", "JAX")
    },
    ("batch.volcano.sh", "Job"): _volcano,
    ("serving.kserve.io", "InferenceService"): _kserve,
    ("serving.knative.dev", "Service"): _knative,
    ("slinky.slurm.net", "NodeSet"): _node_set,
    ("grove.io", "PodCliqueSet"): _cliques,
    **{
        ("argoproj.io", kind): _workflow
        for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
    },
}
