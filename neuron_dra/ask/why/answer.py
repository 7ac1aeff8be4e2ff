"""Why a claim is not as it should be, and the reports of all kinds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Finding, Report
from neuron_dra.ask.why import node as why_node
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.why import workload as why_workload
from neuron_dra.ask.world import unseen
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def of_claim(world: World, claim: Wire) -> Report:
    """Return the report about a ResourceClaim: who has it, or why it has no devices."""
    meta, status = claim["metadata"], claim.get("status") or {}
    namespace = meta.get("namespace") or ""
    subject = f"claim {namespace or 'default'}/{meta['name']}"
    users = [user["name"] for user in status.get("reservedFor") or () if user.get("resource") == "pods"]
    allocation = status.get("allocation")
    if meta.get("deletionTimestamp"):
        who = f": it is gone when these pods have ended: {', '.join(users)}" if users else ""
        return Report(subject, "is being deleted", (Finding("Deleted", f"the claim is being deleted{who}"),))
    if allocation is not None:
        results = (allocation.get("devices") or {}).get("results") or ()
        where = ", ".join(dict.fromkeys(result["pool"] for result in results))
        state = f"has {words.devices([result['device'] for result in results])} of {where}"
        if users:
            return Report(subject, f"{state}, for {', '.join(users)}", fine=True)
        return Report(
            subject, f"{state}, and no pod uses it", notes=("it keeps its devices until it is deleted",), fine=True
        )
    for pod in world.snapshot.all("Pod"):
        if (pod["metadata"].get("namespace") or "") == namespace and any(
            each.exists and each.claim is claim for each in world.claims_of(pod)
        ):
            report = why_pod.report(world, pod)
            return Report(
                f"{subject}, of {report.subject}",
                f"is not allocated: the pod {report.state}",
                report.findings,
                report.notes,
            )
    text = "no pod uses it: a claim is allocated when a pod that uses it is scheduled"
    return Report(subject, "is not allocated", (Finding("NoPod", text),))


REPORTS: Final[Mapping[str, Callable[[World, Wire], Report]]] = {
    "Pod": why_pod.report,
    "ResourceClaim": of_claim,
    "Node": why_node.report,
    "NeuronUltraServerWorkload": why_workload.report,
}

_OF_NODES: Final = ("ResourceSlice", "DeviceTaintRule")
"""Kinds that could show what is wrong with a node."""


def report(snapshot: Snapshot, kind: str, item: Wire) -> Report:
    """Return the report about an object; what could not be read makes a cause unknown, and changes are not proposed."""
    missing = unseen.kinds(snapshot)
    found = REPORTS[kind](World(snapshot, proposes=not missing.keys() & set(unseen.JUDGED)), item)
    findings = tuple(unseen.doubted(each, snapshot) for each in found.findings)
    hidden = [each for each in _OF_NODES if each in missing] if kind == "Node" and found.fine else []
    if hidden:
        text = f"unknown: nothing is wrong in what was read, but not all of kind {hidden[0]} could be"
        findings = (Finding("Unknown", text),)
    notes = (text,) if (text := unseen.note(snapshot)) else ()
    return replace(found, findings=findings, notes=(*found.notes, *notes), fine=found.fine and not hidden)
