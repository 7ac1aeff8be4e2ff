"""Scheduling gates: who holds a pod back from the scheduler, and why, as far as its own objects show it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.pod_views import KueueWorkloadView, PodView
from neuron_dra.ask.read.views import ConditionView
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

_KUEUE: Final = "kueue.x-k8s.io/"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
OWNERS: Final = {
    "kueue.x-k8s.io/admission": "Kueue removes it when it admits the pod",
    "kueue.x-k8s.io/topology": "Kueue removes it when it has chosen the pod's part of the topology",
    "kueue.x-k8s.io/elastic-job": "Kueue removes it when it admits the new size of the job",
    "scheduling.volcano.sh/queue-allocation-gate": "Volcano removes it when the pod's queue has capacity",
    "grove.io/podgang-pending-creation": "Grove removes it when the pod's PodGang is ready",
}
"""Gates of other projects, and what each waits for: constants of Kueue and Grove, and Volcano's documents on queues."""
_CONDITIONS: Final = ("QuotaReserved", "Admitted")
"""Conditions of Kueue's Workload that are False for a reason while it waits, the first one first."""


def finding(world: World, pod: Wire) -> Finding:
    """Return the finding for a pod with scheduling gates."""
    gates = [gate.name for gate in PodView.of(pod).spec.scheduling_gates]
    other_gates = [gate for gate in gates if not gate.startswith(_KUEUE)]
    removals = dict.fromkeys(OWNERS[gate] for gate in gates if gate in OWNERS)
    text = "; ".join([f"scheduling gates keep it from the scheduler: {', '.join(gates)}", *removals])
    if other_gates == gates:
        return Finding("SchedulingGate", text)
    meta = PodView.of(pod).metadata
    owners = {meta.uid, *(owner.uid for owner in meta.owner_references)} - {""}
    group = meta.labels.get("kueue.x-k8s.io/pod-group-name")
    reason = kueue_reason(world, meta.namespace, owners, group)
    if reason is None:
        namespace = meta.namespace or "default"
        see = f"kubectl get workloads.kueue.x-k8s.io -n {namespace}: their conditions have Kueue's reason"
        return Finding("SchedulingGate", text, (("see", see),))
    other_facts = tuple(("other gate", "; ".join([gate, *filter(None, [OWNERS.get(gate)])])) for gate in other_gates)
    return replace(reason, facts=(*reason.facts, *other_facts))


def kueue_reason(world: World, namespace: str, owners: Collection[str], group: str | None = None) -> Finding | None:
    """Return why Kueue has not admitted its Workload of these owners, or of this name; None without a Workload."""
    workload = _workload(world, namespace, owners, group)
    if workload is None:
        return None
    name, queue = workload.metadata.name, workload.spec.queue_name
    facts = (("Workload", f"{name}, queue {queue}" if queue else name),)
    for condition in _waiting(workload):
        message = condition.message or condition.reason or "no message"
        return Finding("KueueWaits", f"Kueue has not admitted it: {message}", facts)
    if not workload.spec.active:
        return Finding("KueueWaits", f"Kueue has not admitted it: its Workload {name} is not active", facts)
    return Finding("KueueWaits", f"Kueue holds it back; its Workload {name} has no condition that says why", facts)


def _waiting(workload: KueueWorkloadView) -> list[ConditionView]:
    """Return the conditions that show why a Workload waits."""
    false_conditions = []
    for condition in workload.status.conditions:
        if condition.type in _CONDITIONS and condition.status == "False":
            false_conditions.append(condition)
    return sorted(false_conditions, key=lambda condition: _CONDITIONS.index(condition.type))


def _workload(world: World, namespace: str, owners: Collection[str], group: str | None) -> KueueWorkloadView | None:
    """Return Kueue's Workload of a pod or job: one that it owns, or its owner, or that its label names."""
    for raw_workload in world.snapshot.all("Workload"):
        workload = KueueWorkloadView.of(raw_workload)
        metadata = workload.metadata
        if metadata.namespace != namespace:
            continue
        owned = any(owner.uid in owners for owner in metadata.owner_references)
        if owned or (group and metadata.name == group):
            return workload
    return None
