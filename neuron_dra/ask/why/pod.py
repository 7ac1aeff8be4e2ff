"""Why a pod waits, was rejected, or does not start: the true cause first. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.pod_views import PodView, PortView
from neuron_dra.ask.render.findings import Facts, Finding, Report
from neuron_dra.ask.why import bound, known_faults, situations, starting
from neuron_dra.ask.world import absent, events, users
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire


def report(world: World, pod: Wire) -> Report:
    """Return the report about a pod."""
    seen = PodView.of(pod)
    meta, node, phase = seen.metadata, seen.spec.node_name, seen.status.phase
    subject = f"pod {meta.namespace or 'default'}/{meta.name}"
    if phase == "Succeeded":
        return Report(subject, "has ended, with success", fine=True)
    if phase == "Failed":
        failure = starting.failed(pod)
        refused = absent.rejected_name(world, pod, node)
        facts = (("status", failure.text),)
        return Report(subject, "has failed", (Finding("KubeletRejectsName", refused, facts) if refused else failure,))
    if meta.deletion_timestamp:
        return Report(subject, "is being deleted", (bound.never_created(world, pod) or _deleted(seen),))
    if node:
        if (without := bound.no_injection(world, pod)) is not None and phase == "Running":
            return Report(subject, f"runs on node {node} without its devices", (without,))
        found = starting.findings(world, pod)
        unusable = None if phase == "Running" else bound.unusable_claim(world, pod)
        if unusable is not None:
            found = [unusable, *(each for each in found if each.code != "KubeletRejects")]
        if not found and (seen.is_ready or phase == "Running"):
            return Report(subject, f"runs on node {node}", fine=True)
        found = found or [_unknown_start(world, pod)]
        return Report(subject, f"does not run on node {node}", tuple(found), known_faults.of_pod(world, pod))
    notes = (*_groups(world, pod), *_not_modelled(seen), *known_faults.of_pod(world, pod))
    return Report(subject, "waits for a node", tuple(situations.waiting(world, pod)), notes)


def _deleted(pod: PodView) -> Finding:
    finalizers = ", ".join(pod.metadata.finalizers)
    if finalizers:
        return Finding("Deleted", f"the pod is being deleted, and its finalizers keep it: {finalizers}")
    if pod.spec.node_name:
        return Finding("Deleted", f"the pod ends when the kubelet of node {pod.spec.node_name} has stopped it")
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


def _not_modelled(pod: PodView) -> tuple[str, ...]:
    """Return a note of what the pod has that the simulation does not know."""
    spec = pod.spec
    ports: list[PortView] = []
    for container in spec.containers:
        ports += container.ports
    has = {
        "pod affinity": bool(spec.affinity.pod_affinity or spec.affinity.pod_anti_affinity),
        "topology spread": bool(spec.topology_spread_constraints),
        "volumes": any(volume.persistent_volume_claim is not None for volume in spec.volumes),
        "host ports": any(port.host_port for port in ports),
    }
    found = [name for name, there in has.items() if there]
    if found:
        return (f"not simulated: {', '.join(found)}",)
    return ()
