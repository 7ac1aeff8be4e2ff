"""Why a pod waits, was rejected, or does not start: the true cause first. Pure."""

from __future__ import annotations

from neuron_dra.ask.read.pod_views import PodView, PortView
from neuron_dra.ask.render.findings import Facts, Finding, Report
from neuron_dra.ask.why import bound, known_faults, situations, starting
from neuron_dra.ask.world import absent, container_sight, events, users
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Wire


def report(world: World, pod: Wire) -> Report:
    """Return the report about a pod."""
    pod_view = PodView.of(pod)
    meta, node, phase = pod_view.metadata, pod_view.spec.node_name, pod_view.status.phase
    subject = f"pod {meta.namespace or 'default'}/{meta.name}"
    if phase == "Succeeded":
        return Report(subject, "has ended, with success", fine=True)
    if phase == "Failed":
        failure = starting.failed(pod)
        refused = absent.rejected_name(world, pod, node)
        facts = (("status", failure.text),)
        return Report(subject, "has failed", (Finding("KubeletRejectsName", refused, facts) if refused else failure,))
    if meta.deletion_timestamp:
        return Report(
            subject,
            "is being deleted",
            (bound.never_created(world, pod) or _unreleased(world, pod) or _deleted(pod_view),),
        )
    if node:
        seen_by = _seen_by_containers(world, pod)
        if (without := bound.no_injection(world, pod)) is not None and phase == "Running":
            return Report(subject, f"runs on node {node} without its devices", (without,))
        causes = starting.findings(world, pod)
        unusable = None if phase == "Running" else bound.unusable_claim(world, pod)
        if unusable is not None:
            causes = [unusable, *(cause for cause in causes if cause.code != "KubeletRejects")]
        if any(cause.code == "DriverRejects" for cause in causes):  # the kubelet repeats what the driver said
            causes = [cause for cause in causes if cause.code != "KubeletRejects"]
        if not causes and (pod_view.is_ready or phase == "Running"):
            if (unseen := _unnamed_claims(world, pod)) is not None:
                return Report(subject, f"runs on node {node} without its devices", (unseen,), seen_by)
            if (unhealthy := bound.unhealthy_devices(world, pod)) is not None:
                return Report(subject, f"runs on node {node}", (unhealthy,), seen_by)
            return Report(subject, f"runs on node {node}", notes=seen_by, fine=True)
        causes = causes or [_unknown_start(world, pod)]
        return Report(subject, f"does not run on node {node}", tuple(causes), known_faults.of_pod(world, pod))
    beside = tuple(fault.text for fault in container_sight.faults(pod, world.claims_of(pod), world.snapshot))
    notes = (*_groups(world, pod), *_not_modelled(pod_view), *known_faults.of_pod(world, pod), *beside)
    return Report(subject, "waits for a node", tuple(situations.waiting(world, pod)), notes)


def _seen_by_containers(world: World, pod: Wire) -> tuple[str, ...]:
    """Return a note for each container of a pod with Neuron devices: what it sees, and what is wrong with that."""
    claims = world.claims_of(pod)
    if not any(result.driver == names.DRIVER for claim in claims for result in claim.seen.results):
        return ()
    spec = world.type_of(pod["spec"]["nodeName"])
    notes = []
    for sight in container_sight.sights(pod, claims, spec):
        notes.append(f"container {sight.container} sees {sight.text(spec)}")
    types = (spec,) if spec is not None else ()
    for fault in container_sight.faults(pod, claims, world.snapshot, types):
        if fault.code not in ("ClaimNotNamed", "SeesAllDevices"):  # the finding and the lines above say that
            notes.append(fault.text)
    return tuple(notes)


def _unnamed_claims(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a pod whose containers do not name its claims, and so see no device of them."""
    for fault in container_sight.faults(pod, world.claims_of(pod), world.snapshot):
        if fault.code == "ClaimNotNamed":
            return Finding(fault.code, fault.text)
    return None


def _unreleased(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a pod that has ended, and whose claims no driver is there to release."""
    pod_view = PodView.of(pod)
    node = pod_view.spec.node_name
    if not node or not pod_view.containers_ended or world.driver_pods.get(node):
        return None
    if "Pod" in world.snapshot.left_out:
        return None
    for pod_claim in world.claims_of(pod):
        if pod_claim.exists and any(result.driver == names.DRIVER for result in pod_claim.seen.results):
            text = f"its containers have ended, and no pod of the driver is on node {node} to release its claim "
            text += f"{pod_claim.seen.metadata.name}: install the driver there again, or delete the node"
            return Finding("DriverGone", text)
    return None


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
    notes = []
    for pod_claim in world.claims_of(pod):
        groups = users.groups(pod_claim.claim) if pod_claim.claim is not None else ()
        if groups and pod_claim.claim is not None:
            pods_of = ", ".join(users.pods(world.snapshot, pod_claim.claim))
            name = pod_claim.claim["metadata"]["name"]
            notes.append(f"the claim {name} is for PodGroup {groups[0]} (pods {pods_of})")
    return tuple(notes)


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
    unmodelled = [name for name, is_used in has.items() if is_used]
    if unmodelled:
        return (f"not simulated: {', '.join(unmodelled)}",)
    return ()
