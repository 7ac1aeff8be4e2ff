"""Why a claim or a node is not as it should be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from neuron_dra.core import catalogue, health, names
from neuron_dra.core.wire import Wire
from neuron_dra.inspect import starting, unseen, why_pod, why_workload, words
from neuron_dra.inspect.findings import Facts, Finding, Report
from neuron_dra.inspect.snapshot import Snapshot
from neuron_dra.inspect.world import World
from neuron_dra.simulate import model


def of_claim(world: World, claim: Wire) -> Report:
    """Return the report about a ResourceClaim: who has it, or why it has no devices."""
    meta, status = claim["metadata"], claim.get("status") or {}
    namespace = meta.get("namespace") or ""
    subject = f"claim {namespace or 'default'}/{meta['name']}"
    users = [user["name"] for user in status.get("reservedFor") or () if user.get("resource") == "pods"]
    allocation = status.get("allocation")
    if meta.get("deletionTimestamp"):
        who = f": it is gone when these pods have ended: {', '.join(users)}" if users else ""
        return Report(subject, "is being deleted", (Finding("Deleted", f"the claim is being deleted{who}"),))
    if allocation is not None:
        results = (allocation.get("devices") or {}).get("results") or ()
        where = ", ".join(dict.fromkeys(result["pool"] for result in results))
        state = f"has {words.devices([result['device'] for result in results])} of {where}"
        if users:
            return Report(subject, f"{state}, for {', '.join(users)}", fine=True)
        return Report(
            subject, f"{state}, and no pod uses it", notes=("it keeps its devices until it is deleted",), fine=True
        )
    for pod in world.snapshot.all("Pod"):
        if (pod["metadata"].get("namespace") or "") == namespace and any(
            each.exists and each.claim is claim for each in world.claims_of(pod)
        ):
            report = why_pod.report(world, pod)
            return Report(
                f"{subject}, of {report.subject}",
                f"is not allocated: the pod {report.state}",
                report.findings,
                report.notes,
            )
    text = "no pod uses it: a claim is allocated when a pod that uses it is scheduled"
    return Report(subject, "is not allocated", (Finding("NoPod", text),))


def of_node(world: World, node: Wire) -> Report:
    """Return the report about a Node: what keeps pods from its Neuron devices."""
    meta = node["metadata"]
    found = [finding for check in _CHECKS if (finding := check(world, node)) is not None]
    published = [device for item in world.slices_of(meta["name"]) for device in item["spec"].get("devices") or ()]
    ours = sum(item["spec"]["driver"] == names.DRIVER for item in world.slices_of(meta["name"]))
    held = sum(device.pool == meta["name"] for device in world.holders)
    least = "at least " if "ResourceClaim" in unseen.kinds(world.snapshot) else ""
    devices = f"publishes {words.count(len(published), 'device')}, {least}{held} held"
    state = devices if ours else "publishes no Neuron devices"
    return Report(f"node {meta['name']}", state, tuple(found), fine=not found)


def _not_ready(world: World, node: Wire) -> Finding | None:
    ready: Mapping[str, str] = next(
        (c for c in (node.get("status") or {}).get("conditions") or () if c.get("type") == "Ready"), {"status": "True"}
    )
    if ready.get("status") == "True":
        return None
    return Finding(
        "NodeNotReady", f"the node is not Ready: {ready.get('message') or ready.get('reason') or 'no reason'}"
    )


def _plugin_alive(world: World, node: Wire) -> Finding | None:
    offered = (node.get("status") or {}).get("allocatable") or {}
    alive = [
        name for name in ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore") if str(offered.get(name) or "0") != "0"
    ]
    if not alive:
        return None
    text = f"a Neuron device plugin offers {alive[0]} here: remove it, as the driver publishes nothing while it runs"
    return Finding("DevicePluginAlive", text)


def _silent(world: World, node: Wire) -> Finding | None:
    name = node["metadata"]["name"]
    if any(item["spec"]["driver"] == names.DRIVER for item in world.slices_of(name)):
        unusable = [
            pool for pool in world.inventory.pools(model.node(node)) if pool.driver == names.DRIVER and not pool.usable
        ]
        if unusable:
            why = unusable[0].invalid or "slices of it are missing: the driver is updating it, or stopped"
            return Finding("PoolIncomplete", f"its pool cannot be used: {why}")
        return None
    kind = (node["metadata"].get("labels") or {}).get(names.INSTANCE_TYPE_LABEL) or ""
    if not kind:
        return Finding(
            "NoDevicesPublished", f"it publishes no Neuron devices, and has no label {names.INSTANCE_TYPE_LABEL}"
        )
    if catalogue.lookup(kind) is None:
        return Finding("NotNeuron", f"its instance type {kind} has no Neuron devices")
    facts = Facts()
    pods = [p for p in world.snapshot.all("Pod") if p["spec"].get("nodeName") == name and _is_driver(p)]
    for pod in pods:
        facts.add(
            "driver pod",
            f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}: {why_pod.report(world, pod).state}",
        )
    if not pods and world.snapshot.all("Pod"):
        facts.add("driver pod", "none in the snapshot: does the DaemonSet select this node?")
    text = f"the driver publishes no devices of this {kind}: it does not run there, or is not Ready"
    return Finding("NoDevicesPublished", text, facts.done())


def _is_driver(pod: Wire) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return any("neuron-dra" in str(labels.get(key, "")) for key in ("app", "app.kubernetes.io/name", "name")) and any(
        owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ()
    )


def _cordoned(world: World, node: Wire) -> Finding | None:
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return Finding("Cordoned", "the node is cordoned: kubectl uncordon " + node["metadata"]["name"])
    hard = [t["key"] for t in spec.get("taints") or () if t.get("effect") in ("NoSchedule", "NoExecute")]
    if hard:
        return Finding("Tainted", f"only pods that tolerate {', '.join(hard)} run here")
    return None


def _unhealthy(world: World, node: Wire) -> Finding | None:
    facts = Facts()
    pools = world.inventory.pools(model.node(node))
    for device in (device for pool in pools for device in pool.devices if pool.driver == names.DRIVER):
        reasons = (device.attributes.get(health.ATTRIBUTE) or {}).get("string") or ""
        marks = [f"{taint.key}={taint.value}:{taint.effect}" for taint in device.taints]
        if reasons or marks:
            facts.add(device.id.device, ", ".join([reasons, *marks] if reasons else marks))
    if facts.items:
        number = words.count(len(facts.items), "device")
        return Finding("DeviceTainted", f"{number} unhealthy or tainted: no new claim gets them", facts.done())
    events = [e for e in starting.events_of(world, "Node", node) if str(e.get("reason")).startswith("NeuronDeviceU")]
    kind = (node["metadata"].get("labels") or {}).get(names.INSTANCE_TYPE_LABEL) or ""
    spec = catalogue.lookup(kind)
    there = [d for pool in pools for d in pool.devices if d.id.device.startswith(names.DEVICE_PREFIX)]
    if spec is not None and there and len(there) < spec.device_count:
        facts.some("event", (str(event.get("message")) for event in events), most=2)
        number = f"{len(there)} of the {spec.device_count} devices of a {kind}"
        text = f"{number} are published: the others are missing or unhealthy"
        return Finding("DevicesMissing", text, facts.done())
    return None


def _reserved(world: World, node: Wire) -> Finding | None:
    tag = world.tags.get(node["metadata"]["name"])
    if tag is None:
        return None
    text = f"it is reserved for workload {tag.workload} ({tag.phase.value}): other workloads' claims are rejected"
    return Finding("NodeReserved", text)


_CHECKS: Final[tuple[Callable[[World, Wire], Finding | None], ...]] = (
    _not_ready,
    _plugin_alive,
    _silent,
    _unhealthy,
    _cordoned,
    _reserved,
)

REPORTS: Final[Mapping[str, Callable[[World, Wire], Report]]] = {
    "Pod": why_pod.report,
    "ResourceClaim": of_claim,
    "Node": of_node,
    "NeuronUltraServerWorkload": why_workload.report,
}

_OF_NODES: Final = ("ResourceSlice", "DeviceTaintRule")
"""Kinds that could show what is wrong with a node."""


def report(snapshot: Snapshot, kind: str, item: Wire) -> Report:
    """Return the report about an object; what could not be read makes a cause unknown, and changes are not proposed."""
    missing = unseen.kinds(snapshot)
    found = REPORTS[kind](World(snapshot, proposes=not missing.keys() & set(unseen.JUDGED)), item)
    findings = tuple(unseen.doubted(each, snapshot) for each in found.findings)
    hidden = [each for each in _OF_NODES if each in missing] if kind == "Node" and found.fine else []
    if hidden:
        text = f"unknown: nothing is wrong in what was read, but not all of kind {hidden[0]} could be"
        findings = (Finding("Unknown", text),)
    notes = (text,) if (text := unseen.note(snapshot)) else ()
    return replace(found, findings=findings, notes=(*found.notes, *notes), fine=found.fine and not hidden)
