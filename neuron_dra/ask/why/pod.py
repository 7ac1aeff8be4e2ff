"""Why a pod waits, was rejected, or does not start: the true cause first. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.snapshot import is_ready
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Change, Facts, Finding, Report
from neuron_dra.ask.why import blockers, bound, creating, gates, impossible, obstacles, starting, trials
from neuron_dra.ask.why.blockers import Blocked
from neuron_dra.ask.world import demand, events, users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import nodes, pools
from neuron_dra.simulate.scheduler import Placement

_TIMEOUT: Final = re.compile(r"filter operation aborted|timed out|deadline exceeded", re.IGNORECASE)
_OF_DEVICES: Final = re.compile(r"cannot allocate all claims|resourceclaim|deviceclass", re.IGNORECASE)


def report(world: World, pod: Wire) -> Report:
    """Return the report about a pod."""
    meta, status = pod["metadata"], pod.get("status") or {}
    subject = f"pod {meta.get('namespace') or 'default'}/{meta['name']}"
    phase = status.get("phase") or "Pending"
    if phase == "Succeeded":
        return Report(subject, "has ended, with success", fine=True)
    if (failure := starting.failed(pod)) is not None:
        refused = bound.rejected_name(world, pod, pod["spec"].get("nodeName") or "")
        facts = (("status", failure.text),)
        return Report(subject, "has failed", (Finding("KubeletRejectsName", refused, facts) if refused else failure,))
    if meta.get("deletionTimestamp"):
        return Report(subject, "is being deleted", (bound.never_created(world, pod) or _deleted(pod),))
    if pod["spec"].get("nodeName"):
        if (without := bound.no_injection(world, pod)) is not None and phase == "Running":
            return Report(subject, f"runs on node {pod['spec']['nodeName']} without its devices", (without,))
        found = starting.findings(world, pod)
        unusable = None if phase == "Running" else bound.unusable_claim(world, pod)
        if unusable is not None:
            found = [unusable, *(each for each in found if each.code != "KubeletRejects")]
        if not found and (is_ready(pod) or phase == "Running"):
            return Report(subject, f"runs on node {pod['spec']['nodeName']}", fine=True)
        found = found or [_unknown_start(world, pod)]
        return Report(subject, f"does not run on node {pod['spec']['nodeName']}", tuple(found))
    return Report(subject, "waits for a node", tuple(waiting(world, pod)), (*_groups(world, pod), *_not_modelled(pod)))


def _deleted(pod: Wire) -> Finding:
    finalizers = ", ".join(pod["metadata"].get("finalizers") or ())
    if finalizers:
        return Finding("Deleted", f"the pod is being deleted, and its finalizers keep it: {finalizers}")
    if pod["spec"].get("nodeName"):
        return Finding("Deleted", f"the pod ends when the kubelet of node {pod['spec']['nodeName']} has stopped it")
    return Finding("Deleted", "the pod is being deleted")


def _unknown_start(world: World, pod: Wire) -> Finding:
    facts = Facts()
    facts.some("event", (f"{e.get('reason')}: {e.get('message')}" for e in events.about(world, "Pod", pod)[:3]))
    if world.snapshot.all("Event"):
        return Finding("Unknown", "unknown: neither the pod's status nor its events show a reason", facts.done())
    return Finding("Unknown", "unknown: the snapshot has no events, which would show it")


def waiting(world: World, pod: Wire) -> list[Finding]:
    """Return why a pod has no node."""
    if pod["spec"].get("schedulingGates"):
        return [gates.finding(world, pod)]
    if (problem := creating.problem(world, pod)) is not None:
        return [_claims(world, pod, problem)]
    if limits := _plugin_limits(world, pod):
        return [limits]
    if missing := impossible.missing_class(world, pod):
        return [missing]
    outcome = world.place(pod)
    if isinstance(outcome, Placement):
        if rejected := trials.refused(world, outcome):
            return [Finding("DriverRejects", f"the driver would reject the claim: {rejected}")]
        if refused := bound.rejected_name(world, pod, outcome.node):
            return [Finding("KubeletRejectsName", refused)]
        return [_not_created(world, pod) or _fits(world, pod, outcome)]
    if outcome.error:
        return [impossible.selector_error(world, pod) or Finding("RequestError", outcome.message)]
    if not world.nodes:
        return [Finding("Unknown", "unknown: the snapshot has no nodes")]
    return _nowhere(world, pod) or [Finding("Unknown", f"unknown: {outcome.message}")]


def _nowhere(world: World, pod: Wire) -> list[Finding]:
    """Return why a pod fits on no node."""
    claims = [each.claim for each in world.claims_of(pod) if each.claim is not None]
    allocated = [(c, (c.get("status") or {}).get("allocation")) for c in claims]
    blocked = blockers.Blockers(world, pod, [claim for claim, allocation in allocated if not allocation]).all()
    for claim, allocation in allocated:
        selector = (allocation or {}).get("nodeSelector")
        if selector is None:
            continue
        blocked = [each for each in blocked if nodes.matches(selector, world.decoded(each.node))]
        if not blocked:
            name = claim["metadata"]["name"]
            results = ((allocation or {}).get("devices") or {}).get("results") or ()
            at = sorted({each["pool"] for each in results})
            text = f"its claim {name} is allocated on {', '.join(at)}, where the pod cannot run"
            return [Finding("AllocatedElsewhere", text)]
    if not blocked:
        return impossible.findings(world, pod)
    found = obstacles.findings(world, pod, blocked)
    return [_on_one_node(allocated, blocked, found[0]), *found[1:]] if found else []


def _on_one_node(
    allocated: Sequence[tuple[Wire, Wire | None]], blocked: Sequence[Blocked], finding: Finding
) -> Finding:
    """Return the finding in words that name the claim that keeps the pod on one node, if one does."""
    tied = [claim["metadata"]["name"] for claim, found in allocated if (found or {}).get("nodeSelector")]
    if not tied or len(blocked) != 1:
        return finding
    text = finding.text.replace(f"node {blocked[0].name} has the devices, and too little", "which has too little", 1)
    joint = ", " if text != finding.text else ": "
    whole = f"its claim {tied[0]} has devices of node {blocked[0].name} alone{joint}{text}"
    return replace(finding, text=whole)


def _claims(world: World, pod: Wire, problem: creating.Problem) -> Finding:
    """Return the finding for claims that do not exist."""
    claim, namespace = problem.claim, pod["metadata"].get("namespace") or ""
    if problem.code == "TemplateMissing":
        if (workload := creating.workload_of(world, pod, claim)) is not None:
            return workload_waits(workload)
        return _missing(world, pod, "ResourceClaimTemplate", claim.template_name, problem)
    if problem.code == "ClaimSourceRemoved":
        text = f"resourceClaims entry {claim.entry}: its field source was removed in Kubernetes 1.31"
        rewrite = "resourceClaimName or resourceClaimTemplateName beside name; neuron-dra migrate FILE"
        return Finding(problem.code, text, (("rewrite", rewrite),))
    if problem.code == "AdminAccessRefused":
        label = f"{creating.ADMIN_LABEL}=true"
        text = f"the API server rejects adminAccess in namespace {namespace}, whose label {label} is missing"
        return Finding(problem.code, text, (("to check", f"kubectl label namespace {namespace} {label}"),))
    if problem.code == "QuotaExceeded" and problem.quota is not None:
        return _quota(world, pod, problem)
    name = claim.claim_name
    if problem.code == "ClaimDeleted" and claim.claim is not None:
        users = [user["name"] for user in (claim.claim.get("status") or {}).get("reservedFor") or ()]
        return Finding(
            "ClaimDeleted",
            f"its claim {claim.claim['metadata']['name']} is being deleted"
            + (f": it is gone when these pods have ended: {', '.join(users)}" if users else ""),
        )
    if problem.code == "ClaimOfAnother":
        return Finding("ClaimOfAnother", f"the claim {name} belongs to a former pod of this name: it is deleted soon")
    if claim.template_name:
        return Finding(
            "ClaimMissing", f"its claim {namespace}/{name} was deleted: delete the pod, so that it gets a new one"
        )
    return _missing(world, pod, "ResourceClaim", name, problem)


def _missing(world: World, pod: Wire, kind: str, name: str, problem: creating.Problem) -> Finding:
    """Return the finding for a template or claim that the pod names and that is not there."""
    namespace, snapshot = pod["metadata"].get("namespace") or "", world.snapshot
    field = "resourceClaimTemplateName" if kind == "ResourceClaimTemplate" else "resourceClaimName"
    there = sorted(key[2] for key in snapshot.objects if key[:2] == (kind, namespace))
    elsewhere = [item for item in snapshot.all(kind) if item["metadata"]["name"] == name]
    facts, changes = Facts(), []
    facts.add(
        "was there", f"in namespace {namespace}: {', '.join(there[:6])}" if there else f"none in namespace {namespace}"
    )
    near = snapshot.near(kind, name, namespace)
    if near:
        entries = [
            {**entry, field: near} if entry["name"] == problem.claim.entry else entry
            for entry in pod["spec"]["resourceClaims"]
        ]
        changed = {**pod, "spec": {**pod["spec"], "resourceClaims": entries}}
        changes.append(trials.attempt(world, pod, f"in the pod, write {field}: {near}", [changed]))
    for other in elsewhere[:1] if kind == "ResourceClaimTemplate" else ():
        facts.add("elsewhere", f"namespace {other['metadata'].get('namespace')} has one of this name")
        copied = {**other, "metadata": {**other["metadata"], "namespace": namespace}}
        changes.append(trials.attempt(world, pod, f"create this template in namespace {namespace} too", [copied]))
    code = "TemplateMissing" if kind == "ResourceClaimTemplate" else "ClaimMissing"
    return Finding(code, f"there is no {kind} {namespace}/{name}", facts.done(), _made(changes))


def _quota(world: World, pod: Wire, problem: creating.Problem) -> Finding:
    quota = problem.quota or {}
    hard, used, more = creating.quota_needed(problem)
    name, namespace = quota["metadata"]["name"], quota["metadata"].get("namespace") or ""
    spec = {**(quota.get("spec") or {}), "hard": {**quota["spec"]["hard"], problem.resource: str(used + more)}}
    raised = trials.attempt(
        world, pod, f"raise {problem.resource} of ResourceQuota {name} to {used + more}", [{**quota, "spec": spec}]
    )
    text = f"ResourceQuota {namespace}/{name} allows {hard} of {problem.resource}: {used} used, {more} more needed"
    return Finding("QuotaExceeded", text, (), _made([raised]))


def workload_waits(workload: Wire) -> Finding:
    """Return why a NeuronUltraServerWorkload has no template or no nodes yet, from its conditions."""
    meta, status = workload["metadata"], workload.get("status") or {}
    ready: Wire = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    facts = Facts()
    facts.add("reason", str(ready.get("reason") or ""))
    facts.add("message", str(ready.get("message") or ""))
    state = status.get("state") or "not handled yet: does the UltraServer controller run?"
    text = f"its workload {meta.get('namespace')}/{meta['name']} has no reserved nodes yet: it is {state}"
    return Finding("WorkloadNotAllocated", text, facts.done())


def _plugin_limits(world: World, pod: Wire) -> Finding | None:
    """Return the finding for limits of the Neuron device plugin that no node and no DeviceClass serves."""
    for name in demand.limits(pod):
        if name in demand.PLUGIN_LIMITS and not demand.class_of(world.snapshot, name):
            offered = [n for n in world.nodes.values() if _offers(n, name)]
            down = [n["metadata"]["name"] for n in world.nodes.values() if _had(n, name)]
            if not offered and down:
                text = f"it requests {name}, and the Neuron device plugin of node {down[0]} does not run"
                others = f"; nor on {words.count(len(down) - 1, 'more node')}" if len(down) > 1 else ""
                facts = (("to check", "its DaemonSet; or rewrite the manifest: neuron-dra migrate FILE"),)
                return Finding("DevicePluginDown", text + others, facts)
            if not offered:
                return Finding(
                    "DevicePluginLimits",
                    f"it requests {name}, which no node offers: the manifest is for the Neuron device plugin",
                    (("rewrite", "neuron-dra migrate FILE"),),
                )
    return None


def _had(node: Wire, resource: str) -> bool:
    """Return True if a device plugin offered a resource: when it ends, the kubelet leaves 0 of it behind."""
    return resource in ((node.get("status") or {}).get("allocatable") or {}) and not _offers(node, resource)


def _offers(node: Wire, resource: str) -> bool:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(resource) or "0") != "0"


def _not_created(world: World, pod: Wire) -> Finding | None:
    """Return the finding for claims that could be created and are not."""
    absent = [each for each in world.claims_of(pod) if not each.exists and each.entry != "limits"]
    if not absent:
        return None
    about = events.about(world, "Pod", pod)
    failed = [each for each in about if each.get("reason") == "FailedResourceClaimCreation"]
    if failed:
        message = str(failed[0].get("message"))
        return Finding("ClaimNotCreated", f"its claim could not be created: {message}", (("event", message),))
    return Finding("ClaimNotCreated", f"its claim {absent[0].entry} is not created yet, by kube-controller-manager")


def _fits(world: World, pod: Wire, outcome: Placement) -> Finding:
    """Return why a pod waits although the simulation places it."""
    said = events.scheduler_words(world, pod)
    simulated = (("simulated", f"the pod {trials.gets(outcome)}"),)
    scheduler = pod["spec"].get("schedulerName") or trials.DEFAULT_SCHEDULER
    if _TIMEOUT.search(said):
        facts = (("scheduler", said), *simulated)
        return Finding("SchedulerTimeout", "the scheduler gave up: it searches a node for at most 10 s", facts)
    if not said and scheduler != trials.DEFAULT_SCHEDULER:
        text = f"its scheduler {scheduler!r} has not handled it: does it run?"
        changed = {**pod, "spec": {**pod["spec"], "schedulerName": trials.DEFAULT_SCHEDULER}}
        change = trials.attempt(world, pod, "in the pod, remove schedulerName", [changed])
        return Finding("NoScheduler", text, simulated, _made([change]))
    if not said:
        return Finding(
            "Unknown", "unknown: the scheduler has not handled it yet, and in a simulation it fits", simulated
        )
    facts = (("scheduler", said), *simulated)
    if known := _known_fault(world, pod, said):
        return Finding(known[0], known[1], facts)
    if _OF_DEVICES.search(said):
        return Finding(
            "Unknown", "unknown: the scheduler could not allocate its claims, and in a simulation it fits", facts
        )
    return Finding("SchedulerSays", f"not because of its devices; the scheduler's reason: {said}", facts)


def _known_fault(world: World, pod: Wire, said: str) -> tuple[str, str] | None:
    """Return code and text of a cause that the scheduler's words show, though the pod fits in a simulation."""
    if "is in the process of being allocated" in said and users.group_of(pod):
        text = "a known fault of the scheduler: pods of a PodGroup that share a new claim keep it from each other"
        return "GangSharesClaim", f"{text} (kubernetes/kubernetes#137617)"
    disagreeing = pools.disagreeing(world.snapshot.all("ResourceSlice"))
    if disagreeing and ("resourceSliceCount" in said or "invalid resource pools" in said or _OF_DEVICES.search(said)):
        return "PoolContradictory", disagreeing[0]
    return None


def _groups(world: World, pod: Wire) -> tuple[str, ...]:
    """Return a note for each claim of the pod that is for a PodGroup."""
    found = []
    for each in world.claims_of(pod):
        groups = users.groups(each.claim) if each.claim is not None else ()
        if groups and each.claim is not None:
            pods_of = ", ".join(users.pods(world.snapshot, each.claim))
            found.append(f"the claim {each.claim['metadata']['name']} is for PodGroup {groups[0]} (pods {pods_of})")
    return tuple(found)


def _not_modelled(pod: Wire) -> tuple[str, ...]:
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    found = [
        *(["pod affinity"] if affinity.get("podAffinity") or affinity.get("podAntiAffinity") else []),
        *(["topology spread"] if spec.get("topologySpreadConstraints") else []),
        *(["volumes"] if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()) else []),
        *(
            ["host ports"]
            if any(p.get("hostPort") for c in spec.get("containers") or () for p in c.get("ports") or ())
            else []
        ),
    ]
    return (f"not simulated: {', '.join(found)}",) if found else ()


def _made(changes: list[Change | None]) -> tuple[Change, ...]:
    return tuple(change for change in changes if change is not None)
