"""The instance types that pods select by the label of their nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.core import names
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.simulate import model, nodes

_LABELS: Final = (names.INSTANCE_TYPE_LABEL, "beta.kubernetes.io/instance-type")


class _RequiredTerms(ObjectView, frozen=True):
    node_selector_terms: tuple[dict[str, Any], ...] = ()


class _NodeAffinity(ObjectView, frozen=True):
    required_during_scheduling_ignored_during_execution: _RequiredTerms | None = None


class _ChosenNodes(ObjectView, frozen=True):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _ChoosingSpec(ObjectView, frozen=True):
    affinity: _ChosenNodes = _ChosenNodes()


class _ChoosingPod(ObjectView, frozen=True):
    spec: _ChoosingSpec = _ChoosingSpec()


def only_type(pod: Wire) -> Obj:
    """Return the part of a pod's spec that selects nodes by their instance type; empty if nothing does.

    What else a pod selects, such as the label of a node group, says nothing about types that are only imagined.
    """
    chosen = {}
    for label, value in PodView.of(pod).spec.node_selector.items():
        if label in _LABELS:
            chosen[names.INSTANCE_TYPE_LABEL] = value
    spec: Obj = {"nodeSelector": chosen} if chosen else {}
    required = _ChoosingPod.of(pod).spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    terms = []
    for term in required.node_selector_terms if required is not None else ():
        terms.append(
            [
                _renamed(expression)
                for expression in term.get("matchExpressions") or ()
                if expression.get("key") in _LABELS
            ]
        )
    if terms and all(terms):  # a term without a type admits all types
        affinity = {"nodeSelectorTerms": [{"matchExpressions": expressions} for expressions in terms]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}}
    return spec


def _renamed(expression: Mapping[str, Any]) -> Obj:
    return {**expression, "key": names.INSTANCE_TYPE_LABEL}


def admitted(wires: Sequence[Wire], pods: Iterable[Wire]) -> list[Wire]:
    """Return the nodes on which a pod may run as far as its choice of instance types says; all if no pod is known."""
    specs = [only_type(pod) for pod in pods]
    if not all(specs):
        return list(wires)
    admitting = []
    for node in wires:
        traits = model.node(node)
        if any(not nodes.objection({"spec": spec}, traits) for spec in specs) or not specs:
            admitting.append(node)
    return admitting
