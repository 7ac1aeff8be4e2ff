"""Why a pod with a node cannot use its claims there. Pure.

The scheduler was bypassed, a claim is another pod's, or a device of the pod is unhealthy.
"""

from __future__ import annotations

from typing import Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, ProposedChange
from neuron_dra.ask.why import trials
from neuron_dra.ask.world import events, fleet
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.world import World
from neuron_dra.core import health, members, names, releases, runtimes, signals
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.wire import Wire

HOST: Final = "kubernetes.io/hostname"


def unusable_claim(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a claim of a pod with a node that is not allocated, or not reserved for the pod."""
    for pod_claim in world.claims_of(pod):
        if pod_claim.entry == FROM_LIMITS and not pod_claim.exists:
            continue
        unseen = pod_claim.claim is None and "ResourceClaim" in world.snapshot.left_out
        if not pod_claim.seen.is_allocated and not unseen:
            return _unallocated(world, pod, pod_claim.claim_name or pod_claim.entry)
        if pod_claim.exists and (finding := _of_another(pod, pod_claim.seen)) is not None:
            return finding
    return None


def unhealthy_devices(world: World, pod: Wire) -> Finding | None:
    """Return the finding for devices of a running pod that are unhealthy or tainted, or are published no longer."""
    results = []
    for claim in world.claims_of(pod):
        results += [result for result in claim.seen.results if result.driver == names.DRIVER]
    # Most pods of a cluster have no devices, and the view of a node has all of its devices.
    node = fleet.view(world, pod["spec"]["nodeName"]) if results else None
    if node is None:
        return None
    missing_devices = fleet.missing(node)
    fault_by_device = {device.name: device.faults for device in node.devices if device.faults}
    fault_by_device.update(dict.fromkeys(missing_devices, signals.MISSING))
    own_faults: dict[str, str] = {}
    for result in results:
        if result.pool == node.name:
            own_devices = _whole_devices(result.device, node.spec)
            own_faults.update((name, fault_by_device[name]) for name in own_devices if name in fault_by_device)
    if not own_faults:
        return None
    facts = Facts()
    for name, fault in own_faults.items():
        facts.add(name, fault)
    advice = [health.ADVICE.get(fault, "").partition("; ")[2] for fault in own_faults.values()]
    facts.some("to do", dict.fromkeys(text for text in advice if text))
    code = "DevicesMissing" if own_faults.keys() & set(missing_devices) else "DeviceTainted"
    number = f"{words.count(len(own_faults), 'device')} of the pod {'is' if len(own_faults) == 1 else 'are'}"
    return Finding(code, f"{number} missing, unhealthy or tainted on node {node.name}", facts.done())


def _whole_devices(name: str, spec: InstanceType | None) -> list[str]:
    """Return the names of the devices that an allocated device consists of."""
    parts = members.of(name, spec)
    if parts is None:
        return [name]
    return [f"{names.DEVICE_PREFIX}{number}" for number in parts.ids]


def _unallocated(world: World, pod: Wire, claim: str) -> Finding:
    """Return the finding for a claim that no scheduler allocated: one that lacks DRA bound the pod, or none did."""
    named_scheduler = PodView.of(pod).spec.scheduler_name or trials.DEFAULT_SCHEDULER
    scheduler = events.bound_by(world, pod)
    if not scheduler and named_scheduler == trials.DEFAULT_SCHEDULER:
        return _bypassed(world, pod)
    node = pod["spec"]["nodeName"]
    name = events.program(scheduler or named_scheduler)
    facts = Facts()
    if scheduler:
        text = f"scheduler {name} bound it to node {node} and did not allocate its claim {claim}"
    else:
        text = f"nothing allocated its claim {claim}: scheduler {name} bound it to node {node}, or spec.nodeName did"
    if name == trials.DEFAULT_SCHEDULER:
        facts.add("to check", "the feature gate DynamicResourceAllocation of kube-scheduler")
        return Finding("ClaimNotAllocated", text, facts.done())
    facts.add("to check", f"whether dynamic resource allocation is turned on in {name}")
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "schedulerName")}
    change = trials.attempt(world, pod, "in the pod's manifest, remove schedulerName", [{**pod, "spec": spec}])
    return Finding("ClaimNotAllocated", text, facts.done(), (change,) if change else ())


def _bypassed(world: World, pod: Wire) -> Finding:
    """Return the finding for a pod that was created with spec.nodeName: only the scheduler allocates claims."""
    node = pod["spec"]["nodeName"]
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    spec["nodeSelector"] = {**PodView.of(pod).spec.node_selector, HOST: node}
    text = f"in the pod, in place of nodeName, write nodeSelector: {HOST}: {node}"
    change: ProposedChange | None = trials.attempt(world, pod, text, [{**pod, "spec": spec}])
    cause = "its spec.nodeName keeps it from the scheduler, so nothing allocates its claim"
    return Finding("SchedulerBypassed", cause, (("node", node),), (change,) if change else ())


def _of_another(pod: Wire, claim: ClaimView) -> Finding | None:
    """Return the finding for a claim that is reserved for others, so that the kubelet does not let the pod use it."""
    uid, name = PodView.of(pod).metadata.uid, claim.metadata.name
    consumers = claim.consumers("pods")
    if not uid or claim.consumers("podgroups") or not consumers or uid in [consumer.uid for consumer in consumers]:
        return None
    whom = [consumer.name for consumer in consumers]
    node = pod["spec"]["nodeName"]
    former = pod["metadata"]["name"] in whom
    if former:
        text = f"a former pod {pod['metadata']['name']}"
    else:
        text = f"pod {', '.join(whom[:3])}"
    return Finding(
        "ClaimNotReserved", f"the kubelet of node {node} rejects it: the claim {name} is reserved for {text}"
    )


def never_created(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a pod in deletion whose claim was never created, which keeps some kubelets waiting."""
    absent = []
    for pod_claim in world.claims_of(pod):
        if not pod_claim.exists and pod_claim.template_name and not pod_claim.claim_name:
            absent.append(pod_claim)
    if not absent or not pod["spec"].get("nodeName") or "ResourceClaim" in world.snapshot.left_out:
        return None
    node = pod["spec"]["nodeName"]
    kubelet = world.node(node).status.node_info.kubelet_version
    posted = events.about(world, "Pod", pod)
    waiting_events = [event for event in posted if "ResourceClaim not created yet" in event.message]
    facts = tuple(("event", event.message) for event in waiting_events[:1])
    who = f"kubelet {kubelet}" if kubelet else "the kubelet"
    text = f"its claim {absent[0].entry} was never created"
    if releases.numbered(releases.WAITS_FOR_EVER).affects(kubelet):
        number = f"kubernetes/kubernetes#{releases.WAITS_FOR_EVER}"
        text += f", and {who} of node {node} waits for it forever ({number}): upgrade the kubelet"
    elif waiting_events:
        text += f", and {who} of node {node} waits for it"
    else:
        return None
    return Finding("ClaimNeverCreated", text, facts)


def no_injection(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a pod with Neuron devices on a node whose runtime injects none."""
    node = pod["spec"]["nodeName"]
    why = runtimes.why_no_cdi(world.node(node).status.node_info.container_runtime_version)
    if not why:
        return None
    for pod_claim in world.claims_of(pod):
        if any(result.driver == names.DRIVER for result in pod_claim.seen.results):
            version, _, reason = why.partition(" ")
            return Finding("RuntimeWithoutCdi", f"the runtime {version} of node {node} {reason}")
    return None
