"""Why an UltraServer workload waits: its conditions, who is where, and one pod that is in the way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.views import ConditionView, UltraServerView, WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, ProposedChange, Report
from neuron_dra.ask.why import creating, queue, situations, trials
from neuron_dra.ask.world import budgets, tested, unseen
from neuron_dra.ask.world.world import Holder, World
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
        return Report(subject, f"is {status.state or 'Allocated'}", fine=True)
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
        findings[0] = replace(findings[0], facts=queue.facts(world, workload))
    elif findings and ready.reason != INVALID and status.state in ("Pending", "PartiallyAllocated", "Allocating"):
        all_servers = []
        for raw_server in world.snapshot.all("NeuronUltraServer"):
            all_servers.append(UltraServerView.of(raw_server))
        servers = [server for server in all_servers if _serves(server, workload)]
        facts = Facts([*queue.facts(world, workload)])
        facts.some("UltraServer", (_shown(world, server) for server in servers))
        if ready.reason == NOT_QUALIFIED:
            facts.some("test", _stale(world, servers))
        tried = [_emptied(world, workload, server) for server in servers]
        changes = [change for change in tried if change is not None]
        findings[0] = Finding(findings[0].code, findings[0].text, facts.done(), tuple(changes[:3]))
    return Report(subject, f"is {status.state or 'not handled yet'}", tuple(findings))


def _condition(condition: ConditionView) -> Finding:
    return Finding(condition.reason or condition.type, condition.message or condition.reason or "no message")


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
    return words.listed(sorted(holder_names), 2) or none


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
