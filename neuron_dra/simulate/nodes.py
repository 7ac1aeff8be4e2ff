"""Checks nodes against core/v1 NodeSelectors and against what a pod demands of its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model
from neuron_dra.simulate.model import NodeTraits, Where


def reaches(where: Where, node: NodeTraits) -> bool:
    """Return True if the node can use a slice or device with this node selection."""
    if where.node_name:
        return where.node_name == node.name
    return where.all_nodes or (where.selector is not None and matches(where.selector, node))


def matches(selector: Wire, node: NodeTraits) -> bool:
    """Return True if a term of the NodeSelector matches completely. An empty term matches no node."""
    return any(_term(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _term(term: Wire, node: NodeTraits) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    own_fields = {"metadata.name": node.name}
    if not all(_requirement(requirement, node.labels) for requirement in expressions):
        return False
    return all(_requirement(requirement, own_fields) for requirement in fields)


def _requirement(requirement: Wire, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _number(value) is not None and any(_number(value) > _number(limit) for limit in values)
        case "Lt":
            return _number(value) is not None and any(_number(value) < _number(limit) for limit in values)
    return False


def _number(text: str | None) -> Any:
    try:
        return int(text or "")
    except ValueError:
        return None


CORDON: Final = "node.kubernetes.io/unschedulable"


def objection(pod: Wire, node: NodeTraits) -> str:
    """Return why the pod cannot run on the node, with kube-scheduler's message, or "". Claims are not checked."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName") and spec["nodeName"] != node.name:
        return "node(s) didn't match the requested node name"
    for taint in untolerated(pod, node):
        if node.unschedulable:
            return "node(s) were unschedulable"
        return f"node(s) had untolerated taint {{{taint.key}}}"
    if not is_selected(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def untolerated(pod: Wire, node: NodeTraits) -> list[model.DeviceTaint]:
    """Return the taints of the node that keep the pod from it; a cordoned node has that of a cordon."""
    marks = node.taints
    if node.unschedulable:
        marks = (*marks, model.DeviceTaint(CORDON, "", "NoSchedule"))
    if not marks:
        return []
    tolerations = model.tolerations((pod.get("spec") or {}).get("tolerations"))
    blocking = [taint for taint in marks if taint.effect in ("NoSchedule", "NoExecute")]
    return [taint for taint in blocking if not any(toleration.tolerates(taint) for toleration in tolerations)]


def is_selected(pod: Wire, node: NodeTraits) -> bool:
    """Return True if the node matches the pod's node selector and its required node affinity."""
    spec = pod.get("spec") or {}
    if any(node.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return affinity is None or matches(affinity, node)
