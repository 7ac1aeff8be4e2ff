"""The objects whose controllers create pods, such as Deployments: only `why` reads them, and only one that is named.

The state of one is read leniently: each project has other fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.read.views import ConditionView, MetaView, ObjectView
from neuron_dra.core.wire import Wire


@dataclass(frozen=True, slots=True)
class JobResource:
    """Where the API server has the objects of a kind."""

    group: str
    version: str
    plural: str


RESOURCES: Final[Mapping[str, JobResource]] = {
    "Deployment": JobResource("apps", "v1", "deployments"),
    "ReplicaSet": JobResource("apps", "v1", "replicasets"),
    "StatefulSet": JobResource("apps", "v1", "statefulsets"),
    "DaemonSet": JobResource("apps", "v1", "daemonsets"),
    "Job": JobResource("batch", "v1", "jobs"),
    "JobSet": JobResource("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "LeaderWorkerSet": JobResource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    "RayCluster": JobResource("ray.io", "v1", "rayclusters"),
    "TrainJob": JobResource("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "MPIJob": JobResource("kubeflow.org", "v2beta1", "mpijobs"),
    "PyTorchJob": JobResource("kubeflow.org", "v1", "pytorchjobs"),
}


class JobObjectView(ObjectView, frozen=True):
    """An object whose controller creates pods."""

    metadata: MetaView = MetaView()
    spec: Any = None
    status: Any = None

    def field(self, name: str) -> object:
        """Return a field of the spec; None if it has none."""
        return self.spec.get(name) if isinstance(self.spec, Mapping) else None

    def counted(self, name: str) -> object:
        """Return a field of the status; None if it has none."""
        return self.status.get(name) if isinstance(self.status, Mapping) else None

    def condition(self, kind: str) -> ConditionView | None:
        """Return the condition of this type if it is True."""
        true_conditions = (condition for condition in self._conditions() if condition.status == "True")
        return next((condition for condition in true_conditions if condition.type == kind), None)

    def _conditions(self) -> Iterator[ConditionView]:
        conditions = self.counted("conditions")
        for raw_condition in conditions if isinstance(conditions, list) else ():
            if isinstance(raw_condition, Mapping):
                texts: Wire = {key: value for key, value in raw_condition.items() if isinstance(value, str)}
                yield ConditionView.of(texts)
