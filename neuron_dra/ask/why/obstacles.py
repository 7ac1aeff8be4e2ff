"""Findings for pods that fit nowhere now, though some node would serve them: who and what is in the way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from neuron_dra.ask.read.node_views import KubeNodeView, SliceSpecView, SliceView, TaintRuleSpec, TaintRuleView
from neuron_dra.ask.read.pod_views import PodView, RawPodStatus
from neuron_dra.ask.read.views import WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, ProposedChange, working
from neuron_dra.ask.why import contention, trials
from neuron_dra.ask.world import absent, resources
from neuron_dra.ask.world.absent import AbsentDevices
from neuron_dra.ask.world.blockers import HELD, NODE, ORDER, RESERVED, ROOM, TAINT, Blocked, Blockers
from neuron_dra.ask.world.world import World, covers
from neuron_dra.core import program, taints
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model, nodes

NODES_TRIED: Final = 3
CODES: Final = {
    NODE: "NodeExcluded",
    TAINT: "DeviceTainted",
    RESERVED: "NodeReserved",
    ROOM: "ResourcesLacking",
}


def findings(world: World, pod: Wire, blocked: Sequence[Blocked], tied: Sequence[str] = ()) -> list[Finding]:
    """Return a finding for each combination of obstacles: of nodes with free devices, and of those with few, first.

    `tied` are claims of the pod that are allocated for some nodes only.
    """
    groups: dict[tuple[str, ...], list[Blocked]] = {}
    for blocked_node in _not_excluded(world, pod, blocked):
        groups.setdefault(blocked_node.obstacles, []).append(blocked_node)
    order = sorted(groups, key=lambda names: (HELD in names, len(names), [ORDER.index(name) for name in names]))
    node_findings = [_finding(world, pod, names, groups[names]) for names in _fewest(order)]
    if node_findings and tied and len(blocked) == 1:
        node_findings[0] = _on_one_node(node_findings[0], blocked[0].name, tied[0])
    return node_findings


def _not_excluded(world: World, pod: Wire, blocked: Sequence[Blocked]) -> Sequence[Blocked]:
    """Return the nodes without those that the pod excludes by its selector or affinity, unless it excludes all."""
    selected = [place for place in blocked if nodes.is_selected(pod, world.decoded(place.node))]
    return selected or blocked


def _fewest(order: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the combinations of obstacles without those that add obstacles to another one: that one is told."""
    combinations = [names for names in order if names]
    return [names for names in combinations if not any(set(other) < set(names) for other in combinations)]


def _on_one_node(finding: Finding, node: str, claim: str) -> Finding:
    """Return the finding in words that name the claim that keeps the pod on one node."""
    text = finding.text.replace(f"node {node} has the devices, and too little", "which has too little", 1)
    joint = ", " if text != finding.text else ": "
    return replace(finding, text=f"its claim {claim} has devices of node {node} alone{joint}{text}")


def _finding(world: World, pod: Wire, names: Sequence[str], blocked: Sequence[Blocked]) -> Finding:
    if tuple(names) == (HELD,):
        return contention.finding(world, pod, blocked)
    facts = Facts()
    for name in names:
        if name == NODE and len(blocked) == 1:
            continue  # the first line has it
        details = (_detail(world, pod, name, blocked_node) for blocked_node in blocked)
        facts.some(_LABELS[name], details, most=3, of=len(blocked))
    if NODE in names:
        facts.add("to check", _removable_taints(world, pod, blocked[0]))
    if TAINT in names:
        facts.some("rule", _rules(world, blocked), most=3)
    if HELD in names:
        facts.some("protected", contention.protection(world, blocked[:3]), most=2)
    changes: tuple[ProposedChange, ...] = ()
    if world.proposes and len(names) == 1:
        changes = working(_changes(world, pod, names[0], blocked))
    return Finding(CODES[names[0]], _text(world, pod, names, blocked), facts.done(), changes)


def behind_absence(world: World, pod: Wire, claims: Sequence[Wire], lacking: Sequence[AbsentDevices]) -> Finding | None:
    """Return the finding for a node without usable devices on which something out of the ordinary is in the way too."""
    for absent_devices in lacking[: absent.NODES_TRIED]:
        repaired = absent_devices.repaired(world)
        blocked = Blockers(repaired, pod, claims).on(absent_devices.node)
        if blocked is None or not blocked.obstacles or HELD in blocked.obstacles:
            continue
        if NODE in blocked.obstacles and not KubeNodeView.of(blocked.node).spec.unschedulable:
            continue  # the node is for other pods
        also = [_alone(repaired, pod, name, blocked) for name in blocked.obstacles]
        both = "both" if len(also) == 1 else "all of that"
        text = f"{absent_devices.text}; also, {' and '.join(also)}; without {both} the pod would fit there"
        return Finding(absent_devices.code, text, (("see", f"{program.NAME} why node/{absent_devices.node}"),))
    return None


def _alone(world: World, pod: Wire, name: str, blocked: Blocked) -> str:
    """Return one obstacle of a node as a sentence about it."""
    if name == NODE:
        return _objection(world, pod, blocked)
    if name == TAINT:
        return f"its devices are tainted: {_taints(world, [blocked])}"
    if name == RESERVED:
        return f"it is reserved for {_workloads(world, [blocked])}"
    return f"it has too little {_lacking(world, pod, [blocked])}"


_LABELS: Final = {NODE: "node", TAINT: "tainted", RESERVED: "reserved", ROOM: "left", HELD: "held"}
_ALSO: Final = {TAINT: "tainted devices", RESERVED: "reserved", ROOM: "too little left", HELD: "devices in use"}


def _text(world: World, pod: Wire, names: Sequence[str], blocked: Sequence[Blocked]) -> str:
    """Return the first line about nodes with the same obstacles."""
    where, has, are = f"{len(blocked)} nodes", "have", "are"
    if len(blocked) == 1:
        where, has, are = f"node {blocked[0].name}", "has", "is"
    if names[0] == NODE:
        serves = f"that {has} such devices" if HELD in names else "that would serve it"
        text = f"it may not run on {where} {serves}: {_objections(world, pod, blocked)}"
    elif names[0] == TAINT:
        text = f"{where} {has} too few untainted devices: {_taints(world, blocked)}"
    elif names[0] == RESERVED:
        text = f"{where} that would serve it {are} reserved for {_workloads(world, blocked)}"
    else:
        text = f"{where} {has} the devices, and too little {_lacking(world, pod, blocked)}"
    if len(names) > 1:
        text += f"; also {', '.join(_ALSO[name] for name in names[1:])}"
    return text


def _objections(world: World, pod: Wire, blocked: Sequence[Blocked]) -> str:
    if len(blocked) == 1:
        return _objection(world, pod, blocked[0])
    objection_counts: Counter[str] = Counter()
    for blocked_node in blocked:
        objection_counts.update(_objection_parts(world, pod, blocked_node))
    return words.listed((text for text, _ in objection_counts.most_common()))


def _objection(world: World, pod: Wire, blocked: Blocked) -> str:
    """Return everything that keeps the pod from a node, apart from the node's devices and room."""
    return ", and ".join(_objection_parts(world, pod, blocked))


def _objection_parts(world: World, pod: Wire, blocked: Blocked) -> list[str]:
    node = world.decoded(blocked.node)
    untolerated = nodes.untolerated(pod, node)
    texts = []
    if node.unschedulable and any(taint.key == nodes.CORDON for taint in untolerated):
        texts.append("it is cordoned")
        untolerated = [taint for taint in untolerated if taint.key != nodes.CORDON]
    marks = [taints.text(taint.key, taint.value, taint.effect) for taint in untolerated]
    if marks:
        noun = "taint" if len(marks) == 1 else "taints"
        texts.append(f"the pod does not tolerate its {noun} {' and '.join(marks)}")
    if not nodes.is_selected(pod, node):
        texts.append("it does not match the pod's node selector or affinity")
    return texts or ["the pod names another node"]


def _removable_taints(world: World, pod: Wire, blocked: Blocked) -> str:
    """Return how to ask about taints of which nothing is known, and how to remove them; empty if one is known.

    It is no proposed change: such a taint may be there because the node is broken. Only who set it can tell.
    """
    untolerated = nodes.untolerated(pod, world.decoded(blocked.node))
    if not untolerated or any(taints.known(taint.key, taint.value) is not None for taint in untolerated):
        return ""
    marks = " ".join(f"{taint.key}:{taint.effect}-" for taint in untolerated)
    return (
        f"who tainted it, and why: kubectl get node {blocked.name} -o yaml --show-managed-fields; "
        f"if pods may run there: kubectl taint node {blocked.name} {marks}"
    )


def _taints(world: World, blocked: Sequence[Blocked]) -> str:
    taint_counts: Counter[str] = Counter()
    for blocked_node in blocked:
        for device in _devices(world, blocked_node):
            taint_counts.update(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in device.taints)
    return words.listed((text for text, _ in taint_counts.most_common()), 2)


def _devices(world: World, blocked: Blocked) -> Sequence[model.PoolDevice]:
    return world.likeness.devices(world.decoded(blocked.node))


def _workloads(world: World, blocked: Sequence[Blocked]) -> str:
    workloads = dict.fromkeys(world.tags[blocked_node.name].workload for blocked_node in blocked)
    return words.listed((f"workload {workload}" for workload in workloads), 2)


def _lacking(world: World, pod: Wire, blocked: Sequence[Blocked]) -> str:
    resource_counts: Counter[str] = Counter()
    for blocked_node in blocked:
        resource_counts.update(world.room.lacking(pod, blocked_node.node).keys())
    return words.listed((name for name, _ in resource_counts.most_common()), 2)


def _detail(world: World, pod: Wire, name: str, blocked: Blocked) -> str:
    """Return what is in the way on one node."""
    node = blocked.name
    if name == HELD:
        return contention.detail(world, blocked)
    if name == TAINT:
        marked = [device.id.device for device in _devices(world, blocked) if device.taints]
        return f"node {node}: {words.devices(marked)}"
    if name == RESERVED:
        tag = world.tags[node]
        return f"node {node}: workload {tag.workload}, {tag.phase.value}"
    if name == ROOM:
        texts = []
        for resource, (free, requested) in world.room.lacking(pod, blocked.node).items():
            free_text, requested_text = resources.compared(resource, free, requested)
            texts.append(f"{resource} {free_text} free, {requested_text} requested")
        return f"node {node}: {', '.join(texts)}"
    return f"node {node}: {_objection(world, pod, blocked)}"


# The changes that may help. Each is simulated before it is shown.


def _changes(world: World, pod: Wire, name: str, blocked: Sequence[Blocked]) -> Iterator[ProposedChange | None]:
    if name == NODE:
        for blocked_node in _nearest_labels(pod, blocked)[:NODES_TRIED]:
            yield from _admit(world, pod, blocked_node)
    if name == TAINT:
        yield from trials.fewer(world, pod)
    if name == ROOM:
        yield from _smaller(world, pod, blocked)
    if name == RESERVED:
        yield from _workload_templates(world, pod, blocked)


def _nearest_labels(pod: Wire, blocked: Sequence[Blocked]) -> list[Blocked]:
    """Return the nodes, those first whose labels resemble the pod's node selector."""
    selector = PodView.of(pod).spec.node_selector

    def unlike(place: Blocked) -> float:
        labels = KubeNodeView.of(place.node).metadata.labels
        return -sum(words.likeness(str(value), str(labels.get(key) or "")) for key, value in selector.items())

    return sorted(blocked, key=unlike)


def _smaller(world: World, pod: Wire, blocked: Sequence[Blocked]) -> Iterator[ProposedChange | None]:
    """Try to request what the node with the most room has left, of a pod with one container."""
    containers = list(pod["spec"].get("containers") or ())
    if len(containers) != 1:
        return
    lacking = [world.room.lacking(pod, place.node) for place in blocked]
    best = max(lacking, key=lambda amounts: min(free / requested for free, requested in amounts.values()))
    if any(free <= 0 for free, _ in best.values()):
        return
    amounts = {resource: resources.whole(resource, free) for resource, (free, _) in best.items()}
    texts = [f"{resource}: {amount}" for resource, amount in amounts.items()]
    own_resources = containers[0].get("resources") or {}
    changed_resources = dict(own_resources)
    for field in ("requests", "limits"):
        changed = {key: amounts.get(key, value) for key, value in (own_resources.get(field) or {}).items()}
        changed_resources[field] = changed
    container = {**containers[0], "resources": changed_resources}
    changed_pod = {**pod, "spec": {**pod["spec"], "containers": [container]}}
    yield trials.attempt(world, pod, f"in the pod's requests, write {', '.join(texts)}", [changed_pod])


def _admit(world: World, pod: Wire, blocked: Blocked) -> Iterator[ProposedChange | None]:
    node, name = blocked.node, blocked.name
    kube_node, pod_spec = KubeNodeView.of(node), PodView.of(pod).spec
    labels = kube_node.metadata.labels
    if any(taints.may_leave(taint.key, taint.value) for taint in kube_node.spec.taints):
        return  # whatever starts there ends soon
    if kube_node.spec.unschedulable:
        remaining_taints = [msgspec.to_builtins(taint) for taint in kube_node.spec.taints if taint.key != nodes.CORDON]
        uncordoned = {**node, "spec": {**node["spec"], "unschedulable": False, "taints": remaining_taints}}
        yield trials.attempt(world, pod, f"kubectl uncordon {name}", [uncordoned])
    for taint in kube_node.spec.taints:
        if not taints.may_be_tolerated(taint.key, taint.value):
            continue  # it may be there because the node is broken, not initialised, or about to go away
        toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        changed = {**pod, "spec": {**pod["spec"], "tolerations": [*pod_spec.tolerations, toleration]}}
        yield trials.attempt(world, pod, f"let the pod tolerate the taint {taint.key}", [changed])
    node_selector = pod_spec.node_selector
    for key, value in node_selector.items():
        if any(world.decoded(other).labels.get(key) == value for other in world.nodes.values()):
            continue  # the pod's own nodes exist: what is wrong is on them
        if key in labels and labels[key] != value:
            changed = {**pod, "spec": {**pod["spec"], "nodeSelector": {**node_selector, key: labels[key]}}}
            yield trials.attempt(world, pod, f"in the pod's nodeSelector, write {key}: {labels[key]}", [changed])
        elif key not in labels:
            meta = {**node["metadata"], "labels": {**labels, key: value}}
            yield trials.attempt(world, pod, f"kubectl label node {name} {key}={value}", [{**node, "metadata": meta}])


def _rules(world: World, blocked: Sequence[Blocked]) -> list[str]:
    """Return the DeviceTaintRules that taint devices of these nodes. Whoever wrote one knows when it may go."""
    specs: list[SliceSpecView] = []
    for blocked_node in blocked[:NODES_TRIED]:
        specs += [SliceView.of(raw_slice).spec for raw_slice in world.slices_of(blocked_node.name)]
    rules = [TaintRuleView.of(rule) for rule in world.snapshot.all("DeviceTaintRule")]
    return [f"DeviceTaintRule {rule.metadata.name}" for rule in rules if _covers_any(rule.spec, specs)]


def _covers_any(rule: TaintRuleSpec, specs: Sequence[SliceSpecView]) -> bool:
    return any(covers(rule, spec, device["name"]) for spec in specs for device in spec.published)


def _workload_templates(world: World, pod: Wire, blocked: Sequence[Blocked]) -> Iterator[ProposedChange | None]:
    """Try the template of a workload of the pod's own namespace, in place of the pod's."""
    pod_view = PodView.of(pod)
    namespace = pod_view.metadata.namespace
    for tag in dict.fromkeys(world.tags[blocked_node.name] for blocked_node in blocked):
        workload = world.snapshot.get("NeuronUltraServerWorkload", tag.workload_name, namespace)
        if tag.workload_namespace != namespace or workload is None:
            continue
        name = WorkloadView.of(workload).template_name
        text = f"if it belongs to workload {tag.workload}: resourceClaimTemplateName: {name}"
        for index, entry in enumerate(pod_view.spec.resource_claims):
            yield trials.attempt(world, pod, text, [_with_template(pod, index, entry.name, name)])


def _with_template(pod: Wire, index: int, entry: str, template: str) -> Wire:
    """Return the pod with another template in one entry of its claims, and without the claim that was made for it."""
    claims = list(pod["spec"]["resourceClaims"])
    claims[index] = {"name": entry, "resourceClaimTemplateName": template}
    status = pod.get("status") or {}
    claim_statuses = RawPodStatus.of(status).resource_claim_statuses
    remaining_statuses = [claim_status for claim_status in claim_statuses if claim_status["name"] != entry]
    changed = {**status, "resourceClaimStatuses": remaining_statuses}
    return {**pod, "spec": {**pod["spec"], "resourceClaims": claims}, "status": changed}
