"""The conditions of the table of situations: what holds of a waiting pod, and what a row shows and tries. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import MetaView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import AVAILABLE, Facts, Finding, ProposedChange
from neuron_dra.ask.why import creating, gangs, gates, impossible, obstacles, sizes, trials
from neuron_dra.ask.why.creating import ClaimProblem
from neuron_dra.ask.world import absent, demand, events, selection, users
from neuron_dra.ask.world.blockers import Blocked, Blockers
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.world import World
from neuron_dra.core import program
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import nodes, pools
from neuron_dra.simulate.scheduler import Placement

Details = Mapping[str, Any]
"""What a condition found out, by the names that the row's text has in braces."""
Pairs = Iterable[tuple[str, str]]
Tried = Iterable[ProposedChange | None]

TIMEOUT: Final = re.compile(r"filter operation aborted|timed out|deadline exceeded", re.IGNORECASE)
_BEING_ALLOCATED: Final = re.compile("is in the process of being allocated")
_OF_POOLS: Final = re.compile("resourceSliceCount|invalid resource pools")
SCORING: Final = re.compile(r"number of allocations \d+ is smaller than number of claims")
ANYTHING: Final = re.compile("")
FRAGMENTED: Final = "Fragmented"
ORDINARY: Final = ("DevicesInUse", FRAGMENTED)
OF_DEVICES: Final = re.compile(r"cannot allocate all claims|resourceclaim|deviceclass", re.IGNORECASE)


class Case:
    """One waiting pod, with what its situation depends on, each computed once and only if a condition needs it."""

    def __init__(self, world: World, pod: Wire) -> None:
        self.world = world
        self.pod = pod
        self.seen = PodView.of(pod)
        self.namespace = self.seen.metadata.namespace

    @cached_property
    def problem(self) -> ClaimProblem | None:
        """What keeps a claim of the pod from existing, if anything does."""
        return creating.problem(self.world, self.pod)

    @cached_property
    def placed(self) -> Placement | None:
        """Where a simulation places the pod; None if nowhere."""
        outcome = self.world.place(self.pod)
        if isinstance(outcome, Placement):
            self.message, self.error = "", False
            return outcome
        self.message, self.error = outcome.message, outcome.error
        return None

    @cached_property
    def said(self) -> str:
        """The scheduler's last message about the pod, of a pod that would be placed."""
        return events.scheduler_words(self.world, self.pod)

    @property
    def foreign_scheduler(self) -> str:
        """The scheduler that the pod names, if it is not Kubernetes' own: what it decides is not simulated here."""
        name = self.seen.spec.scheduler_name
        return "" if name in ("", trials.DEFAULT_SCHEDULER) else name

    @cached_property
    def claims(self) -> list[Wire]:
        """The pod's claims, existing or as they would be created."""
        return [claim.claim for claim in self.world.claims_of(self.pod) if claim.claim is not None]

    @cached_property
    def blocked(self) -> list[Blocked]:
        """The nodes on which the claims that are not allocated yet could fit, and what is in the way there."""
        waiting = [claim for claim in self.claims if not ClaimView.of(claim).is_allocated]
        return sorted(Blockers(self.world, self.pod, waiting).all(), key=lambda place: words.natural(place.name))

    @cached_property
    def reachable(self) -> list[Blocked]:
        """Those of these nodes that can use the claims that are allocated."""
        usable_nodes = self.blocked
        for claim in self.claims:
            usable_nodes = self.reached(usable_nodes, claim)
        return usable_nodes

    def reached(self, blocked: list[Blocked], claim: Wire) -> list[Blocked]:
        """Return those of the nodes that can use a claim: all, unless it is allocated for some nodes only."""
        selector = node_selector(claim)
        if selector is None:
            return blocked
        return [place for place in blocked if nodes.matches(selector, self.world.decoded(place.node))]

    def attempt(self, text: str, *replaced: Wire) -> ProposedChange | None:
        """Return a change of these objects, if the pod can run after it."""
        return trials.attempt(self.world, self.pod, text, replaced)


def node_selector(claim: Wire) -> Wire | None:
    """Return the nodes for which a claim is allocated, as a NodeSelector; None if it is not, or for all nodes."""
    allocation = ClaimView.of(claim).status.allocation
    selector: Wire | None = allocation.node_selector if allocation is not None else None
    return selector


# Conditions about the pod, and about its claims.


def gated(case: Case) -> list[Finding]:
    if case.seen.spec.scheduling_gates:
        return [gates.finding(case.world, case.pod)]
    return []


def _problem(case: Case, code: str) -> ClaimProblem | None:
    problem = case.problem
    if problem is None or problem.code != code:
        return None
    return problem


def workload(case: Case) -> Details | None:
    problem = _problem(case, "TemplateMissing")
    if problem is None:
        return None
    workload = creating.workload_of(case.world, case.pod, problem.claim)
    if workload is not None:
        return creating.state_of(workload)
    return None


def template_missing(case: Case) -> Details | None:
    problem = _problem(case, "TemplateMissing")
    if problem is None:
        return None
    return _absent(case, "ResourceClaimTemplate", problem.claim.template_name, "resourceClaimTemplateName")


def claim_missing(case: Case) -> Details | None:
    problem = _problem(case, "ClaimMissing")
    if problem is None:
        return None
    return _absent(case, "ResourceClaim", problem.claim.claim_name, "resourceClaimName")


def _absent(case: Case, kind: str, name: str, field: str) -> Details:
    return {"kind": kind, "namespace": case.namespace, "name": name, "field": field}


def there(case: Case, details: Details) -> Pairs:
    """Return which objects of the kind there are instead."""
    kind, namespace = details["kind"], case.namespace
    stored_names = [key[2] for key in case.world.snapshot.objects if key[:2] == (kind, namespace)]
    facts = Facts()
    if stored_names:
        nearest_names = words.by_nearness(details["name"], stored_names, {})
        facts.add(AVAILABLE, f"in namespace {namespace}: {words.listed(nearest_names, 6)}")
    else:
        facts.add(AVAILABLE, f"none in namespace {namespace}")
    for template in _elsewhere(case, details):
        namespace = MetaView.of(template["metadata"]).namespace
        facts.add("elsewhere", f"namespace {namespace} has one of this name")
    return facts.done()


def _elsewhere(case: Case, details: Details) -> list[Wire]:
    """Return a template of this name in another namespace, if there is one."""
    if details["kind"] != "ResourceClaimTemplate":
        return []
    same = []
    for template in case.world.snapshot.all(details["kind"]):
        if template["metadata"]["name"] == details["name"]:
            same.append(template)
    return same[:1]


def named_again(case: Case, details: Details) -> Iterator[ProposedChange | None]:
    """Try the nearest name, and a copy of an object of this name in another namespace."""
    pod, field = case.pod, details["field"]
    near = case.world.snapshot.near(details["kind"], details["name"], case.namespace)
    if near and case.problem is not None and demand.may_mean(case.world.snapshot, details, near):
        entries = []
        for entry in pod["spec"]["resourceClaims"]:
            wrong = entry["name"] == case.problem.claim.entry
            entries.append({**entry, field: near} if wrong else entry)
        changed = {**pod, "spec": {**pod["spec"], "resourceClaims": entries}}
        yield case.attempt(f"in the pod, write {field}: {near}", changed)
    for template in _elsewhere(case, details):
        copied = {**template, "metadata": {**template["metadata"], "namespace": case.namespace}}
        yield case.attempt(f"create this template in namespace {case.namespace} too", copied)


def quota(case: Case) -> Details | None:
    problem = _problem(case, "QuotaExceeded")
    if problem is None or problem.quota is None:
        return None
    return creating.quota_needed(problem, problem.quota)


def raised(case: Case, details: Details) -> Iterator[ProposedChange | None]:
    quota, resource, enough = details["quota"], details["resource"], details["used"] + details["more"]
    spec = {**quota["spec"], "hard": {**quota["spec"]["hard"], resource: str(enough)}}
    yield case.attempt(f"raise {resource} of ResourceQuota {details['name']} to {enough}", {**quota, "spec": spec})


REWRITE: Final = f"resourceClaimName or resourceClaimTemplateName next to name; {program.NAME} migrate FILE"


def source_removed(case: Case) -> Details | None:
    problem = _problem(case, "ClaimSourceRemoved")
    if problem is not None:
        return {"entry": problem.claim.entry}
    return None


def admin_refused(case: Case) -> Details | None:
    if _problem(case, "AdminAccessRefused") is None:
        return None
    return {"namespace": case.namespace, "label": f"{creating.ADMIN_LABEL}=true"}


def claim_deleted(case: Case) -> Details | None:
    problem = _problem(case, "ClaimDeleted")
    if problem is None or (claim := problem.claim.claim) is None:
        return None
    pods = [user.name for user in ClaimView.of(claim).status.reserved_for]
    until = ""
    if pods:
        until = f": it is gone when these pods have ended: {', '.join(pods)}"
    return {"name": claim["metadata"]["name"], "until": until}


def claim_of_another(case: Case) -> Details | None:
    problem = _problem(case, "ClaimOfAnother")
    if problem is not None:
        return {"name": problem.claim.claim_name}
    return None


def claim_gone(case: Case) -> Details | None:
    """The pod had a claim of its template, which somebody deleted."""
    problem = _problem(case, "ClaimMissing")
    if problem is None or not problem.claim.template_name:
        return None
    return {"namespace": case.namespace, "name": problem.claim.claim_name}


def unserved(case: Case) -> Details | None:
    resource = demand.unserved(case.world.snapshot, case.pod)
    if resource:
        return {"resource": resource}
    return None


def plugin_down(case: Case) -> Details | None:
    resource = demand.unserved(case.world.snapshot, case.pod)
    if not resource:
        return None
    down = demand.left_behind(case.world.snapshot, resource)
    if not down:
        return None
    others = ""
    if len(down) > 1:
        others = f"; nor on {words.count(len(down) - 1, 'more node')}"
    return {"resource": resource, "node": down[0], "others": others}


def class_missing(case: Case) -> Details | None:
    for claim, ask in selection.requests(case.world, case.pod):
        name = ask.alternative.class_name
        if not name:
            what = "names no DeviceClass: resource.k8s.io/v1 has deviceClassName and count below exactly"
            return {"request": ask.name, "name": name, "claim": claim, "what": what}
        if name not in case.world.classes:
            what = f"names the DeviceClass {name}, which does not exist"
            return {"request": ask.name, "name": name, "claim": claim, "what": what}
    return None


def classes(case: Case, details: Details) -> Pairs:
    yield AVAILABLE, sizes.nearest_classes(case.world, details["name"]) or "no DeviceClass at all"


def nearest_class(case: Case, details: Details) -> Iterator[ProposedChange | None]:
    near = case.world.snapshot.near("DeviceClass", details["name"])
    if near:
        claim, request = details["claim"], details["request"]
        text = f"{trials.place_of(claim)}, request {request}: deviceClassName: {near}"
        yield case.attempt(text, *trials.with_class(claim, request, near))
    yield from sizes.changes(case.world, case.pod, details["name"])


# Conditions about a pod that a simulation places.


def rejected(case: Case) -> Details | None:
    if case.placed is None:
        return None
    why = trials.refused(case.world, case.pod, case.placed)
    if why:
        return {"why": why}
    return None


def rejected_name(case: Case) -> Details | None:
    if case.placed is None:
        return None
    why = absent.rejected_name(case.world, case.pod, case.placed.node)
    if why:
        return {"why": why}
    return None


def _uncreated(case: Case) -> str:
    """Return a claim that could be created and is not; empty if there is none, or if the pod is placed nowhere."""
    if case.placed is None:
        return ""
    for pod_claim in case.world.claims_of(case.pod):
        if not pod_claim.exists and pod_claim.entry != FROM_LIMITS:
            return pod_claim.entry
    return ""


def creation_failed(case: Case) -> Details | None:
    if not _uncreated(case):
        return None
    for event in events.about(case.world, "Pod", case.pod):
        if event.reason == "FailedResourceClaimCreation":
            return {"message": event.message}
    return None


def not_created(case: Case) -> Details | None:
    claim = _uncreated(case)
    if claim:
        return {"claim": claim}
    return None


def says(case: Case, pattern: re.Pattern[str]) -> Details | None:
    """The pod fits, and the scheduler's message has these words."""
    if case.placed is None or not case.said or not pattern.search(case.said):
        return None
    return {"said": case.said, "gets": trials.gets(case.world, case.placed)}


def gang_waits(case: Case) -> Details | None:
    if case.placed is not None:
        return gangs.waits(case.world, case.pod)
    return None


def group_waits(case: Case) -> Details | None:
    """The scheduler's words show that a group waits as a whole, though it fits, or was not read."""
    group = users.group_of(case.pod)
    if not group:
        return None
    details = says(case, gangs.AS_A_WHOLE)
    if details is not None:
        return {**details, "group": group}
    return None


def gang_shares(case: Case) -> Details | None:
    if not users.group_of(case.pod):
        return None
    return says(case, _BEING_ALLOCATED)


def contradictory(case: Case) -> Details | None:
    """The scheduler's words show that slices of a pool disagree, though the pod fits in a simulation."""
    details = says(case, _OF_POOLS) or says(case, OF_DEVICES)
    if details is None:
        return None
    disagreeing = pools.disagreeing(case.world.snapshot.all("ResourceSlice"))
    if disagreeing:
        return {**details, "disagreement": disagreeing[0]}
    return None


def silent(case: Case) -> Details | None:
    """The pod fits, and the scheduler has said nothing."""
    if case.placed is None or case.said:
        return None
    scheduler = case.seen.spec.scheduler_name or trials.DEFAULT_SCHEDULER
    return {"scheduler": scheduler, "gets": trials.gets(case.world, case.placed)}


def other_scheduler(case: Case) -> Details | None:
    details = silent(case)
    if details is None or details["scheduler"] == trials.DEFAULT_SCHEDULER:
        return None
    return details


def foreign_says(case: Case) -> Details | None:
    """Another scheduler keeps the pod waiting, though Kubernetes' own would place it."""
    details = says(case, ANYTHING)
    if details is None or not case.foreign_scheduler or case.placed is None:
        return None
    message = events.quoted(case.said)
    scheduler = events.program(case.foreign_scheduler)
    return {"scheduler": scheduler, "message": message, "node": case.placed.node, "gets": details["gets"]}


def after_scheduler(case: Case, findings: list[Finding]) -> list[Finding]:
    """Return causes that a simulation found, the first one behind the scheduler that the pod names, if it has one."""
    if not case.foreign_scheduler or case.placed is not None:
        return findings
    scheduler = f"its scheduler {events.program(case.foreign_scheduler)}"
    scheduler_message = events.scheduler_words(case.world, case.pod)
    if scheduler_message:
        text = f"{scheduler}, which is not simulated here, says {events.quoted(scheduler_message)}"
    else:
        text = f"{scheduler} has not handled it"
    first = replace(findings[0], text=f"{text}; Kubernetes' own would not place it either: {findings[0].text}")
    return [first, *findings[1:]]


def default_scheduler(case: Case, details: Details) -> Iterator[ProposedChange | None]:
    changed = {**case.pod, "spec": {**case.pod["spec"], "schedulerName": trials.DEFAULT_SCHEDULER}}
    yield case.attempt("in the pod, remove schedulerName", changed)


def heard(case: Case, details: Details) -> Pairs:
    """Return what the scheduler said, if it said anything."""
    if case.said:
        yield "scheduler", case.said


def simulated(case: Case, details: Details) -> Pairs:
    if "said" in details:
        yield "scheduler", details["said"]
    yield "simulated", f"the pod {details['gets']}"


# Conditions about a pod that a simulation places nowhere.


def selector_error(case: Case) -> list[Finding]:
    if not case.error:
        return []
    finding = impossible.selector_error(case.world, case.pod)
    if finding is not None:
        return [finding]
    return []


def allocated_elsewhere(case: Case) -> Details | None:
    usable_nodes = case.blocked
    for claim in case.claims:
        usable_nodes = case.reached(usable_nodes, claim)
        if not usable_nodes and node_selector(claim) is not None:
            pools = sorted({result.pool for result in ClaimView.of(claim).results}, key=words.natural)
            return {"claim": claim["metadata"]["name"], "pools": ", ".join(pools)}
    return None


def in_the_way(case: Case) -> list[Finding]:
    if not case.reachable:
        return []
    tied = [claim["metadata"]["name"] for claim in case.claims if node_selector(claim)]
    findings = obstacles.findings(case.world, case.pod, case.reachable, tied)
    # That devices are in use is ordinary; that a node publishes none is not, so it comes first.
    if tied or findings[0].code not in ORDINARY:
        return findings
    lacking = absent.without_devices(case.world, case.pod)
    missing = absent.finding(case.world, case.pod, lacking)
    if missing is None and findings[0].code == FRAGMENTED:
        # Devices in use are one thing in the way, so they come before a node with two.
        missing = obstacles.behind_absence(case.world, case.pod, case.claims, lacking)
    return findings if missing is None else [missing, *findings]


def no_node_could(case: Case) -> list[Finding]:
    if case.reachable:
        return []
    findings = impossible.findings(case.world, case.pod)
    if findings[0].code not in ("NoDevicesPublished", "PoolIncomplete"):
        return findings
    lacking = absent.without_devices(case.world, case.pod)
    if absent.finding(case.world, case.pod, lacking) is not None:
        return findings
    several = obstacles.behind_absence(case.world, case.pod, case.claims, lacking)
    return findings if several is None else [several, *findings[1:]]
