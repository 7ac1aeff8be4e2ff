"""The pods that operators create from their own kinds: Ray, Kubeflow, Volcano and KServe. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from neuron_dra.core.wire import Wire


class Pods(NamedTuple):
    """Equal pods: `number` and `template` are as the manifest has them, which may be wrong."""

    name: str
    number: Any
    template: Any


def pods(item: Wire) -> list[Pods] | None:
    """Return the pods of an operator's object, or None if its kind is not one of those here."""
    found = _KINDS.get((str(item.get("apiVersion", "")).partition("/")[0], str(item["kind"])))
    return None if found is None else list(found(item["metadata"]["name"], _mapping(item.get("spec"))))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _or_one(value: Any) -> Any:
    return 1 if value is None else value


def _ray_cluster(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the head and the workers, as many as KubeRay starts with.

    Source: ray-project/kuberay, ray-operator/controllers/ray/utils/util.go, GetWorkerGroupDesiredReplicas.
    """
    if "headGroupSpec" in spec:
        yield Pods(f"{name}-head", 1, _mapping(spec["headGroupSpec"]).get("template"))
    for group in _mappings(spec.get("workerGroupSpecs")):
        number, least, most = group.get("replicas"), group.get("minReplicas"), group.get("maxReplicas")
        hosts = _or_one(group.get("numOfHosts"))
        if isinstance(least, int) and (number is None or (isinstance(number, int) and number < least)):
            number = least
        elif isinstance(most, int) and isinstance(number, int) and number > most:
            number = most
        number = 0 if number is None else number
        if isinstance(number, int) and isinstance(hosts, int):
            number *= hosts
        yield Pods(f"{name}-{group.get('groupName', 'workers')}", number, group.get("template"))


def _ray_service(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    return _ray_cluster(name, _mapping(spec.get("rayClusterConfig")))


def _ray_job(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield the pods of the job's own cluster; a job that selects an existing cluster has none."""
    return _ray_cluster(name, _mapping(spec.get("rayClusterSpec")))


def _kubeflow(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    for key, roles in spec.items():
        if key.endswith("ReplicaSpecs"):
            for role, each in _mapping(roles).items():
                replicas = _mapping(each)
                yield Pods(f"{name}-{role.lower()}", _or_one(replicas.get("replicas")), replicas.get("template"))


def _volcano(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    for task in _mappings(spec.get("tasks")):
        yield Pods(f"{name}-{task.get('name', 'task')}", _or_one(task.get("replicas")), task.get("template"))


def _kserve(name: str, spec: dict[str, Any]) -> Iterator[Pods]:
    """Yield a pod for each replica that always runs, at least one.

    A component is a pod's spec with more fields. Its `model` stands for the container of the serving runtime.
    """
    for component in ("predictor", "transformer", "explainer"):
        found = _mapping(spec.get(component))
        listed = _mappings(found.get("containers"))
        if isinstance(found.get("model"), dict):
            own = {"name": "kserve-container", "resources": _mapping(found["model"].get("resources"))}
            listed = [own, *(each for each in listed if each.get("name") != own["name"])]
        if found:
            number = found.get("minReplicas")
            template = {"spec": {**found, "containers": listed}}
            yield Pods(f"{name}-{component}", max(1, number) if isinstance(number, int) else 1, template)


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
}
