"""Objects for a bundle that a person sends to others: only fields that a diagnosis needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from neuron_dra.ask.doctor import crd_fields, nodes
from neuron_dra.ask.doctor.seen import BINDINGS, CRDS, LEASES, POLICIES, Seen
from neuron_dra.ask.read import snapshot as snapshots
from neuron_dra.ask.read import views
from neuron_dra.ask.read.node_views import SliceView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import key_of
from neuron_dra.ask.read.views import MetaView
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

HIDDEN: Final = "REDACTED"
_DOMAINS: Final = ("neuron.aws.com/", "neuron.amazonaws.com/", "resource.kubernetes.io/")
"""Of annotations that are kept: those of the driver, the controller and Kubernetes' allocation."""
_SECRETS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"://[^/@\s]+@"), f"://{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?"), HIDDEN),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)", re.DOTALL), HIDDEN),
    (
        re.compile(
            r"(?i)([\w.-]*(?:passw(?:or)?d|token|secret|api[_-]?key|credential|signature|authorization)[\w.-]*"
            r"[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
        ),
        rf"\1{HIDDEN}",
    ),
)
_TEXT: Final = {"type": str, "status": str, "reason": str, "message": str, "lastTransitionTime": str}
_STATES: Final = [{"name": str, "ready": bool, "restartCount": int, "image": str, "imageID": str, "state": {
    "waiting": {"reason": str, "message": str},
    "terminated": {"reason": str, "exitCode": int},
    "running": {"startedAt": str},
}}]  # fmt: skip
_INFO: Final = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "osImage", "architecture")
_TAINTS: Final = [{"key": str, "value": str, "effect": str}]
_ENTRIES: Final = [{"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}]
_CONTAINERS: Final = [{"name": str, "resources": {"requests": {}, "limits": {}, "claims": [{"name": str}]}}]
_SELECTORS: Final = [{"cel": {"expression": str}}]
_ALTERNATIVE: Final = {
    "name": str, "deviceClassName": str, "selectors": _SELECTORS, "allocationMode": str, "count": int,
    "adminAccess": bool, "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
}  # fmt: skip
_CLAIM: Final = {
    "devices": {
        "requests": [{"name": str, "exactly": _ALTERNATIVE, "firstAvailable": [_ALTERNATIVE]}],
        "constraints": [{"requests": [str], "matchAttribute": str, "distinctAttribute": str}],
        "config": [{"requests": [str], "opaque": {"driver": str}}],
    }
}
_OF_SNAPSHOTS: Final[Mapping[str, Any]] = {
    "ResourceClaim": {
        "spec": _CLAIM,
        "status": {
            "allocation": {"devices": {"results": [{"request": str, "driver": str, "pool": str, "device": str}]}},
            "reservedFor": [{"resource": str, "name": str, "uid": str}],
        },
    },
    "ResourceClaimTemplate": {"spec": {"spec": _CLAIM}},
    "DeviceClass": {"spec": {"selectors": _SELECTORS, "extendedResourceName": str}},
    "DeviceTaintRule": {
        "spec": {
            "deviceSelector": {"driver": str, "pool": str, "device": str},
            "taint": {"key": str, "value": str, "effect": str},
        }
    },
    "Node": {
        "spec": {"taints": _TAINTS, "unschedulable": bool},
        "status": {"allocatable": {}, "conditions": [_TEXT], "nodeInfo": {"kubeletVersion": str}},
    },
    "NeuronUltraServer": {
        "metadata": {"name": str},
        "spec": {"instanceType": str, "topology": [{"nodeName": str, "nodeId": int}]},
        "status": {"state": str, "conditions": [{"type": str, "status": str, "reason": str, "message": str}]},
    },
    "NeuronUltraServerWorkload": views.shape(views.WorkloadView),
    "Pod": {
        "spec": {
            "nodeName": str, "schedulerName": str, "nodeSelector": {}, "tolerations": [{}],
            "containers": _CONTAINERS, "initContainers": _CONTAINERS,
            "schedulingGates": [{"name": str}], "resourceClaims": _ENTRIES,
        },
        "status": {
            "phase": str,
            "conditions": [_TEXT],
            "containerStatuses": [{"name": str, "state": {"waiting": {"reason": str, "message": str}}}],
            "initContainerStatuses": [{"name": str, "state": {"waiting": {"reason": str, "message": str}}}],
            "resourceClaimStatuses": [{"name": str, "resourceClaimName": str}],
        },
    },
    "PodGroup": {"spec": {"schedulingPolicy": {"gang": {"minCount": int}}, "resourceClaims": _ENTRIES}},
    "Workload": {
        "spec": {"queueName": str, "active": bool},
        "status": {"conditions": [{"type": str, "status": str, "reason": str, "message": str}]},
    },
    "ResourceQuota": views.shape(views.QuotaView),
    "PodDisruptionBudget": views.shape(views.BudgetView),
    "Event": views.shape(views.EventView),
}  # fmt: skip
"""Of the fields that commands read, those that others may see; a field that is read anew is not among them."""
_MORE: Final[Mapping[str, Any]] = {
    "ResourceSlice": {"spec": {}},
    "Node": {
        "spec": {"providerID": str},
        "status": {"nodeInfo": dict.fromkeys(_INFO, str), "conditions": [_TEXT], "capacity": {}},
    },
    "Pod": {
        "spec": {
            "containers": [{"name": str, "image": str, "resources": {}}],
            "initContainers": [{"name": str, "image": str, "resources": {}, "restartPolicy": str}],
        },
        "status": {"conditions": [_TEXT], "containerStatuses": _STATES, "initContainerStatuses": _STATES},
    },
    "Event": {
        "type": str, "count": int, "firstTimestamp": str, "lastTimestamp": str, "eventTime": str,
        "involvedObject": {"uid": str},
    },
    CRDS: {"spec": {}, "status": {"conditions": [_TEXT]}},
    POLICIES: {},
    BINDINGS: {"spec": {"policyName": str, "validationActions": [str]}},
    LEASES: {"spec": {"holderIdentity": str, "renewTime": str, "acquireTime": str, "leaseDurationSeconds": int}},
}  # fmt: skip
"""Fields that no command reads, and a person does."""
_META: Final = {
    "name": str, "namespace": str, "uid": str, "labels": {}, "generation": int, "creationTimestamp": str,
    "deletionTimestamp": str, "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str}],
}  # fmt: skip
_APIS: Final = {
    "ResourceSlice": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
    "DeviceTaintRule": "resource.k8s.io/v1",
}


def objects(seen: Seen) -> list[dict[str, Any]]:
    """Return the objects of a bundle: what has to do with Neuron devices, without the rest of the cluster."""
    world = World(seen.snapshot, proposes=False)
    bundle_objects = [*_of_snapshot(world), *_of_installation(seen)]
    return [redacted(bundle_object) for bundle_object in bundle_objects]


def _of_snapshot(world: World) -> Iterator[Wire]:
    snapshot = world.snapshot
    machines = set(nodes.neuron_nodes(world))
    spaces, chosen = set(), set()
    for pod in snapshot.all("Pod"):
        pod_view = PodView.of(pod)
        if pod_view.spec.resource_claims or _concerns(pod_view, machines):
            spaces.add(pod_view.metadata.namespace)
            chosen.add(id(pod))
    kept: Mapping[str, Callable[[Wire], object]] = {
        "Node": lambda node: node["metadata"]["name"] in machines,
        "ResourceSlice": lambda raw_slice: SliceView.of(raw_slice).spec.node_name in {"", *machines},
        "Pod": lambda pod: id(pod) in chosen,
        "ResourceQuota": lambda quota: key_of(quota)[1] in spaces,
        "PodDisruptionBudget": lambda budget: key_of(budget)[1] in spaces,
    }
    keys = set()
    for kind in snapshots.KINDS:
        if kind != "Event":
            for raw_object in snapshot.all(kind):
                if kept.get(kind, bool)(raw_object):
                    keys.add(key_of(raw_object))
                    yield raw_object
    for about, events in world.events.items():
        if about in keys:
            yield from events


def _concerns(pod: PodView, machines: set[str]) -> bool:
    if pod.spec.node_name in machines:
        return True
    return any("neuron" in str(pod.metadata.labels.get(key)) for key in ("app", "app.kubernetes.io/name"))


def _of_installation(seen: Seen) -> Iterator[Wire]:
    for kind, items in seen.objects.items():
        for raw_object in items:
            name = raw_object["metadata"]["name"]
            if "neuron" in name and (kind != CRDS or name in crd_fields.wanted()):
                yield raw_object


def redacted(raw_object: Wire) -> dict[str, Any]:
    """Return an object with known fields only, and without what looks like a secret in their texts."""
    kind = str(raw_object["kind"])
    shown_fields: dict[str, Any] = {"apiVersion": raw_object.get("apiVersion") or _APIS.get(kind, "v1"), "kind": kind}
    metadata = _known(raw_object["metadata"], _META)
    annotations = MetaView.of(raw_object["metadata"]).annotations
    metadata["annotations"] = {key: annotations[key] for key in annotations if str(key).startswith(_DOMAINS)}
    shapes = [_OF_SNAPSHOTS.get(kind, {}), _MORE.get(kind, {})]
    for shape in shapes:
        if shape:
            _merge(shown_fields, _known(raw_object, shape))
    shown_metadata = {key: value for key, value in metadata.items() if value}
    cleaned: dict[str, Any] = clean({**shown_fields, "metadata": shown_metadata})
    return cleaned


def _known(value: Any, shape: Any) -> Any:
    """Return the part of a value that a shape names; an empty shape means all of it."""
    if isinstance(shape, Mapping) and shape and isinstance(value, Mapping):
        part = {}
        for key, inner in shape.items():
            if value.get(key) is not None:
                part[key] = _known(value[key], inner)
        return part
    if isinstance(shape, list) and isinstance(value, list):
        return [_known(element, shape[0]) for element in value]
    return value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add fields: those of both are merged, also in lists of equal length."""
    for key, value in more.items():
        present = into.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            _merge(present, value)
        elif isinstance(present, list) and isinstance(value, list) and len(present) == len(value):
            for old, new in zip(present, value, strict=True):
                if isinstance(old, dict) and isinstance(new, Mapping):
                    _merge(old, new)
        else:
            into[key] = value


def clean(value: Any) -> Any:
    """Return a value of JSON without secrets in its texts."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {str(key): clean(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(element) for element in value]
    return value


def text(value: str) -> str:
    """Return a text without what looks like a password, a token or a key."""
    for pattern, replacement in _SECRETS:
        value = pattern.sub(replacement, value)
    return value
