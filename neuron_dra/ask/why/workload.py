"""Why an UltraServer workload waits: its conditions, who is where, and one pod that is in the way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import ConditionView, UltraServerView, WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, ProposedChange, Report
from neuron_dra.ask.why import creating, queue, situations, trials
from neuron_dra.ask.world import budgets, tested, unseen
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core import advice, program
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.scheduler import Placement

NOT_QUALIFIED: Final = "NotQualified"
INVALID: Final = "InvalidSpec"
"""A reason that no UltraServer has to do with."""


def report(world: World, raw_workload: Wire) -> Report:
    """Return the report about a NeuronUltraServerWorkload, from its conditions."""
    workload = WorkloadView.of(raw_workload)
    status = workload.status
    subject = f"workload {workload.metadata.namespace or 'default'}/{workload.metadata.name}"
    ready, degraded = status.condition("Ready"), status.condition("Degraded")
    is_degraded = degraded is not None and degraded.status == "True"
    if ready is not None and ready.status == "True" and not is_degraded:
        return _allocated(world, workload, Report(subject, f"is {status.state or 'Allocated'}", fine=True))
    if ready is None:
        state = creating.state_of(workload)
        waits = situations.WORKLOAD
        finding = Finding(waits.code, waits.text.format(**state), state["conditions"])
        return Report(subject, "has no conditions", (finding,))
    findings = []
    if degraded is not None and is_degraded:
        findings.append(_condition(degraded))
    if ready.status == "False":
        findings.append(_condition(ready))
    if findings and ready.reason in queue.WAITS:
        findings[0] = replace(findings[0], facts=(*findings[0].facts, *queue.facts(world, workload)))
    elif findings and ready.reason != INVALID and status.state in ("Pending", "PartiallyAllocated", "Allocating"):
        all_servers = []
        for raw_server in world.snapshot.all("NeuronUltraServer"):
            all_servers.append(UltraServerView.of(raw_server))
        servers = [server for server in all_servers if _serves(server, workload)]
        facts = Facts([*findings[0].facts, *queue.facts(world, workload)])
        facts.some("UltraServer", (_shown(world, server) for server in servers))
        if ready.reason == NOT_QUALIFIED:
            facts.some("test", _stale(world, servers))
        tried = [_emptied(world, workload, server) for server in servers]
        changes = [change for change in tried if change is not None]
        findings[0] = Finding(findings[0].code, findings[0].text, facts.done(), tuple(changes[:3]))
    if ready.status == "True":
        findings += _allocated(world, workload, Report(subject, "")).findings
    return Report(subject, f"is {status.state or 'not handled yet'}", tuple(findings))


def _allocated(world: World, workload: WorkloadView, allocated: Report) -> Report:
    """Return the report about a workload with all its nodes: which of them have no pod."""
    if unseen.kinds(world.snapshot).keys() & {"Pod", "ResourceClaim", "ResourceSlice"}:
        return allocated
    meta = workload.metadata
    reserved = {name for name, tag in world.tags.items() if tag.workload == f"{meta.namespace}/{meta.name}"}
    used = {device.pool for device, holder in world.holders.items() if holder.pods}
    empty = sorted(reserved - used, key=words.natural)
    template = workload.template_name
    if not empty:
        return allocated
    if len(empty) == len(reserved):
        note = f"no pod uses its {words.count(len(reserved), 'node')} yet: pods get them with "
        return replace(allocated, notes=(f"{note}resourceClaimTemplateName: {template}",))
    waiting = _waiting_pods(world, meta.namespace, template)
    missing_count = len(empty) - len(waiting)
    if missing_count > 0:
        verb = "is" if missing_count == 1 else "are"
        text = f"{missing_count} of its {words.count(len(reserved), 'pod')} {verb} missing: no pod is on "
        to_do = "create the pods again if they are bare, as nothing else does; a Job or a StatefulSet creates its own"
    else:
        text = f"{words.count(len(waiting), 'pod')} of it wait for a node: no pod is on "
        to_do = f"{program.NAME} why pod/{waiting[0]} -n {meta.namespace}"
    facts = (("to do", to_do),)
    finding = Finding("PodsMissing", text + words.listed(empty), facts)
    return replace(allocated, findings=(finding,), fine=False)


def _waiting_pods(world: World, namespace: str, template: str) -> list[str]:
    """Return the pods of a namespace without a node that use a template."""
    waiting = []
    for pod in world.snapshot.all("Pod"):
        pod_view = PodView.of(pod)
        templates = [entry.resource_claim_template_name for entry in pod_view.spec.resource_claims]
        is_of_template = pod_view.metadata.namespace == namespace and template in templates
        if is_of_template and not pod_view.spec.node_name and not pod_view.has_ended:
            waiting.append(pod_view.metadata.name)
    return sorted(waiting, key=words.natural)


def _condition(condition: ConditionView) -> Finding:
    """Return a condition as a finding, with what a person does about its reason."""
    facts = Facts()
    facts.add("to do", advice.TO_DO.get(condition.reason, ""))
    text = condition.message or condition.reason or "no message"
    return Finding(condition.reason or condition.type, text, facts.done())


def _shown(world: World, server: UltraServerView) -> str:
    """Return one UltraServer with what is on each of its nodes."""
    states = {member.node_name: _on_node(world, member.node_name) for member in server.spec.topology}
    if len(states) > 1 and len(set(states.values())) == 1:
        [state] = set(states.values())
        return f"{server.metadata.name}: all {len(states)} nodes: {state}"
    return f"{server.metadata.name}: {'; '.join(map(': '.join, states.items()))}"


def _on_node(world: World, name: str) -> str:
    tag = world.tags.get(name)
    if tag is not None and tested.is_test(tag):
        return tested.IN_A_TEST
    if tag is not None:
        return tag.workload
    holder_names = set()
    for device, holder in world.holders.items():
        if device.pool == name:
            holder_names.add(str(holder))
    none = "unknown" if "ResourceClaim" in unseen.kinds(world.snapshot) else "free"
    return words.listed(sorted(holder_names, key=words.natural), 2) or none


def _stale(world: World, servers: Sequence[UltraServerView]) -> list[str]:
    """Return what tests found of UltraServers, those first that lack a pass, then the oldest pass."""
    dated_texts: list[tuple[str, str]] = []
    for server in servers:
        results = tested.results(world, server)
        text = "; ".join(tested.texts(results)) or tested.NOT_TESTED
        dated_texts.append((tested.oldest_pass(results), f"{server.metadata.name}: {text}"))
    return [text for _, text in sorted(dated_texts)]


def _serves(server: UltraServerView, workload: WorkloadView) -> bool:
    """Return True if an UltraServer is of the workload's type and large enough."""
    same = server.spec.instance_type == workload.spec.instance_type
    return same and len(server.nodes) >= workload.spec.topology_size


def _emptied(world: World, workload: WorkloadView, server: UltraServerView) -> ProposedChange | None:
    """Return the change that moves the only pod of a whole, unreserved UltraServer to a node elsewhere."""
    names = server.nodes
    if workload.spec.topology_size != len(names) or any(name in world.tags for name in names):
        return None
    holders: dict[str, Holder] = {}
    for device, holder in world.holders.items():
        if device.pool in names:
            holders[holder.key] = holder
    if len(holders) != 1 or not world.proposes:
        return None
    [holder] = holders.values()
    if len(holder.pods) != 1:
        return None
    pod = world.snapshot.get("Pod", holder.pods[0], holder.namespace)
    if pod is None or trials.is_created_again(pod) or budgets.objection(world.snapshot, pod):
        return None
    released, removed = trials.released(world, pod)
    elsewhere = world.after(released, [*removed, *(("Node", "", name) for name in names)])
    again = trials.unplaced(pod)
    outcome = elsewhere.after([again]).place(again)
    if not isinstance(outcome, Placement):
        return None
    text = f"kubectl delete pod {holder.pods[0]} -n {holder.namespace}"
    after = f"then no claim holds a device of UltraServer {server.metadata.name}"
    fits = f"; created again, {holder} fits on node {outcome.node}"
    return ProposedChange(text, after + fits, tuple(released), tuple(removed))
