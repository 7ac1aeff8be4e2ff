"""Which numbers of devices and cores a pod requests by DeviceClass, and what to say if no node serves them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import catalogue, sizes
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import scheduling_refusal

REASON: Final = "NeuronNumberNotServed"
INSTANCE_TYPE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
TYPES_SHOWN: Final = 4
_ATTRIBUTES: Final = {"connectedDevices": sizes.DEVICE, "cores": sizes.CORE}
_RESOURCE: Final = re.compile(
    re.escape(sizes.RESOURCE_PREFIX) + r"(connected|cores)-([1-9][0-9]{0,3})\.neuron\.aws\.com", re.ASCII
)

Served = Mapping[str, Mapping[str, frozenset[int]]]
"""By instance type, then by kind (device or core), the numbers that its nodes publish."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that the scheduler cannot place.

    - `wants`: the kinds and numbers that its containers request, sorted.
    - `instance_types`: the types that its node selector or its required affinity names; empty for any.
    """

    namespace: str
    name: str
    uid: str
    wants: tuple[tuple[str, int], ...]
    instance_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """What one ResourceSlice offers: the node's instance type, and numbers by kind."""

    instance_type: str
    numbers: tuple[tuple[str, int], ...]


def waiting(pod: Wire) -> Waiting | None:
    """Return what a pod waits for, or None if it does not wait, or requests no number of devices or cores."""
    if not scheduling_refusal(pod):
        return None
    meta, spec = pod["metadata"], pod.get("spec") or {}
    wants: set[tuple[str, int]] = set()
    for container in _containers(spec):
        wants.update(_numbers(container))
    if not wants:
        return None
    return Waiting(meta["namespace"], meta["name"], meta["uid"], tuple(sorted(wants)), _instance_types(spec))


def offered(resource_slice: Wire) -> NodeSizes:
    """Return which numbers a ResourceSlice of the driver offers."""
    instance_type, numbers = "", set()
    for device in (resource_slice.get("spec") or {}).get("devices") or ():
        attributes = device.get("attributes") or {}
        instance_type = instance_type or str((attributes.get("instanceType") or {}).get("string") or "")
        for name, kind in _ATTRIBUTES.items():
            number = (attributes.get(name) or {}).get("int")
            if isinstance(number, int):
                numbers.add((kind, number))
    return NodeSizes(instance_type, tuple(sorted(numbers)))


def served(offers: Iterable[NodeSizes]) -> dict[str, dict[str, frozenset[int]]]:
    """Return the numbers that the nodes of each instance type serve.

    A type whose nodes publish no connected sets has no numbers.
    """
    numbers_by_type: dict[str, dict[str, set[int]]] = {}
    for offer in offers:
        of_type = numbers_by_type.setdefault(offer.instance_type, {kind: set() for kind in _ATTRIBUTES.values()})
        for kind, number in offer.numbers:
            of_type[kind].add(number)
    numbers_by_type.pop("", None)
    served = {}
    for instance_type, of_type in numbers_by_type.items():
        served[instance_type] = {kind: frozenset(numbers) for kind, numbers in of_type.items()}
    return served


def advice(pod: Waiting, fleet: Served) -> str:
    """Return why the pod waits if no node that it may use serves what it requests; empty if one does.

    Nodes may be added by an autoscaler, so types that the cluster lacks are judged by the catalogue, and a pod that may
    use any type gets no message while the cluster has no Neuron nodes.
    """
    types = []
    for instance_type in pod.instance_types or sorted(fleet):
        if instance_type in fleet or catalogue.lookup(instance_type):
            types.append(instance_type)
    for kind, number in pod.wants:
        numbers = {instance_type: _numbers_of(instance_type, kind, fleet) for instance_type in types}
        if types and not any(number in served_numbers for served_numbers in numbers.values()):
            return _message(kind, number, numbers)
    return ""


def _message(kind: str, number: int, numbers: Mapping[str, frozenset[int]]) -> str:
    """Return the scheduler extension's sentence for the first type, and what each type serves."""
    first = next(iter(numbers))
    texts = []
    for instance_type, served_numbers in list(numbers.items())[:TYPES_SHOWN]:
        if served_numbers:
            texts.append(f"{instance_type} serves {sizes.in_words(served_numbers)} {kind}s")
        else:
            texts.append(f"nodes of type {instance_type} publish no connected sets (their Events say why)")
    more = len(numbers) - TYPES_SHOWN
    if more > 0:
        texts.append(f"{more} more instance types do not serve {number}")
    return f"{sizes.refusal(first, kind, number)} In this cluster: {'; '.join(texts)}."


def _numbers_of(instance_type: str, kind: str, fleet: Served) -> frozenset[int]:
    """Return the numbers that a type serves: what its nodes publish, without nodes what it could."""
    spec = catalogue.lookup(instance_type)
    if instance_type in fleet or spec is None:
        return fleet[instance_type][kind]
    return sizes.counts(spec, kind)


def _containers(spec: Wire) -> Sequence[Wire]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _numbers(container: Wire) -> Iterable[tuple[str, int]]:
    """Yield the kinds and numbers that a container requests by the names of DeviceClasses."""
    resources = container.get("resources") or {}
    for resource_name in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}:
        match = _RESOURCE.fullmatch(resource_name)
        if match is not None:
            yield (sizes.DEVICE if match[1] == "connected" else sizes.CORE), int(match[2])


def _instance_types(spec: Wire) -> tuple[str, ...]:
    """Return the instance types that a pod's node selector, or each term of its required affinity, names."""
    selector = spec.get("nodeSelector") or {}
    chosen = [str(selector[label]) for label in INSTANCE_TYPE if label in selector]
    if chosen:
        return tuple(chosen[:1])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [_types_of_term(term) for term in required.get("nodeSelectorTerms") or ()]
    if not terms or not all(terms):
        return ()  # a term without a type matches nodes of any type
    return tuple(sorted({instance_type for term in terms for instance_type in term}))


def _types_of_term(term: Wire) -> list[str]:
    """Return the instance types that a node selector term requires, empty if it requires none."""
    for requirement in term.get("matchExpressions") or ():
        if requirement.get("key") in INSTANCE_TYPE and requirement.get("operator") == "In":
            return [str(value) for value in requirement.get("values") or ()]
    return []
