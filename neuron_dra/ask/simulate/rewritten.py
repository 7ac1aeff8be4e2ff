"""Limits of the device plugin that the policy of `scheduler.enabled` rewrites in labelled namespaces. Pure.

This is the usual case: main containers that request devices or cores. The policy rejects or divides others, as
docs/connected-sets.md explains; such pods stay as they are here, and so do those whose Namespace was not read.
"""

from __future__ import annotations

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


def _container(snapshot: Snapshot, container: Wire) -> Wire:
    resources = container.get("resources") or {}
    limits: Obj = dict(resources.get("limits") or {})
    requests: Obj = dict(resources.get("requests") or {})
    requested = [name for name in _REWRITTEN if str(limits.get(name, "0")) != "0"]
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
