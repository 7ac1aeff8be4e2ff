"""The situations of a pod that waits for a node, as one table: condition, code, text, facts and changes. Pure.

The first row whose condition holds is the cause. The later rows need a simulation, so the cheap ones come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Change, Facts, Finding
from neuron_dra.ask.why import bound, creating, gates, impossible, obstacles, trials
from neuron_dra.ask.why.case import Case, allocation
from neuron_dra.ask.why.creating import ClaimProblem
from neuron_dra.ask.world import demand, events, selection, users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import pools

Found = Mapping[str, Any]
"""What a condition found, by the names that the text uses."""
Pairs = Iterable[tuple[str, str]]
Tried = Iterable[Change | None]

_TIMEOUT: Final = re.compile(r"filter operation aborted|timed out|deadline exceeded", re.IGNORECASE)
_BEING_ALLOCATED: Final = re.compile("is in the process of being allocated")
_OF_POOLS: Final = re.compile("resourceSliceCount|invalid resource pools")
_ANYTHING: Final = re.compile("")
_OF_DEVICES: Final = re.compile(r"cannot allocate all claims|resourceclaim|deviceclass", re.IGNORECASE)


def _nothing(case: Case, found: Found) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True)
class PodSituation:
    """One row of the table.

    - `condition`: returns what it found, or None if the pod is in another situation.
    - `text`: the first line of the finding, with what the condition found in braces.
    - `facts`, `changes`: what is shown below it; changes that no simulation confirms are None.
    """

    code: str
    condition: Callable[[Case], Found | None]
    text: str
    facts: Callable[[Case, Found], Pairs] = _nothing
    changes: Callable[[Case, Found], Tried] = _nothing

    def findings(self, case: Case) -> list[Finding]:
        """Return the finding, or none if the pod is in another situation."""
        found = self.condition(case)
        if found is None:
            return []
        facts = tuple(self.facts(case, found))
        changes = tuple(change for change in self.changes(case, found) if change is not None)
        return [Finding(self.code, self.text.format(**found), facts, changes)]


@dataclass(frozen=True, slots=True)
class Several:
    """A row whose situations are told apart by another module: of the claim's requests, or of the nodes."""

    findings: Callable[[Case], list[Finding]]


def waiting(world: World, pod: Wire) -> list[Finding]:
    """Return why a pod has no node."""
    case = Case(world, pod)
    for row in WAITING:
        found = row.findings(case)
        if found:
            return found
    return []


# Conditions about the pod, and about its claims.


def _gates(case: Case) -> list[Finding]:
    return [gates.finding(case.world, case.pod)] if case.pod["spec"].get("schedulingGates") else []


def _problem(case: Case, code: str) -> ClaimProblem | None:
    problem = case.problem
    return problem if problem is not None and problem.code == code else None


def _workload(case: Case) -> Found | None:
    problem = _problem(case, "TemplateMissing")
    workload = creating.workload_of(case.world, case.pod, problem.claim) if problem is not None else None
    return creating.state_of(workload) if workload is not None else None


def _template_missing(case: Case) -> Found | None:
    problem = _problem(case, "TemplateMissing")
    if problem is None:
        return None
    return _absent(case, "ResourceClaimTemplate", problem.claim.template_name, "resourceClaimTemplateName")


def _claim_missing(case: Case) -> Found | None:
    problem = _problem(case, "ClaimMissing")
    if problem is None:
        return None
    return _absent(case, "ResourceClaim", problem.claim.claim_name, "resourceClaimName")


def _absent(case: Case, kind: str, name: str, field: str) -> Found:
    return {"kind": kind, "namespace": case.namespace, "name": name, "field": field}


def _there(case: Case, found: Found) -> Pairs:
    """Return which objects of the kind there are instead."""
    kind, namespace = found["kind"], case.namespace
    there = sorted(key[2] for key in case.world.snapshot.objects if key[:2] == (kind, namespace))
    facts = Facts()
    facts.add(
        "was there", f"in namespace {namespace}: {', '.join(there[:6])}" if there else f"none in namespace {namespace}"
    )
    for other in _elsewhere(case, found):
        facts.add("elsewhere", f"namespace {other['metadata'].get('namespace')} has one of this name")
    return facts.done()


def _elsewhere(case: Case, found: Found) -> list[Wire]:
    """Return a template of this name in another namespace, if there is one."""
    if found["kind"] != "ResourceClaimTemplate":
        return []
    same = [each for each in case.world.snapshot.all(found["kind"]) if each["metadata"]["name"] == found["name"]]
    return same[:1]


def _named_again(case: Case, found: Found) -> Iterator[Change | None]:
    """Try the nearest name, and a copy of an object of this name in another namespace."""
    pod, field = case.pod, found["field"]
    near = case.world.snapshot.near(found["kind"], found["name"], case.namespace)
    if near and case.problem is not None:
        entries = []
        for entry in pod["spec"]["resourceClaims"]:
            wrong = entry["name"] == case.problem.claim.entry
            entries.append({**entry, field: near} if wrong else entry)
        changed = {**pod, "spec": {**pod["spec"], "resourceClaims": entries}}
        yield case.attempt(f"in the pod, write {field}: {near}", changed)
    for other in _elsewhere(case, found):
        copied = {**other, "metadata": {**other["metadata"], "namespace": case.namespace}}
        yield case.attempt(f"create this template in namespace {case.namespace} too", copied)


def _quota(case: Case) -> Found | None:
    problem = _problem(case, "QuotaExceeded")
    if problem is None or problem.quota is None:
        return None
    return creating.quota_needed(problem, problem.quota)


def _raised(case: Case, found: Found) -> Iterator[Change | None]:
    quota, resource, enough = found["quota"], found["resource"], found["used"] + found["more"]
    spec = {**(quota.get("spec") or {}), "hard": {**quota["spec"]["hard"], resource: str(enough)}}
    yield case.attempt(f"raise {resource} of ResourceQuota {found['name']} to {enough}", {**quota, "spec": spec})


_REWRITE: Final = "resourceClaimName or resourceClaimTemplateName beside name; neuron-dra migrate FILE"


def _source_removed(case: Case) -> Found | None:
    problem = _problem(case, "ClaimSourceRemoved")
    return {"entry": problem.claim.entry} if problem is not None else None


def _admin_refused(case: Case) -> Found | None:
    if _problem(case, "AdminAccessRefused") is None:
        return None
    return {"namespace": case.namespace, "label": f"{creating.ADMIN_LABEL}=true"}


def _claim_deleted(case: Case) -> Found | None:
    problem = _problem(case, "ClaimDeleted")
    claim = problem.claim.claim if problem is not None else None
    if claim is None:
        return None
    users = [user["name"] for user in (claim.get("status") or {}).get("reservedFor") or ()]
    until = f": it is gone when these pods have ended: {', '.join(users)}" if users else ""
    return {"name": claim["metadata"]["name"], "until": until}


def _claim_of_another(case: Case) -> Found | None:
    problem = _problem(case, "ClaimOfAnother")
    return {"name": problem.claim.claim_name} if problem is not None else None


def _claim_gone(case: Case) -> Found | None:
    """The pod had a claim of its template, which somebody deleted."""
    problem = _problem(case, "ClaimMissing")
    if problem is None or not problem.claim.template_name:
        return None
    return {"namespace": case.namespace, "name": problem.claim.claim_name}


def _unserved(case: Case) -> Found | None:
    resource = demand.unserved(case.world.snapshot, case.pod)
    return {"resource": resource} if resource else None


def _plugin_down(case: Case) -> Found | None:
    resource = demand.unserved(case.world.snapshot, case.pod)
    down = demand.left_behind(case.world.snapshot, resource) if resource else []
    if not down:
        return None
    others = f"; nor on {words.count(len(down) - 1, 'more node')}" if len(down) > 1 else ""
    return {"resource": resource, "node": down[0], "others": others}


def _class_missing(case: Case) -> Found | None:
    for claim, ask in selection.requests(case.world, case.pod):
        name = ask.alternative.class_name
        if name not in case.world.classes:
            return {"request": ask.name, "name": name, "claim": claim}
    return None


def _classes(case: Case, found: Found) -> Pairs:
    yield "was there", ", ".join(sorted(case.world.classes)[:8]) or "no DeviceClass at all"


def _nearest_class(case: Case, found: Found) -> Iterator[Change | None]:
    near = case.world.snapshot.near("DeviceClass", found["name"])
    if near:
        claim, request = found["claim"], found["request"]
        text = f"{trials.place_of(claim)}, request {request}: deviceClassName: {near}"
        yield case.attempt(text, *trials.with_class(claim, request, near))


# Conditions about a pod that a simulation places.


def _rejected(case: Case) -> Found | None:
    why = trials.refused(case.world, case.placed) if case.placed is not None else ""
    return {"why": why} if why else None


def _rejected_name(case: Case) -> Found | None:
    why = bound.rejected_name(case.world, case.pod, case.placed.node) if case.placed is not None else ""
    return {"why": why} if why else None


def _uncreated(case: Case) -> str:
    """Return a claim that could be created and is not; empty if there is none, or if the pod is placed nowhere."""
    if case.placed is None:
        return ""
    absent = [each.entry for each in case.world.claims_of(case.pod) if not each.exists and each.entry != "limits"]
    return absent[0] if absent else ""


def _creation_failed(case: Case) -> Found | None:
    if not _uncreated(case):
        return None
    for event in events.about(case.world, "Pod", case.pod):
        if event.reason == "FailedResourceClaimCreation":
            return {"message": event.message}
    return None


def _not_created(case: Case) -> Found | None:
    claim = _uncreated(case)
    return {"claim": claim} if claim else None


def _says(case: Case, pattern: re.Pattern[str]) -> Found | None:
    """The pod fits, and the scheduler's message has these words."""
    if case.placed is None or not case.said or not pattern.search(case.said):
        return None
    return {"said": case.said, "gets": trials.gets(case.world, case.placed)}


def _gang(case: Case) -> Found | None:
    found = _says(case, _BEING_ALLOCATED)
    return found if found is not None and users.group_of(case.pod) else None


def _contradictory(case: Case) -> Found | None:
    """The scheduler's words show that slices of a pool disagree, though the pod fits in a simulation."""
    found = _says(case, _OF_POOLS) or _says(case, _OF_DEVICES)
    disagreeing = pools.disagreeing(case.world.snapshot.all("ResourceSlice")) if found is not None else ()
    return {**found, "disagreement": disagreeing[0]} if found is not None and disagreeing else None


def _silent(case: Case) -> Found | None:
    """The pod fits, and the scheduler has said nothing."""
    if case.placed is None or case.said:
        return None
    scheduler = case.pod["spec"].get("schedulerName") or trials.DEFAULT_SCHEDULER
    return {"scheduler": scheduler, "gets": trials.gets(case.world, case.placed)}


def _other_scheduler(case: Case) -> Found | None:
    found = _silent(case)
    return found if found is not None and found["scheduler"] != trials.DEFAULT_SCHEDULER else None


def _default_scheduler(case: Case, found: Found) -> Iterator[Change | None]:
    changed = {**case.pod, "spec": {**case.pod["spec"], "schedulerName": trials.DEFAULT_SCHEDULER}}
    yield case.attempt("in the pod, remove schedulerName", changed)


def _simulated(case: Case, found: Found) -> Pairs:
    if "said" in found:
        yield "scheduler", found["said"]
    yield "simulated", f"the pod {found['gets']}"


# Conditions about a pod that a simulation places nowhere.


def _selector_error(case: Case) -> list[Finding]:
    found = impossible.selector_error(case.world, case.pod) if case.placed is None and case.error else None
    return [found] if found is not None else []


def _request_error(case: Case) -> Found | None:
    return {"message": case.message} if case.placed is None and case.error else None


def _allocated_elsewhere(case: Case) -> Found | None:
    left = case.blocked
    for claim in case.claims:
        left = case.reached(left, claim)
        if not left and allocation(claim).get("nodeSelector") is not None:
            results = (allocation(claim).get("devices") or {}).get("results") or ()
            pools = sorted({each["pool"] for each in results})
            return {"claim": claim["metadata"]["name"], "pools": ", ".join(pools)}
    return None


def _in_the_way(case: Case) -> list[Finding]:
    tied = [claim["metadata"]["name"] for claim in case.claims if allocation(claim).get("nodeSelector")]
    return obstacles.findings(case.world, case.pod, case.reachable, tied) if case.reachable else []


def _no_node_could(case: Case) -> list[Finding]:
    return [] if case.reachable else impossible.findings(case.world, case.pod)


WORKLOAD: Final = PodSituation(
    "WorkloadNotAllocated",
    _workload,
    "its workload {workload} has no reserved nodes yet: it is {state}",
    lambda case, found: found["conditions"],
)
CLASS_MISSING: Final = PodSituation(
    "ClassMissing",
    _class_missing,
    "request {request} names the DeviceClass {name}, which does not exist",
    _classes,
    _nearest_class,
)
WAITING: Final[tuple[PodSituation | Several, ...]] = (
    Several(_gates),
    WORKLOAD,
    PodSituation("TemplateMissing", _template_missing, "there is no {kind} {namespace}/{name}", _there, _named_again),
    PodSituation(
        "QuotaExceeded",
        _quota,
        "ResourceQuota {namespace}/{name} allows {hard} of {resource}: {used} used, {more} more needed",
        changes=_raised,
    ),
    PodSituation(
        "ClaimSourceRemoved",
        _source_removed,
        "resourceClaims entry {entry}: its field source was removed in Kubernetes 1.31",
        lambda case, found: (("rewrite", _REWRITE),),
    ),
    PodSituation(
        "AdminAccessRefused",
        _admin_refused,
        "the API server rejects adminAccess in namespace {namespace}, whose label {label} is missing",
        lambda case, found: (("to check", f"kubectl label namespace {found['namespace']} {found['label']}"),),
    ),
    PodSituation("ClaimDeleted", _claim_deleted, "its claim {name} is being deleted{until}"),
    PodSituation(
        "ClaimOfAnother",
        _claim_of_another,
        "the claim {name} belongs to a former pod of this name: it is deleted soon",
    ),
    PodSituation(
        "ClaimMissing",
        _claim_gone,
        "its claim {namespace}/{name} was deleted: delete the pod, so that it gets a new one",
    ),
    PodSituation("ClaimMissing", _claim_missing, "there is no {kind} {namespace}/{name}", _there, _named_again),
    PodSituation(
        "DevicePluginDown",
        _plugin_down,
        "it requests {resource}, and the Neuron device plugin of node {node} does not run{others}",
        lambda case, found: (("to check", "its DaemonSet; or rewrite the manifest: neuron-dra migrate FILE"),),
    ),
    PodSituation(
        "DevicePluginLimits",
        _unserved,
        "it requests {resource}, which no node offers: the manifest is for the Neuron device plugin",
        lambda case, found: (("rewrite", "neuron-dra migrate FILE"),),
    ),
    CLASS_MISSING,
    PodSituation("DriverRejects", _rejected, "the driver would reject the claim: {why}"),
    PodSituation("KubeletRejectsName", _rejected_name, "{why}"),
    PodSituation(
        "ClaimNotCreated",
        _creation_failed,
        "its claim could not be created: {message}",
        lambda case, found: (("event", found["message"]),),
    ),
    PodSituation("ClaimNotCreated", _not_created, "its claim {claim} is not created yet, by kube-controller-manager"),
    PodSituation(
        "SchedulerTimeout",
        partial(_says, pattern=_TIMEOUT),
        "the scheduler gave up: it searches a node for at most 10 s",
        _simulated,
    ),
    PodSituation(
        "NoScheduler",
        _other_scheduler,
        "its scheduler {scheduler!r} has not handled it: does it run?",
        _simulated,
        _default_scheduler,
    ),
    PodSituation(
        "Unknown", _silent, "unknown: the scheduler has not handled it yet, and in a simulation it fits", _simulated
    ),
    PodSituation(
        "GangSharesClaim",
        _gang,
        "a known fault of the scheduler: pods of a PodGroup that share a new claim keep it from each other "
        "(kubernetes/kubernetes#137617)",
        _simulated,
    ),
    PodSituation("PoolContradictory", _contradictory, "{disagreement}", _simulated),
    PodSituation(
        "Unknown",
        partial(_says, pattern=_OF_DEVICES),
        "unknown: the scheduler could not allocate its claims, and in a simulation it fits",
        _simulated,
    ),
    PodSituation(
        "SchedulerSays",
        partial(_says, pattern=_ANYTHING),
        "not because of its devices; the scheduler's reason: {said}",
        _simulated,
    ),
    Several(_selector_error),
    PodSituation("RequestError", _request_error, "{message}"),
    PodSituation("Unknown", lambda case: None if case.world.nodes else {}, "unknown: the snapshot has no nodes"),
    PodSituation(
        "AllocatedElsewhere",
        _allocated_elsewhere,
        "its claim {claim} is allocated on {pools}, where the pod cannot run",
    ),
    Several(_in_the_way),
    Several(_no_node_could),
    PodSituation("Unknown", lambda case: {"message": case.message}, "unknown: {message}"),
)
"""The situations of a pod without a node, in the order in which they are tried."""
