"""Prints a plan as text: UltraServers, workloads, and writes in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    Plan,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.observed import discovery
from neuron_dra.planner.observed.model import FleetSnapshot, condition


def text(snapshot: FleetSnapshot, plan: Plan) -> str:
    """Return UltraServers, workloads and writes as text."""
    lines = ["UltraServers"]
    lines += list(_ultraservers(snapshot, plan)) or ["  none: no node publishes an ultraserverId"]
    lines.append("Workloads")
    lines += list(_workloads(snapshot, plan)) or ["  none"]
    lines.append("Writes, in this order" if plan.actions else "Writes: none")
    lines += [f"  {number}. {describe(action)}" for number, action in enumerate(plan.actions, start=1)]
    lines += _unknown(snapshot, plan)
    if plan.recheck is not None:
        lines.append(f"Plans again at {plan.recheck:%Y-%m-%dT%H:%M:%SZ}, or when something changes")
    return "\n".join(lines) + "\n"


def _unknown(snapshot: FleetSnapshot, plan: Plan) -> list[str]:
    """Return a line for each claim of a PodGroup whose pods the plan needs and does not know."""
    lines_by_claim = {}
    for use in plan.shared:
        if use.ref not in snapshot.shared_by:
            groups = ", ".join(f"{use.namespace}/{consumer.name}" for consumer in use.others)
            lines_by_claim[use.ref] = (
                f"Unknown: which pods use claim {use.ref} of PodGroup {groups}, because the file has no Pods. The "
                "controller evicts them; if there are none, delete the PodGroup"
            )
    return list(lines_by_claim.values())


def _ultraservers(snapshot: FleetSnapshot, plan: Plan) -> Iterator[str]:
    """Yield lines about UltraServers, their reservations after the plan, and their problems."""
    written = {}
    for action in plan.actions:
        if isinstance(action, WriteUltraServerStatus):
            written[action.name] = action.status
    stored = {ultraserver.name: ultraserver.status for ultraserver in snapshot.ultraservers}
    for group in discovery.discover(snapshot):
        status = written.get(group.name, stored.get(group.name, {}))
        sizes = ", ".join(map(str, group.sizes)) or "none"
        yield f"  {group.name}  {group.instance_type}  {len(group.topology)} nodes, group sizes {sizes}"
        for allocation in status.get("allocations") or []:
            yield (
                f"    {allocation['phase']}: {', '.join(allocation['allocatedNodes'])} for {allocation['workloadRef']} "
                f"(index {allocation['ultraserverIndex']})"
            )
        for problem in group.problems:
            yield f"    {problem.reason}: {problem.message}"


def _workloads(snapshot: FleetSnapshot, plan: Plan) -> Iterator[str]:
    """Yield lines about workloads: request, state, reason and message."""
    for workload in sorted(snapshot.workloads, key=lambda workload: workload.ref):
        verdict = plan.verdicts.get(workload.uid)
        yield (
            f"  {workload.ref}  {workload.count} x {workload.size} {workload.instance_type}: "
            + (f"{verdict.state}, {verdict.reason}: {verdict.message}" if verdict else "released")
        )
        if verdict and verdict.degraded:
            yield f"    {verdict.degraded[0]}: {verdict.degraded[1]}"


def _why(status: Wire) -> str:
    ready = condition(status, "Ready")
    if ready:
        return f", {ready['message']}"
    return ""


def describe(action: Action) -> str:
    """Return one write as a line of text."""
    match action:
        case CreateUltraServer(body=body):
            return f"create NeuronUltraServer {body['metadata']['name']}"
        case UpdateTopology(name=name, topology=topology):
            nodes = ", ".join(member["nodeName"] for member in topology)
            return f"write the nodes of NeuronUltraServer {name}: {nodes or 'none'}"
        case DeleteUltraServer(name=name):
            return f"delete NeuronUltraServer {name}, which has no nodes"
        case WriteUltraServerStatus(name=name, status=status):
            parts = [f"{allocation['workloadRef']} {allocation['phase']}" for allocation in status["allocations"]]
            return (
                f"write the status of NeuronUltraServer {name}: {status['state']}, {', '.join(parts) or 'not reserved'}"
            )
        case LabelNode(name=name, labels=labels):
            changed = []
            for label, label_value in labels.items():
                # As arguments of `kubectl label`.
                changed.append(f"{label}-" if label_value is None else f"{label}={label_value}")
            return f"label Node {name}: {', '.join(changed)}"
        case SetUltraServerFinalizers(name=name, finalizers=finalizers):
            return f"set the finalizers of NeuronUltraServer {name}: {', '.join(finalizers) or 'none'}"
        case SetFinalizers(namespace=namespace, name=name, finalizers=finalizers):
            return f"set the finalizers of workload {namespace}/{name}: {', '.join(finalizers) or 'none'}"
        case CreateTemplate(body=body):
            return f"create ResourceClaimTemplate {body['metadata']['namespace']}/{body['metadata']['name']}"
        case DeleteTemplate(namespace=namespace, name=name):
            return f"delete ResourceClaimTemplate {namespace}/{name}"
        case Evict(namespace=namespace, name=name):
            return f"evict Pod {namespace}/{name}"
        case WriteWorkloadStatus(namespace=namespace, name=name, status=status):
            return f"write the status of workload {namespace}/{name}: {status['state']}{_why(status)}"
    raise TypeError(f"no text for {type(action).__name__}")
