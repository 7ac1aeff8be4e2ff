"""The situations of a pod that waits for a node, as one table: condition, code, text, facts and changes. Pure.

The first row whose condition holds is the cause. The later rows need a simulation, so the cheap ones come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.why import autoscaled, conditions, sizes
from neuron_dra.ask.why.conditions import Case, Details, Pairs, Tried
from neuron_dra.ask.world import events
from neuron_dra.ask.world.world import World
from neuron_dra.core import program
from neuron_dra.core.wire import Wire


def _nothing(case: Case, details: Details) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True)
class PodSituation:
    """One row of the table.

    - `condition`: returns what it found, or None if the pod is in another situation.
    - `text`: the first line of the finding, with what the condition found in braces.
    - `facts`, `changes`: what is shown below it; changes that no simulation confirms are None.
    """

    code: str
    condition: Callable[[Case], Details | None]
    text: str
    facts: Callable[[Case, Details], Pairs] = _nothing
    changes: Callable[[Case, Details], Tried] = _nothing

    def findings(self, case: Case) -> list[Finding]:
        """Return the finding, or none if the pod is in another situation."""
        details = self.condition(case)
        if details is None:
            return []
        facts = tuple(self.facts(case, details))
        changes = tuple(change for change in self.changes(case, details) if change is not None)
        return [Finding(self.code, self.text.format(**details), facts, changes)]


@dataclass(frozen=True, slots=True)
class Several:
    """A row whose situations are told apart by another module: of the claim's requests, or of the nodes."""

    findings: Callable[[Case], list[Finding]]


def waiting(world: World, pod: Wire) -> list[Finding]:
    """Return why a pod has no node."""
    case = Case(world, pod)
    for row in OF_CLAIMS:
        findings = row.findings(case)
        if findings:
            return findings
    for row in OF_NODES:
        findings = row.findings(case)
        if findings:
            findings = conditions.after_scheduler(case, findings)
            refusal = events.autoscaler_refusal(world, pod)
            return findings if refusal is None else autoscaled.explained(findings, *refusal)
    return []


WORKLOAD: Final = PodSituation(
    "WorkloadNotAllocated",
    conditions.workload,
    "its workload {workload} has no reserved nodes yet: it is {state}",
    lambda case, details: details["conditions"],
)
CLASS_MISSING: Final = PodSituation(
    "ClassMissing",
    conditions.class_missing,
    "request {request} {what}",
    conditions.classes,
    conditions.nearest_class,
)
OF_CLAIMS: Final[tuple[PodSituation | Several, ...]] = (
    Several(conditions.gated),
    WORKLOAD,
    PodSituation(
        "TemplateMissing",
        conditions.template_missing,
        "there is no {kind} {namespace}/{name}",
        conditions.there,
        conditions.named_again,
    ),
    PodSituation(
        "QuotaExceeded",
        conditions.quota,
        "ResourceQuota {namespace}/{name} allows {hard} of {resource}: {used} used, {more} more needed",
        changes=conditions.raised,
    ),
    PodSituation(
        "ClaimSourceRemoved",
        conditions.source_removed,
        "resourceClaims entry {entry}: its field source was removed in Kubernetes 1.31",
        lambda case, details: (("rewrite", conditions.REWRITE),),
    ),
    PodSituation(
        "AdminAccessRefused",
        conditions.admin_refused,
        "the API server rejects adminAccess in namespace {namespace}, whose label {label} is missing",
        lambda case, details: (("to check", f"kubectl label namespace {details['namespace']} {details['label']}"),),
    ),
    PodSituation("ClaimDeleted", conditions.claim_deleted, "its claim {name} is being deleted{until}"),
    PodSituation(
        "ClaimOfAnother",
        conditions.claim_of_another,
        "the claim {name} belongs to a former pod of this name: it is deleted soon",
    ),
    PodSituation(
        "ClaimMissing",
        conditions.claim_gone,
        "its claim {namespace}/{name} was deleted: delete the pod, so that it gets a new one",
    ),
    PodSituation(
        "ClaimMissing",
        conditions.claim_missing,
        "there is no {kind} {namespace}/{name}",
        conditions.there,
        conditions.named_again,
    ),
    PodSituation(
        "DevicePluginDown",
        conditions.plugin_down,
        "it requests {resource}, and the Neuron device plugin of node {node} does not run{others}",
        lambda case, details: (("to check", f"its DaemonSet; or rewrite the manifest: {program.NAME} migrate FILE"),),
    ),
    PodSituation(
        "DevicePluginLimits",
        conditions.unserved,
        "it requests {resource}, which no node offers: the manifest is for the Neuron device plugin",
        lambda case, details: (
            ("rewrite", f"{program.NAME} migrate FILE"),
            *sizes.rewriting(case.world, case.pod, details["resource"]),
        ),
    ),
    CLASS_MISSING,
)
"""What keeps a pod from every scheduler, in the order in which the rows are tried: its gates, and its claims."""
OF_NODES: Final[tuple[PodSituation | Several, ...]] = (
    PodSituation("DriverRejects", conditions.rejected, "the driver would reject the claim: {why}"),
    PodSituation("KubeletRejectsName", conditions.rejected_name, "{why}"),
    PodSituation(
        "ClaimNotCreated",
        conditions.creation_failed,
        "its claim could not be created: {message}",
        lambda case, details: (("event", details["message"]),),
    ),
    PodSituation(
        "ClaimNotCreated", conditions.not_created, "its claim {claim} is not created yet, by kube-controller-manager"
    ),
    PodSituation(
        "OtherScheduler",
        conditions.foreign_says,
        "its scheduler {scheduler}, which is not simulated here, says {message}; Kubernetes' own would place it on "
        "node {node}",
        lambda case, details: (("simulated", f"the pod {details['gets']}"),),
    ),
    PodSituation(
        "GangWaits", conditions.gang_waits, "PodGroup {group} needs {least} pods at once, and {what}", conditions.heard
    ),
    PodSituation(
        "GangWaits",
        conditions.group_waits,
        "its PodGroup {group} waits as a whole; the scheduler's reason: {said}",
        conditions.simulated,
    ),
    PodSituation(
        "SchedulerTimeout",
        partial(conditions.says, pattern=conditions.TIMEOUT),
        "the scheduler gave up: it searches a node for at most 10 s",
        conditions.simulated,
    ),
    PodSituation(
        "NoScheduler",
        conditions.other_scheduler,
        "its scheduler {scheduler!r} has not handled it: does it run?",
        conditions.simulated,
        conditions.default_scheduler,
    ),
    PodSituation(
        "Unknown",
        conditions.silent,
        "unknown: the scheduler has not handled it yet, and in a simulation it fits",
        conditions.simulated,
    ),
    PodSituation(
        "GangSharesClaim",
        conditions.gang_shares,
        "a known fault of the scheduler: pods of a PodGroup that share a new claim keep it from each other "
        "(kubernetes/kubernetes#137617)",
        conditions.simulated,
    ),
    PodSituation(
        "SchedulerFault",
        partial(conditions.says, pattern=conditions.SCORING),
        "a known fault of the scheduler: it cannot score nodes for a pod with a claim that is allocated and one that "
        "is not (kubernetes/kubernetes#139016)",
        conditions.simulated,
    ),
    PodSituation("PoolContradictory", conditions.contradictory, "{disagreement}", conditions.heard),
    PodSituation(
        "Unknown",
        partial(conditions.says, pattern=conditions.OF_DEVICES),
        "unknown: the scheduler could not allocate its claims, and in a simulation it fits",
        conditions.simulated,
    ),
    PodSituation(
        "SchedulerSays",
        partial(conditions.says, pattern=conditions.ANYTHING),
        "not because of its devices; the scheduler's reason: {said}",
        conditions.simulated,
    ),
    Several(conditions.selector_error),
    PodSituation("RequestError", lambda case: {"message": case.message} if case.error else None, "{message}"),
    PodSituation("Unknown", lambda case: None if case.world.nodes else {}, "unknown: the snapshot has no nodes"),
    PodSituation(
        "AllocatedElsewhere",
        conditions.allocated_elsewhere,
        "its claim {claim} is allocated on {pools}, where the pod cannot run",
    ),
    Several(conditions.in_the_way),
    Several(conditions.no_node_could),
    PodSituation("Unknown", lambda case: {"message": case.message}, "unknown: {message}"),
)
"""What keeps a pod with claims from a node, in the order in which the rows are tried; most need a simulation."""
