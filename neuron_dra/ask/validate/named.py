"""What pods of manifests name that the driver does not serve, or that no file has. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.ask.world import demand
from neuron_dra.core import names
from neuron_dra.core.wire import Wire

_EXTENSION: Final = "my-scheduler"
"""The scheduler in AWS's documents that has the Neuron scheduler extension."""
_SIZED_CLASS: Final = re.compile(rf"([a-z]+)-([0-9]+)\.{re.escape(names.DRIVER)}")
_SIZED: Final = ("connected", "cores")


def of_pod(objects: Snapshot, where: str, pod: Wire, made_elsewhere: Collection[str] = ()) -> Iterator[ManifestProblem]:
    """Yield what is wrong; `made_elsewhere` are templates that the controller creates, as namespace/name."""
    pod_view = PodView.of(pod)
    where = str(pod_view.metadata.annotations.get("owner") or where)
    of_plugin = [name for name in demand.limits(pod) if name in demand.PLUGIN_LIMITS]
    unserved = [name for name in of_plugin if not demand.class_of(objects, name)]
    if unserved:
        text = (
            f"its containers request {words.listed(unserved)}, which the Neuron device plugin serves and this driver "
            "does not: write claims, or the names of DeviceClasses (neuron-dra migrate does)"
        )
        yield ManifestProblem(where, "DevicePluginLimits", text, warning=True)
    if pod_view.spec.scheduler_name == _EXTENSION and (of_plugin or demand.wants_devices(pod)):
        text = (
            f"schedulerName is {_EXTENSION}, AWS's scheduler extension for the device plugin: claims need no "
            "extension, and the pod waits where no such scheduler runs; remove schedulerName"
        )
        yield ManifestProblem(where, "SchedulerOfPlugin", text, warning=True)
    yield from _classes(objects, where, pod)
    yield from _absent(objects, where, pod_view, made_elsewhere)


def _classes(objects: Snapshot, where: str, pod: Wire) -> Iterator[ManifestProblem]:
    """Yield the DeviceClasses in limits that resemble those of connected sets and parts of devices."""
    for resource in demand.limits(pod):
        name = resource.removeprefix(demand.IMPLICIT)
        near = nearest_size(name)
        if name != resource and near and objects.get("DeviceClass", name) is None:
            text = f"limits: there is no DeviceClass {name}, did you mean {demand.IMPLICIT}{near}?"
            yield ManifestProblem(where, "ClassUnknown", text)


def nearest_size(name: str) -> str:
    """Return the DeviceClass of a size that a name resembles without being one; empty if it resembles none."""
    match = _SIZED_CLASS.fullmatch(name)
    if match is None or match[1] in _SIZED:
        return ""
    near = words.nearest(match[1], _SIZED)
    return f"{near}-{match[2]}.{names.DRIVER}" if near else ""


def _absent(
    objects: Snapshot, where: str, pod_view: PodView, made_elsewhere: Collection[str]
) -> Iterator[ManifestProblem]:
    """Yield the templates that a pod uses and that no file defines: they must be in the cluster already."""
    namespace = pod_view.metadata.namespace
    for pod_claim in pod_view.spec.resource_claims:
        name = pod_claim.resource_claim_template_name
        if not name or f"{namespace}/{name}" in made_elsewhere:
            continue
        if objects.get("ResourceClaimTemplate", name, namespace) is not None:
            continue
        text = f"no file defines the ResourceClaimTemplate {namespace}/{name}"
        near = objects.near("ResourceClaimTemplate", name, namespace)
        elsewhere = [key[1] for key in objects.objects if key[0] == "ResourceClaimTemplate" and key[2] == name]
        if near:
            text += f", did you mean {near}?"
        elif elsewhere:
            text += f", and namespace {elsewhere[0]} has one, which pods of other namespaces cannot use"
        else:
            text += ": the pod waits until the cluster has it"
        yield ManifestProblem(where, "TemplateUnknown", text, warning=True)
