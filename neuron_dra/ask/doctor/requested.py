"""Objects that the controller decides by, and that no other command reads: can all of them be read? Pure.

A job or a qualification that cannot be read changes nothing: what it has reserved, or found, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from neuron_dra.ask.read.snapshot import DamagedObject
from neuron_dra.core import shapes
from neuron_dra.core.wire import Wire
from neuron_dra.kube import requests
from neuron_dra.kube.requests import Resource

RESOURCES: Final[Mapping[str, Resource]] = {
    "NeuronUltraServerQualification": requests.NEURON_QUALIFICATIONS,
    "Job": requests.JOBS,
    "JobSet": requests.JOB_SETS,
    "LeaderWorkerSet": requests.LEADER_WORKER_SETS,
    "StatefulSet": requests.STATEFUL_SETS,
}
_CONDITIONS: Final = {"conditions": [{"type": str, "status": str}]}
_PODS: Final = {"spec": {"nodeSelector": {}, "resourceClaims": [{"resourceClaimTemplateName": str}]}}
_INNER: Final = {"parallelism": int, "completions": int, "template": _PODS}
_META: Final[Mapping[str, Any]] = {"annotations": {}, "labels": {}}
_JOB: Final = {
    "metadata": _META,
    "spec": {
        **_INNER,
        "suspend": bool,
        "managedBy": str,
        "replicas": int,
        "replicatedJobs": [{"replicas": int, "template": {"spec": _INNER}}],
        "leaderWorkerTemplate": {"size": int, "leaderTemplate": _PODS, "workerTemplate": _PODS},
    },
    "status": _CONDITIONS,
}
_QUALIFICATION: Final = {"metadata": _META, "spec": {"instanceTypes": [str], "thresholds": [{}]}, "status": {}}


def damaged(items: Iterable[Wire]) -> list[DamagedObject]:
    """Return which of these objects the controller cannot read: those with a field of another type."""
    damaged_objects: list[DamagedObject] = []
    for raw_object in items:
        kind, meta = str(raw_object.get("kind")), raw_object.get("metadata")
        if kind not in RESOURCES or not _is_of(raw_object, RESOURCES[kind]) or not isinstance(meta, Mapping):
            continue
        shape: Any = _QUALIFICATION if kind == "NeuronUltraServerQualification" else _JOB
        if text := shapes.wrong(raw_object, shape):
            namespace, name = str(meta.get("namespace") or ""), str(meta.get("name") or "")
            damaged_objects.append(DamagedObject(kind, namespace, name, why=text))
    return damaged_objects


def _is_of(raw_object: Wire, resource: Resource) -> bool:
    """Return True for an object of this group: other groups have kinds of the same name."""
    return str(raw_object.get("apiVersion", "")).startswith(f"{resource.group}/")
