"""Limits of connected sets and of cores, whose size is in the name of the DeviceClass: amounts, other sizes. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import NamespaceView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import ProposedChange
from neuron_dra.ask.why import trials
from neuron_dra.ask.world import demand, users
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Obj, Wire

_SIZED: Final = re.compile(rf"(?P<kind>connected|cores)-(?P<size>\d{{1,4}})\.{re.escape(names.DRIVER)}")
_TRIED: Final = 8
_NEAR: Final = 0.8
_FEW: Final = 4


def amount(class_name: str, count: int) -> str:
    """Return how much a request wants of a class: of one with a size, the sets or parts, and what they have."""
    sized = _SIZED.fullmatch(class_name)
    if sized is None:
        return words.count(count, "device")
    size = int(sized["size"])
    if sized["kind"] == "cores":
        return f"{words.count(count, 'part')} of {words.count(size, 'core')} ({words.count(count * size, 'core')})"
    each = words.count(size, "connected device")
    return f"{words.count(count, 'set')} of {each} ({words.count(count * size, 'device')})"


def nearest_classes(world: World, name: str) -> str:
    """Return the DeviceClasses nearest to a name, then those with the most uses; empty if there is none.

    There are dozens of classes with a size. One that is no near name would hide the others.
    """
    uses = Counter(users.classes(world.snapshot))
    nearest_names = words.by_nearness(name, world.classes, uses)
    nearest_names.sort(key=lambda other: bool(_SIZED.fullmatch(other)) and words.likeness(name, other) < _NEAR)
    return words.listed(nearest_names, _FEW)


def class_of_limit(resource: str, number: object) -> str:
    """Return the DeviceClass that serves a limit of the device plugin: of cores, or of connected devices."""
    kind = "cores" if resource.endswith("core") else "connected"
    return f"{kind}-{number}.{names.DRIVER}"


def changes(world: World, pod: Wire, class_name: str) -> tuple[ProposedChange, ...]:
    """Return the changes of a pod's limits to the next larger and the next smaller size that fit now."""
    sized = _SIZED.fullmatch(class_name)
    if sized is None:
        return ()
    size_by_class = {}
    for name in world.classes:
        other = _SIZED.fullmatch(name)
        if other is not None and other["kind"] == sized["kind"]:
            size_by_class[name] = int(other["size"])
    size = int(sized["size"])
    larger = sorted((other, name) for name, other in size_by_class.items() if other > size)
    smaller = sorted(((other, name) for name, other in size_by_class.items() if other < size), reverse=True)
    first_changes = []
    for candidates in (larger, smaller):
        first_changes.append(_first(world, pod, class_name, [name for _, name in candidates[:_TRIED]]))
    return tuple(change for change in first_changes if change is not None)


def _first(world: World, pod: Wire, class_name: str, candidates: Iterable[str]) -> ProposedChange | None:
    is_rewritten = _is_rewritten(world, pod, class_name)
    for name in candidates:
        text = f"in the pod's limits, write {name} instead of {class_name}"
        if is_rewritten:
            text = f"in the pod's limits, write {_plugin_limit(name)}: a policy makes it {name}"
        change = trials.attempt(world, pod, text, [_with_limit(pod, class_name, name)])
        if change is not None:
            return change
    return None


def _is_rewritten(world: World, pod: Wire, class_name: str) -> bool:
    """Return True if a policy wrote the class in place of a limit of the device plugin, for all that is known."""
    is_one_set = demand.limits(pod).get(demand.IMPLICIT + class_name) == 1
    return is_one_set and _rewrites(world, PodView.of(pod).metadata.namespace or "default")


def _rewrites(world: World, namespace: str) -> bool:
    """Return True if a policy rewrites limits of the device plugin in a namespace."""
    labels = NamespaceView.of(world.snapshot.get("Namespace", namespace)).metadata.labels
    return labels.get(names.REWRITES_LIMITS) == "true"


def _plugin_limit(class_name: str) -> str:
    """Return the limit of the device plugin that the policy rewrites to a class, as a manifest has it."""
    kind, _, size = class_name.partition(".")[0].partition("-")
    resource = "aws.amazon.com/neuroncore" if kind == "cores" else "aws.amazon.com/neuron"
    return f"{resource}: {size}"


def _with_limit(pod: Wire, class_name: str, name: str) -> Wire:
    """Return the pod with another class in the limits of its containers."""
    spec: Obj = dict(pod["spec"])
    for field in ("containers", "initContainers"):
        containers = []
        for container in spec.get(field) or ():
            resources = dict(container.get("resources") or {})
            for kind in ("limits", "requests"):
                if kind in resources:
                    resources[kind] = _renamed(resources[kind], demand.IMPLICIT + class_name, demand.IMPLICIT + name)
            containers.append({**container, "resources": resources})
        if containers:
            spec[field] = containers
    return {**pod, "spec": spec}


def _renamed(amounts: Wire, old: str, new: str) -> Obj:
    return {new if name == old else name: number for name, number in amounts.items()}


def rewriting(world: World, pod: Wire, resource: str) -> tuple[tuple[str, str], ...]:
    """Return the fact that a policy rewrites a limit of the device plugin, if there is a class of this size."""
    name = class_of_limit(resource, demand.limits(pod).get(resource, 0))
    if name not in world.classes:
        return ()
    namespace = PodView.of(pod).metadata.namespace or "default"
    label = f"{names.REWRITES_LIMITS}=true"
    if _rewrites(world, namespace):
        text = (
            f"namespace {namespace} has the label {label} now, so a policy writes {name} into new pods: create it again"
        )
    elif world.snapshot.get("Namespace", namespace) is not None:
        text = f"kubectl label namespace {namespace} {label}: then a policy writes {name} into new pods"
    else:
        text = f"while namespace {namespace} has the label {label}, a policy writes {name} into new pods"
    return (("or", text),)
