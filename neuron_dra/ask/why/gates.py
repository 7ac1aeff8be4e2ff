"""Scheduling gates: who holds a pod back from the scheduler, and why, as far as its own objects show it. Pure."""

from __future__ import annotations

from typing import Final

from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

KUEUE: Final = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
_CONDITIONS: Final = ("QuotaReserved", "Admitted")
"""Conditions of Kueue's Workload that are False for a reason while it waits, the first one first."""


def finding(world: World, pod: Wire) -> Finding:
    """Return the finding for a pod with scheduling gates."""
    gates = [gate["name"] for gate in pod["spec"]["schedulingGates"]]
    text = f"scheduling gates keep it from the scheduler: {', '.join(gates)}"
    if not set(gates) & set(KUEUE):
        return Finding("SchedulingGate", text)
    workload = _workload(world, pod)
    if workload is None:
        namespace = pod["metadata"].get("namespace") or "default"
        see = f"kubectl get workloads.kueue.x-k8s.io -n {namespace}: their conditions have Kueue's reason"
        return Finding("SchedulingGate", text, (("see", see),))
    name, queue = workload["metadata"]["name"], str((workload.get("spec") or {}).get("queueName") or "")
    facts = (("Workload", f"{name}, queue {queue}" if queue else name),)
    for condition in _waiting(workload):
        message = condition.get("message") or condition.get("reason") or "no message"
        return Finding("KueueWaits", f"Kueue has not admitted it: {message}", facts)
    if (workload.get("spec") or {}).get("active") is False:
        return Finding("KueueWaits", f"Kueue has not admitted it: its Workload {name} is not active", facts)
    return Finding("KueueWaits", f"{text}; its Workload {name} has no condition that says why", facts)


def _waiting(workload: Wire) -> list[Wire]:
    """Return the conditions that show why a Workload waits."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    found = [each for each in conditions if each.get("type") in _CONDITIONS and each.get("status") == "False"]
    return sorted(found, key=lambda each: _CONDITIONS.index(str(each["type"])))


def _workload(world: World, pod: Wire) -> Wire | None:
    """Return Kueue's Workload of a pod: the one that it owns, or that its owner owns, or that its label names."""
    meta = pod["metadata"]
    namespace = meta.get("namespace") or ""
    owners = {each.get("uid") for each in meta.get("ownerReferences") or ()} | {meta.get("uid")}
    group = (meta.get("labels") or {}).get("kueue.x-k8s.io/pod-group-name")
    for workload in world.snapshot.all("Workload"):
        own = workload["metadata"]
        if (own.get("namespace") or "") != namespace:
            continue
        by_owner = owners & {each.get("uid") for each in own.get("ownerReferences") or ()}
        if by_owner - {None} or (group and own["name"] == group):
            return workload
    return None
