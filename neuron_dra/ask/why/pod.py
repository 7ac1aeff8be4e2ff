"""Why a pod waits, was rejected, or does not start: the true cause first. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.snapshot import is_ready
from neuron_dra.ask.render.findings import Facts, Finding, Report
from neuron_dra.ask.why import bound, situations, starting
from neuron_dra.ask.world import absent, events, users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def report(world: World, pod: Wire) -> Report:
    """Return the report about a pod."""
    meta, status = pod["metadata"], pod.get("status") or {}
    subject = f"pod {meta.get('namespace') or 'default'}/{meta['name']}"
    phase = status.get("phase") or "Pending"
    if phase == "Succeeded":
        return Report(subject, "has ended, with success", fine=True)
    if phase == "Failed":
        failure = starting.failed(pod)
        refused = absent.rejected_name(world, pod, pod["spec"].get("nodeName") or "")
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
    return Report(
        subject, "waits for a node", tuple(situations.waiting(world, pod)), (*_groups(world, pod), *_not_modelled(pod))
    )


def _deleted(pod: Wire) -> Finding:
    finalizers = ", ".join(pod["metadata"].get("finalizers") or ())
    if finalizers:
        return Finding("Deleted", f"the pod is being deleted, and its finalizers keep it: {finalizers}")
    if pod["spec"].get("nodeName"):
        return Finding("Deleted", f"the pod ends when the kubelet of node {pod['spec']['nodeName']} has stopped it")
    return Finding("Deleted", "the pod is being deleted")


def _unknown_start(world: World, pod: Wire) -> Finding:
    facts = Facts()
    facts.some("event", (f"{e.reason}: {e.message}" for e in events.about(world, "Pod", pod)[:3]))
    if world.snapshot.all("Event"):
        return Finding("Unknown", "unknown: neither the pod's status nor its events show a reason", facts.done())
    return Finding("Unknown", "unknown: the snapshot has no events, which would show it")


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
