"""Why a pod that has a node does not run: the kubelet, the driver, the runtime, or its own containers. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import EventView
from neuron_dra.ask.render.findings import Facts, Finding
from neuron_dra.ask.world import events, immutable
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

PREPARE: Final = "FailedPrepareDynamicResources"
_UNREGISTERED: Final = re.compile(
    r"DRA driver (\S+) is not registered|driver name (\S+) not found|plugin name (\S+) not found"
)
_NO_FILE: Final = re.compile(r'(/dev/neuron\d+)\\?"?: no such file')
_NO_CDI_DEVICE: Final = "unresolvable CDI devices"
_OF_THE_KUBELET: Final = re.compile(
    r"is not allowed to use ResourceClaim|ResourceClaim not created yet|fetch ResourceClaim|ResourceClaim \S+: "
)
"""The kubelet's own words in a message about preparing: the driver has not seen the claim."""
_HELD: Final = re.compile(
    r"(?P<device>neuron-[a-z]+(-\d+)+) is held by claim (?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]+) \(UID "
)
"""The driver's words about a device that it has not released yet."""
_FINE: Final = ("ContainerCreating", "PodInitializing")


def findings(world: World, pod: Wire) -> list[Finding]:
    """Return why a pod with a node does not run, as far as the snapshot shows it."""
    node = pod["spec"]["nodeName"]
    causes: list[Finding] = []
    for event in events.about(world, "Pod", pod)[:20]:  # the newest
        if (shown := _from_event(world, event, node)) is not None:
            causes.append(shown)
    configured = _configuration(world, pod)
    if configured is not None:
        rejections = [cause for cause in causes if cause.code == configured.code]
        causes = [cause for cause in causes if cause.code != configured.code]
        first = rejections[0] if rejections else configured
        causes.insert(0, replace(first, facts=tuple(dict.fromkeys([*first.facts, *configured.facts]))))
    causes += _containers(world, pod)
    if not causes and node not in world.nodes and world.nodes:
        causes.append(Finding("NodeGone", f"node {node} does not exist: its pods are deleted after some minutes"))
    ready = world.node(node).ready
    if not causes and ready is not None and ready.status != "True":
        causes.append(Finding("NodeNotReady", f"node {node} is not Ready: {ready.message or ready.reason}"))
    return list({cause.code: cause for cause in reversed(causes)}.values())[::-1]


def _from_event(world: World, event: EventView, node: str) -> Finding | None:
    message = event.message
    if event.reason == PREPARE:
        unregistered = _UNREGISTERED.search(message)
        if unregistered:
            driver = next(group for group in unregistered.groups() if group).strip("\"'")
            return Finding(
                "DriverNotRegistered",
                f"the driver {driver} is not registered with the kubelet of node {node}: "
                "its pod there does not run, or is not Ready",
                (("event", message),),
            )
        if (former := _held_by_former(world, message, node)) is not None:
            return former
        if _OF_THE_KUBELET.search(message):
            text = message.removeprefix("Failed to prepare dynamic resources:").strip()
            return Finding("KubeletRejects", f"the kubelet of node {node} rejects it: {text}", (("event", message),))
        return Finding("DriverRejects", _driver_words(message), (("event", message),))
    if event.type == "Normal":
        return None
    if event.reason in ("Failed", "FailedCreatePodSandBox", "FailedStart"):
        return _runtime(world, message, node, "event")
    return None


def _held_by_former(world: World, message: str, node: str) -> Finding | None:
    """Return the finding for devices that the driver still holds for a claim that no longer exists."""
    match = _HELD.search(message)
    if match is None or "ResourceClaim" in world.snapshot.left_out or not world.snapshot.all("ResourceClaim"):
        return None
    namespace, name = match["namespace"], match["name"]
    if world.snapshot.get("ResourceClaim", name, namespace) is not None:
        return None
    text = (
        f"{match['device']} is held by claim {namespace}/{name}, which no longer exists, as after a pod "
        f"was deleted by force: that pod still ends on node {node}. This passes by itself; if not: docs/health.md"
    )
    return Finding("DeviceHeldByFormer", text, (("event", message),))


def _runtime(world: World, message: str, node: str, source: str) -> Finding | None:
    """Return why the container runtime rejects a container, if its message shows it."""
    facts = ((source, message),)
    if missing := _NO_FILE.search(message):
        text = (
            f"{missing[1]} is missing on node {node}: check udev and the kernel log there; or delete the pod so that "
        )
        return Finding("DeviceFileMissing", f"{text}it gets another device", facts)
    if _NO_CDI_DEVICE not in message:
        return None
    if _injects(world, node):
        text = f"the CDI file of its claim is missing on node {node}: the driver there writes it again while it runs"
        return Finding("CdiFileMissing", text, facts)
    text = (
        f"the runtime of node {node} finds no CDI devices of its claim: their file in /var/run/cdi is missing, or the "
        "runtime does not read this folder (containerd 1.7 needs enable_cdi = true; restart containerd if the folder "
        "was renamed or mounted over)"
    )
    return Finding("RuntimeRejects", text, facts)


def _injects(world: World, node: str) -> bool:
    """Return True if a pod that runs on the node has devices of this driver: its runtime reads the CDI files."""
    holders_by_key = {holder.key: holder for device, holder in world.holders.items() if device.pool == node}
    for holder in holders_by_key.values():
        for name in holder.pods:
            pod = world.snapshot.get("Pod", name, holder.namespace)
            if pod is not None and PodView.of(pod).is_ready:
                return True
    return False


def _driver_words(message: str) -> str:
    """Return the driver's own part of the kubelet's message."""
    text = message.removeprefix("Failed to prepare dynamic resources:").strip()
    place = max(text.find("error applying config"), text.find("claim "), 0)
    return f"the driver rejects the claim: {text[place:] or text}"


def _configuration(world: World, pod: Wire) -> Finding | None:
    """Return what the driver rejects in the configuration of the pod's claims, if it does, as prepare would say it."""
    from neuron_dra.ask.world import refusals

    types = refusals.instance_types(world.slices_of(pod["spec"]["nodeName"]))
    for pod_claim in world.claims_of(pod):
        if pod_claim.claim is None or not pod_claim.seen.is_allocated:
            continue
        if text := refusals.of_allocation(pod_claim.claim["status"]["allocation"], types):
            facts = (("to do", _corrected(pod_claim, pod)),)
            return Finding("DriverRejects", f"the driver rejects the claim: {text}", facts)
    return None


def _corrected(pod_claim: PodClaim, pod: Wire) -> str:
    """Return how a person corrects the configuration of a claim: neither a claim nor a template can be changed."""
    if not pod_claim.template_name:
        return f"correct ResourceClaim {pod_claim.claim_name}, which kubectl apply cannot change: {immutable.REPLACE}"
    text = f"correct ResourceClaimTemplate {pod_claim.template_name}, which kubectl apply cannot change: "
    text += f"{immutable.REPLACE}, then delete the pod"
    return text if immutable.controller(PodView.of(pod)) else f"{text} and create it again"


def _containers(world: World, pod: Wire) -> Sequence[Finding]:
    pod_view = PodView.of(pod)
    problems = []
    for container in (*pod_view.status.init_container_statuses, *pod_view.status.container_statuses):
        waiting = container.state.waiting
        if waiting.reason and waiting.reason not in _FINE:
            runtime = _runtime(world, waiting.message, pod_view.spec.node_name, "container")
            if runtime is not None:
                problems.append(runtime)
            else:
                facts = Facts()
                facts.add("message", waiting.message)
                text = f"container {container.name}: {waiting.reason}"
                problems.append(Finding("ContainerProblem", text, facts.done()))
    return problems


def failed(pod: Wire) -> Finding:
    """Return why a pod failed."""
    status = PodView.of(pod).status
    reason, message = status.reason, status.message
    for condition in status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            reason, message = reason or condition.reason, message or condition.message
    if not reason and not message:
        return Finding("ContainerProblem", "a container of the pod failed: see kubectl logs")
    return Finding("PodFailed", ": ".join(part for part in (reason, message) if part))
