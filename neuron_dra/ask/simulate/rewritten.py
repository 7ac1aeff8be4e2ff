"""Limits of the device plugin that the policy of `scheduler.enabled` rewrites in labelled namespaces. Pure.

This is the usual case: main containers that request devices or cores. The policy rejects or divides others, as
docs/connected-sets.md explains; such pods stay as they are here, and so do those whose Namespace was not read, which
`unknown` names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import NamespaceView
from neuron_dra.ask.why import sizes
from neuron_dra.ask.world import demand
from neuron_dra.core import names
from neuron_dra.core.wire import Obj, Wire

_REWRITTEN: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore")


def pod(snapshot: Snapshot, raw_pod: Wire) -> Wire:
    """Return a pod as the policy would store it; the same one if the policy does not apply."""
    pod_view = PodView.of(raw_pod)
    namespace = NamespaceView.of(snapshot.get("Namespace", pod_view.metadata.namespace or "default"))
    is_labelled = namespace.metadata.labels.get(names.REWRITES_LIMITS) == "true"
    if not is_labelled or pod_view.spec.node_name or pod_view.spec.init_containers:
        return raw_pod
    containers = [_container(snapshot, container) for container in raw_pod["spec"].get("containers") or ()]
    return {**raw_pod, "spec": {**raw_pod["spec"], "containers": containers}}


def unknown(snapshot: Snapshot, raw_pods: Iterable[Wire]) -> list[str]:
    """Return a note for each namespace that was not read, if the policy would rewrite limits of its pods."""
    resource_by_namespace: dict[str, str] = {}
    for raw_pod in raw_pods:
        pod_view = PodView.of(raw_pod)
        namespace = pod_view.metadata.namespace or "default"
        is_read = snapshot.get("Namespace", namespace) is not None
        if is_read or pod_view.spec.node_name or pod_view.spec.init_containers:
            continue
        for container in raw_pod["spec"].get("containers") or ():
            if _container(snapshot, container) is not container:
                resource_by_namespace.setdefault(namespace, _requested(container)[0])
    notes = []
    for namespace, resource in resource_by_namespace.items():
        label = f"{names.REWRITES_LIMITS}=true"
        notes.append(f"Namespace {namespace} was not read: if it has the label {label}, a policy rewrites {resource}")
    return notes


def _requested(container: Wire) -> list[str]:
    """Return the resources of the device plugin in a container's limits."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return [name for name in _REWRITTEN if str(limits.get(name, "0")) != "0"]


def _container(snapshot: Snapshot, container: Wire) -> Wire:
    resources = container.get("resources") or {}
    limits: Obj = dict(resources.get("limits") or {})
    requests: Obj = dict(resources.get("requests") or {})
    requested = _requested(container)
    if len(requested) != 1:
        return container
    [resource] = requested
    class_name = sizes.class_of_limit(resource, limits[resource])
    if snapshot.get("DeviceClass", class_name) is None:
        return container
    del limits[resource]
    requests.pop(resource, None)
    limits[f"{demand.IMPLICIT}{class_name}"] = "1"
    return {**container, "resources": {**resources, "limits": limits, "requests": requests}}
