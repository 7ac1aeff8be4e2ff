"""Why a node is not as it should be: what keeps pods from its Neuron devices. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from neuron_dra.ask.read import node_views
from neuron_dra.ask.read.node_views import KubeNodeView, TaintView
from neuron_dra.ask.read.views import MetaView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Facts, Finding, Report
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import events, faults, fleet, interfaces, reported, selection, tested, unseen
from neuron_dra.ask.world.interfaces import InterfaceView
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, efa, health, members, names, program, releases, runtimes, taints
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model
from neuron_dra.simulate import pools as slice_pools


def report(world: World, node: Wire) -> Report:
    """Return the report about a Node: what keeps pods from its Neuron devices."""
    name = KubeNodeView.of(node).metadata.name
    causes = findings(world, node)
    own_specs = world.specs_of(name)
    published: list[Wire] = []
    for spec in own_specs:
        published += spec.published
    held_count = sum((device.driver, device.pool) == (names.DRIVER, name) for device in world.holders)
    state = _published(world, published, held_count) if own_specs else "publishes no Neuron devices"
    node_interfaces = interfaces.of_node(world, name)
    if node_interfaces:
        held_interfaces = sum(interface.holder is not None for interface in node_interfaces)
        state += f", and {words.count(len(node_interfaces), 'EFA interface')}, {held_interfaces} held"
    notes: tuple[str, ...] = ()
    tag = world.tags.get(name)
    if tag is not None and tested.is_test(tag):
        state += f", {tested.IN_A_TEST}"
    elif tag is not None:
        state += f", reserved for workload {tag.workload} ({tag.phase.value})"
        notes = ("claims of other workloads are rejected here",)
    notes += tuple(_interface_holders(node_interfaces))
    notes += tuple(_repaired(world, node, causes))
    return Report(f"node {name}", state, tuple(causes), notes, fine=not causes)


def _interface_holders(node_interfaces: Sequence[InterfaceView]) -> Iterator[str]:
    """Yield who holds EFA interfaces of a node, and next to which devices these are."""
    interfaces_by_holder: dict[str, list[InterfaceView]] = defaultdict(list)
    for interface in node_interfaces:
        if interface.holder is not None:
            interfaces_by_holder[str(interface.holder)].append(interface)
    for holder, held_interfaces in list(interfaces_by_holder.items())[:_MOST_HOLDERS]:
        interface_names = words.listed(interface.name for interface in held_interfaces)
        devices = interfaces.devices_next_to(held_interfaces)
        place = f", next to {devices}" if devices else ""
        yield f"{holder} holds {words.count(len(held_interfaces), 'EFA interface')} ({interface_names}){place}"
    if len(interfaces_by_holder) > _MOST_HOLDERS:
        more = words.count(len(interfaces_by_holder) - _MOST_HOLDERS, "more holder")
        yield f"{more} of EFA interfaces: {program.NAME} topology has all"


def _published(world: World, published: Sequence[Wire], held_count: int) -> str:
    """Return what a node publishes, and how much of it is held."""
    claims_seen = "ResourceClaim" not in unseen.kinds(world.snapshot)
    if [device["name"] for device in published] == [names.NODE_DEVICE]:
        if held_count:
            return "is published as a whole, and held"
        return f"is published as a whole, {'not held' if claims_seen else 'perhaps held'}"
    least = "" if claims_seen else "at least "
    whole = [device for device in published if not members.is_partition(device["name"])]
    parts_text = ""
    if whole and len(whole) < len(published):
        parts_text = f" and {words.count(len(published) - len(whole), 'part')} of them"
    return f"publishes {words.count(len(whole) or len(published), 'device')}{parts_text}, {least}{held_count} held"


def findings(world: World, node: Wire) -> list[Finding]:
    """Return what keeps pods from the Neuron devices of a Node, the true cause first."""
    if unserved := KubeNodeView.of(node).unserved:
        label = f"{names.COMPUTE_TYPE_LABEL}={KubeNodeView.of(node).metadata.labels[names.COMPUTE_TYPE_LABEL]}"
        text = f"it is a node of {unserved} (label {label}), where no DRA driver serves Neuron devices"
        return [Finding("NotServed", f"{text}: use a managed node group")]
    causes: list[Finding] = []
    for check in _CHECKS:
        if (finding := check(world, node)) is not None:
            causes.append(finding)
    causes += _events(world, node, [cause.code for cause in causes])
    return causes


def _not_ready(world: World, node: Wire) -> Finding | None:
    ready = KubeNodeView.of(node).ready
    if ready is None or ready.status == "True":
        return None
    return Finding("NodeNotReady", f"the node is not Ready: {ready.message or ready.reason or 'no reason'}")


def _reported(world: World, node: Wire) -> Finding | None:
    """Return the finding for faults that agents report in conditions of the Node."""
    texts = [text for _, text in KubeNodeView.of(node).reported]
    if not texts:
        return None
    text = f"an agent reports a fault of the node: {'; '.join(texts)}; UltraServer workloads do not get it"
    return Finding("NodeUnhealthy", text)


def _plugin_alive(world: World, node: Wire) -> Finding | None:
    alive = []
    for name in ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore"):
        if node_views.offers(node, name):
            alive.append(name)
    if not alive:
        return None
    text = f"a Neuron device plugin offers {alive[0]} here: remove it, as the driver publishes nothing while it runs"
    return Finding("DevicePluginAlive", text)


def _silent(world: World, node: Wire) -> Finding | None:
    node_view = KubeNodeView.of(node)
    name, kind = node_view.metadata.name, node_view.instance_type
    own_specs = world.specs_of(name)
    if own_specs and not any(spec.published or spec.shared_counters for spec in own_specs):
        slices = "its slice has" if len(own_specs) == 1 else "its slices have"
        return Finding("NoDevicesPublished", f"{slices} no devices: the driver found none, or is being replaced")
    if wrong := slice_pools.disagreeing(world.slices_of(name)):
        return Finding("PoolContradictory", wrong[0])
    if own_specs:
        for pool in world.inventory.pools(model.node(node)):
            if pool.driver == names.DRIVER and not pool.usable:
                why = pool.invalid or "slices of it are missing: the driver is updating it, or stopped"
                return Finding("PoolIncomplete", f"its pool cannot be used: {why}")
        return None
    if not kind:
        return Finding(
            "NoDevicesPublished", f"it publishes no Neuron devices, and has no label {names.INSTANCE_TYPE_LABEL}"
        )
    if catalogue.lookup(kind) is None:
        return Finding("NotNeuron", f"its instance type {kind} has no Neuron devices")
    text, facts = _driver(world, name)
    for event in reported.of_node(world, node):
        if event.reason in reported.SILENCING:
            text, facts = event.message, (("event", event.seen_at),)
            break
    return Finding("NoDevicesPublished", f"the driver publishes no devices of this {kind}: {text}", facts)


def _driver(world: World, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what is known of the driver's pod on a node, and facts."""
    for pod in world.driver_pods.get(name, ()):
        pod_report = why_pod.report(world, pod)
        meta = MetaView.of(pod["metadata"])
        head = f"its pod {meta.namespace}/{meta.name}"
        if not pod_report.findings:
            return f"{head}: {pod_report.state}", ()
        return f"{head}: {pod_report.findings[0].text}", pod_report.findings[0].facts
    if world.snapshot.all("Pod") and "Pod" not in unseen.kinds(world.snapshot):
        return "no pod of the driver is on the node; does the DaemonSet select it?", ()
    return "it does not run there, or is not Ready", ()


def _cordoned(world: World, node: Wire) -> Finding | None:
    node_view = KubeNodeView.of(node)
    if node_view.spec.unschedulable:
        leaves = [taint for taint in node_view.spec.taints if taints.announces_removal(taint.key)]
        if leaves:
            return Finding("Cordoned", f"the node is cordoned, and goes away: {_with_meaning(leaves)}")
        return Finding("Cordoned", f"the node is cordoned: kubectl uncordon {node_view.metadata.name}")
    hard = [taint for taint in node_view.spec.taints if taint.effect in ("NoSchedule", "NoExecute")]
    if hard:
        return Finding("Tainted", f"only pods that tolerate its taints run here: {_with_meaning(hard)}")
    return None


def _with_meaning(marks: Sequence[TaintView]) -> str:
    return ", ".join(taints.text(taint.key, taint.value, taint.effect) for taint in marks)


def _unhealthy(world: World, node: Wire) -> Finding | None:
    facts, devices_by_advice = Facts(), defaultdict[str, list[str]](list)
    pools = world.inventory.pools(model.node(node))
    own_pools = [pool for pool in pools if pool.driver == names.DRIVER]
    for device in itertools.chain.from_iterable(pool.devices for pool in own_pools):
        reasons = selection.attribute(device, names.DRIVER, health.ATTRIBUTE) or ""
        marks = [_mark(taint) for taint in device.taints]
        if (reasons or marks) and not members.is_partition(device.id.device):
            facts.add(device.id.device, ", ".join(text for text in (reasons, *marks) if text))
            if advice := health.ADVICE.get(reasons, "").partition("; ")[2]:
                devices_by_advice[advice].append(device.id.device)
    if facts.items:
        number = words.count(len(facts.items), "device")
        for advice, device_names in devices_by_advice.items():
            of_devices = f"{words.devices(device_names)}: " if len(devices_by_advice) > 1 else ""
            facts.add("to do", f"{of_devices}{advice}")
        return Finding("DeviceTainted", f"{number} unhealthy or tainted: no new claim gets them", facts.done())
    about = events.about(world, "Node", node)
    unhealthy = [event for event in about if event.reason.startswith("NeuronDeviceU")]
    kind = KubeNodeView.of(node).instance_type
    spec = catalogue.lookup(kind)
    devices = itertools.chain.from_iterable(pool.devices for pool in pools)
    published_devices = [device for device in devices if device.id.device.startswith(names.DEVICE_PREFIX)]
    if spec is not None and published_devices and len(published_devices) < spec.device_count:
        facts.some("event", (event.message for event in unhealthy), most=2)
        number = f"{len(published_devices)} of the {spec.device_count} devices of a {kind}"
        text = f"{number} are published: the others are missing or unhealthy"
        return Finding("DevicesMissing", text, facts.done())
    return None


def _interface(world: World, node: Wire) -> Finding | None:
    """Return the finding for EFA interfaces that two drivers publish, or that are unhealthy or tainted."""
    name = node["metadata"]["name"]
    if contested := interfaces.why_contested(world, name):
        return Finding("EfaTwoManagers", contested)
    facts, advice = Facts(), list[str]()
    for interface in interfaces.of_node(world, name):
        if interface.faults:
            facts.add(interface.name, interface.faults)
            advice += efa.ADVICE.get(interface.faults, "").partition("; ")[2:]
    if not facts.items:
        return None
    number = words.count(len(facts.items), "EFA interface")
    for text in dict.fromkeys(text for text in advice if text):
        facts.add("to do", text)
    return Finding("InterfaceTainted", f"{number} unhealthy or tainted: no new claim gets them", facts.done())


def _mark(taint: model.DeviceTaint) -> str:
    """Return a taint as kubectl prints it."""
    value_text = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value_text}:{taint.effect}"


def _ultraserver(world: World, node: Wire) -> Finding | None:
    """Return the finding for a fault of the node's UltraServer."""
    node_view = fleet.view(world, node["metadata"]["name"])
    if node_view is None or not node_view.ultraserver:
        return None
    server = faults.by_id(world).get(node_view.ultraserver)
    group = faults.members(world, node_view.ultraserver)
    group_faults = list(faults.of_ultraserver(node_view.ultraserver, group, server))
    if not group_faults:
        return None
    text = f"its UltraServer {node_view.ultraserver}: {'; '.join(fault.what for fault in group_faults)}"
    facts = tuple((fault.what, fault.detail) for fault in group_faults if fault.detail)
    return Finding("UltraServerFault", text, facts)


def _kubelet(world: World, node: Wire) -> Finding | None:
    problems = releases.kubelet_problems(KubeNodeView.of(node).status.node_info.kubelet_version)
    if problems:
        return Finding(problems[0].reason, problems[0].text)
    return None


def _repaired(world: World, node: Wire, causes: Sequence[Finding]) -> Iterator[str]:
    """Yield a note for each kind of Event about a device that is healthy again; the advice in it is out of date."""
    if not world.specs_of(node["metadata"]["name"]) or any(cause.code in _OF_DEVICES for cause in causes):
        return
    about = events.about(world, "Node", node)
    for event in reported.newest(event for event in about if event.reason in reported.SHOWN_BY_SLICES):
        yield f"the Event {event.reason} of {event.seen_at} is over: the driver publishes all devices as healthy"


def _events(world: World, node: Wire, codes: Sequence[str]) -> Iterator[Finding]:
    """Yield what the driver reported of the node in the last hour, unless a finding has it: it may have ended."""
    for event in reported.of_node(world, node):
        reason = event.reason
        is_reported = reason in codes or (reason in reported.SILENCING and "NoDevicesPublished" in codes)
        if not is_reported and not (reason == reported.PLUGIN_ALIVE and "DevicePluginAlive" in codes):
            text = f"the driver reported at {event.seen_at}: {event.message}"
            yield Finding(reason, text, (("event", reason),))


_MOST_HOLDERS: Final = 8  # of EFA interfaces, in the report about a node
_OF_DEVICES: Final = ("DeviceTainted", "DevicesMissing", "NoDevicesPublished", "PoolIncomplete", "PoolContradictory")


def _runtime(world: World, node: Wire) -> Finding | None:
    why = runtimes.why_no_cdi(KubeNodeView.of(node).status.node_info.container_runtime_version)
    if why:
        return Finding("RuntimeWithoutCdi", f"its runtime {why}")
    return None


_CHECKS: Final[tuple[Callable[[World, Wire], Finding | None], ...]] = (
    _not_ready,
    _reported,
    _kubelet,
    _runtime,
    _plugin_alive,
    _silent,
    _unhealthy,
    _interface,
    _cordoned,
    _ultraserver,
)
