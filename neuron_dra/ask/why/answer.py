"""Why a claim is not as it should be, and the reports of all kinds. Pure.

What only one kind needs is imported with its first report: most answers are about pods, and start in half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from neuron_dra.ask.read.claim_views import ClaimView, ResultView
from neuron_dra.ask.read.pod_views import PodPlace
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import UltraServerView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Finding, Report
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import server, unseen, users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

if TYPE_CHECKING:
    from neuron_dra.ask.world.fleet import NodeView


def of_claim(world: World, claim: Wire) -> Report:
    """Return the report about a ResourceClaim: who has it, or why it has no devices."""
    claim_view = ClaimView.of(claim)
    subject = f"claim {claim_view.metadata.namespace or 'default'}/{claim_view.metadata.name}"
    used_by = users.pods(world.snapshot, claim)
    if claim_view.metadata.deletion_timestamp:
        finalizers = ", ".join(claim_view.metadata.finalizers) or "none"
        text = f"the API server removes it when its finalizers are gone: {finalizers}"
        if used_by:
            text = f"it is gone when these pods have ended: {', '.join(used_by)}"
        return Report(subject, "is being deleted", (Finding("Deleted", text),))
    if claim_view.is_allocated:
        return _allocated(world, claim, claim_view.results, subject)
    for pod in world.snapshot.all("Pod"):
        is_in_namespace = PodPlace.of(pod).metadata.namespace == claim_view.metadata.namespace
        if is_in_namespace and any(pod_claim.exists and pod_claim.claim is claim for pod_claim in world.claims_of(pod)):
            report = why_pod.report(world, pod)
            return Report(
                f"{subject}, of {report.subject}",
                f"is not allocated: the pod {report.state}",
                report.findings,
                report.notes,
            )
    text = "no pod uses it: a claim is allocated when a pod that uses it is scheduled"
    return Report(subject, "is not allocated", (Finding("NoPod", text),))


def _allocated(world: World, claim: Wire, results: Sequence[ResultView], subject: str) -> Report:
    """Return the report about a claim that has devices: what it has, and for whom, as far as pods were seen."""
    where = ", ".join(dict.fromkeys(result.pool for result in results))
    spec = world.type_of(results[0].pool) if results else None
    state = f"has {words.devices([result.device for result in results], spec)} of {where}"
    if leftover_reason := users.leftover(world.snapshot, claim):
        text = f"it has its devices {leftover_reason}: kube-controller-manager has not released it"
        return Report(subject, state, (Finding("ClaimNotReleased", text),))
    used_by, groups = users.pods(world.snapshot, claim), users.groups(claim)
    if groups:
        pods = f" (pods {', '.join(used_by)})" if used_by else ""
        return Report(subject, f"{state}, for PodGroup {', '.join(groups)}{pods}", fine=True)
    if used_by:
        return Report(subject, f"{state}, for {', '.join(used_by)}", fine=True)
    if "Pod" in world.snapshot.left_out:
        return Report(subject, f"{state}; whether a pod uses it is unknown", fine=True)
    named_by = [pod["metadata"]["name"] for pod in users.naming(world.snapshot, claim)]
    if named_by:
        return Report(subject, f"{state}, and is not reserved for {', '.join(named_by)}, which names it", fine=True)
    notes = ("it keeps its devices until it is deleted",)
    return Report(subject, f"{state}, and no pod uses it", notes=notes, fine=True)


def of_ultraserver(world: World, server: Wire) -> Report:
    """Return the report about a NeuronUltraServer: its faults, from its nodes and its conditions."""
    ultraserver = UltraServerView.of(server)
    meta = ultraserver.metadata
    subject = f"UltraServer {meta.namespace or 'default'}/{meta.name}"
    name = ultraserver.status.ultraserver_id or meta.name
    return _of_group(world, subject, name, ultraserver)


def of_published(world: World, name: str) -> Report | None:
    """Return the report about an UltraServer that nodes publish by this id and that has no object; None without any."""
    if name not in world.ultraservers:
        return None
    return _with_what_was_seen(world, "NeuronUltraServer", _of_group(world, f"UltraServer {name}", name, None))


def _of_group(world: World, subject: str, name: str, ultraserver: UltraServerView | None) -> Report:
    """Return the report about the nodes of an UltraServer, and about its object if there is one."""
    from neuron_dra.ask.world import faults, tested

    group = faults.members(world, name)
    findings: list[Finding] = []
    for fault in faults.of_ultraserver(name, group, ultraserver):
        text = f"{fault.what}: {fault.detail}" if fault.detail else fault.what
        facts = () if findings else tuple([("node", _member(member)) for member in group])
        findings.append(Finding("UltraServerFault", text, facts))
    state = f"has {words.count(len(group), 'node')}"
    tags = [member.tag for member in group if member.tag is not None]
    reserved = sorted({tag.workload for tag in tags if not tested.is_test(tag)}, key=words.natural)
    if any(map(tested.is_test, tags)):
        state += f", {tested.IN_A_TEST}, which ends for a workload that needs the nodes"
    if reserved:
        state += f", reserved for {', '.join(reserved)}"
    if ultraserver is not None and ultraserver.is_spare:
        state += ", a spare, which only groups that must move may take"
    tests = tested.texts(tested.results(world, ultraserver)) if ultraserver is not None else []
    return Report(subject, state, tuple(findings), notes=tuple(tests), fine=not findings)


def _member(node: NodeView) -> str:
    """Return a node of an UltraServer with its position, and its links that are down."""
    text = f"{node.position}: {node.name}"
    for way, state in (("vertical", node.vertical), ("horizontal", node.horizontal)):
        if state is False:
            text += f", {way} link down"
    return text


def of_node(world: World, node: Wire) -> Report:
    """Return the report about a Node."""
    from neuron_dra.ask.why import node as why_node

    return why_node.report(world, node)


def of_workload(world: World, workload: Wire) -> Report:
    """Return the report about a NeuronUltraServerWorkload."""
    from neuron_dra.ask.why import workload as why_workload

    return why_workload.report(world, workload)


REPORTS: Final[Mapping[str, Callable[[World, Wire], Report]]] = {
    "Pod": why_pod.report,
    "ResourceClaim": of_claim,
    "Node": of_node,
    "NeuronUltraServer": of_ultraserver,
    "NeuronUltraServerWorkload": of_workload,
}

_OF_NODES: Final = ("ResourceSlice", "DeviceTaintRule")
"""Kinds that could show what is wrong with a node."""


def report(snapshot: Snapshot, kind: str, item: Wire) -> Report:
    """Return the report about an object; what could not be read makes a cause unknown, and changes are not proposed."""
    return of(World(snapshot, proposes=proposes(snapshot)), kind, item)


def proposes(snapshot: Snapshot) -> bool:
    """Return True if everything was read that changes are judged by."""
    return not unseen.kinds(snapshot).keys() & set(unseen.JUDGED)


def of(world: World, kind: str, item: Wire) -> Report:
    """Return the report about an object of a world, which proposes changes only if it can judge them."""
    return _with_what_was_seen(world, kind, REPORTS[kind](world, item))


def _with_what_was_seen(world: World, kind: str, object_report: Report) -> Report:
    """Return a report that says what was not seen, and calls unknown what this could have shown."""
    snapshot = world.snapshot
    missing = unseen.kinds(snapshot)
    findings = tuple(unseen.doubted(finding, snapshot) for finding in object_report.findings)
    if kind == "Node" and object_report.fine:
        unread_kinds = [node_kind for node_kind in _OF_NODES if node_kind in missing]
    else:
        unread_kinds = []
    if unread_kinds:
        text = f"unknown: nothing is wrong in what was read, but not all of kind {unread_kinds[0]} could be"
        findings = (Finding("Unknown", text),)
    notes: tuple[str, ...] = (text,) if (text := unseen.note(snapshot)) else ()
    if kind in ("Pod", "ResourceClaim") and not object_report.fine and (text := server.unknown(snapshot)):
        notes += (text,)
    is_fine = object_report.fine and not unread_kinds
    return replace(object_report, findings=findings, notes=(*object_report.notes, *notes), fine=is_fine)
