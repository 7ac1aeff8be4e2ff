"""Checks the driver and the Neuron nodes of a cluster from outside. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.read.node_views import NodeTypeView, SliceView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import UltraServerView
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.why import node as why_node
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import faults, unseen
from neuron_dra.ask.world.faults import FleetFault
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, names, program, slices

_NORMAL: Final = ("Cordoned", "Tainted", "NotNeuron", "NotServed", "UltraServerFault")
"""States of a node in which nothing is wrong with the installation."""
_TO_DO: Final[Mapping[str, str]] = {
    "NodeNotReady": "kubectl describe node NODE, and its kubelet's log",
    "NodeUnhealthy": "the agent's own log; then repair or replace the node (docs/known-good.md)",
    "KubeletBroken": "update the kubelet",
    "KubeletTooOld": "update the kubelet",
    "DevicePluginAlive": "remove the Neuron device plugin from the node (docs/updates.md)",
    "PoolIncomplete": f"if it lasts: {program.NAME} doctor node/NODE",
    "NoDevicesPublished": f"{program.NAME} doctor node/NODE",
    "DeviceTainted": "docs/health.md has the reasons and remedies",
    "DevicesMissing": f"{program.NAME} doctor node/NODE",
    "RuntimeWithoutCdi": "use a runtime that injects CDI devices, or leave the node out of the driver's DaemonSet",
    "NeuronEfaStandsDown": "keep one manager of EFA interfaces on the node (docs/efa.md)",
    "EfaTwoManagers": "keep one of the two drivers off the node (docs/efa.md)",
    "InterfaceTainted": "docs/efa.md has the reasons and remedies",
    "PoolContradictory": "kubectl delete resourceslice of the one that the driver did not write",
}


def lines(world: World, only: str = "") -> Iterator[Line]:
    """Yield the line of each check, of all Neuron nodes or of one."""
    missing = unseen.kinds(world.snapshot)
    all_names = sorted(neuron_nodes(world), key=words.natural)
    chosen = [name for name in all_names if only in ("", name)]
    yield from _pods(world, missing, only)
    yield from _slices(world, missing, chosen, only)
    if "Node" in missing:
        yield unknown("nodes", f"Nodes: {missing['Node']}")
        return
    if not chosen:
        none = f"node {only} has no Neuron instance type, and publishes no devices"
        yield ok("nodes", none if only else "no node has a Neuron instance type, or publishes devices", "NoNodes")
        return
    if not only:
        yield from _ultraservers(world)
    by_code: dict[str, list[tuple[str, Finding]]] = defaultdict(list)
    for name in chosen:
        for finding in _findings(world, name, missing):
            by_code[finding.code].append((name, finding))
    for code, group in by_code.items():
        yield _grouped(code, group)
    bad = {name for group in by_code.values() for name, _ in group}
    if len(bad) < len(chosen):
        number = len(chosen) - len(bad)
        verb = "is as it should be" if number == 1 else "are as they should be"
        yield ok("nodes", f"{words.count(number, 'Neuron node')} {verb}")


def _ultraservers(world: World) -> Iterator[Line]:
    """Yield the faults of UltraServers, equal ones in one line."""
    servers = faults.by_id(world)
    same: dict[str, list[FleetFault]] = defaultdict(list)
    for name in sorted(world.ultraservers, key=words.natural):
        for fault in faults.of_ultraserver(name, faults.members(world, name), servers.get(name)):
            same[fault.what].append(fault)
    for what, group in same.items():
        if len(group) == 1:
            who = f"UltraServer {group[0].name}"
        else:
            who = f"{len(group)} UltraServers"
        if len(group) == 1:
            names = ""
        else:
            names = f": {words.listed((fault.name for fault in group), 8)}"
        to_do = _explained(group[0].name, servers.get(group[0].name))
        yield wrong("nodes", "UltraServerFault", f"{who}: {what}{names}", to_do)


def _explained(name: str, server: UltraServerView | None) -> str:
    """Return the command that shows an UltraServer; `why` needs the controller's object of it."""
    if server is None:
        return f"{program.NAME} topology {name}"
    meta = server.metadata
    return f"{program.NAME} why nus/{meta.name} -n {meta.namespace or 'default'}"


def neuron_nodes(world: World) -> Iterator[str]:
    """Yield the names of the nodes with a Neuron instance type, or with devices of this driver."""
    for name, node in world.nodes.items():
        kind = NodeTypeView.of(node).instance_type
        if catalogue.lookup(kind) is not None or world.specs_of(name):
            yield name


def _findings(world: World, name: str, missing: Mapping[str, str]) -> Iterator[Finding]:
    for finding in why_node.findings(world, world.nodes[name]):
        if finding.code not in _NORMAL:
            yield unseen.doubted(finding, world.snapshot)
    if world.specs_of(name) and "Pod" not in missing and world.driver_pods and name not in world.driver_pods:
        text = "it has ResourceSlices of the driver, and no pod of the driver: nothing prepares claims or updates them"
        yield Finding("DriverMissing", text)


def _grouped(code: str, group: Sequence[tuple[str, Finding]]) -> Line:
    """Return one line for all nodes with a finding, with the words about the first of them."""
    name, finding = group[0]
    count = ""
    if len(group) > 1:
        count = f" (and {len(group) - 1} more: {words.listed([node_name for node_name, _ in group[1:]])})"
    advice = [text for label, text in finding.facts if label == "to do"]
    details = [f"{label} {text}".strip() for label, text in finding.facts if label != "to do"]
    facts = "; ".join(details[:2])
    text = f"node {name}{count}: {finding.text}" + (f" ({facts})" if facts else "")
    todo = _TO_DO.get(code, f"{program.NAME} why node/NODE").replace("NODE", name)
    if advice:
        todo = f"{advice[0]} ({'docs/efa.md' if code == 'InterfaceTainted' else 'docs/health.md'})"
    if code == "DriverMissing":
        todo = "let the driver's DaemonSet select the node, or delete its ResourceSlices"
    if code == "Unknown":
        return unknown("nodes", text, todo)
    return wrong("nodes", code, text, todo)


def _pods(world: World, missing: Mapping[str, str], only: str) -> Iterator[Line]:
    """Yield whether the driver's pods are Ready and of one version."""
    area = "driver"
    if "Pod" in missing:
        yield unknown(area, f"Pods: {missing['Pod']}")
        return
    pods = []
    for node, node_pods in world.driver_pods.items():
        if only in ("", node):
            pods += node_pods
    if not pods:
        if only == "" and any(neuron_nodes(world)):
            yield wrong(
                area, "DriverNotInstalled", "no pod of the driver exists", "install the driver: docs/install.md"
            )
        return
    bad = [pod for pod in pods if not PodView.of(pod).is_ready]
    if bad:
        meta = PodView.of(bad[0]).metadata
        where = f"{meta.namespace}/{meta.name}"
        report = why_pod.report(world, bad[0])
        why = report.findings[0].text if report.findings else report.state
        text = f"{len(bad)} of {words.count(len(pods), 'pod')} not Ready, such as {where}: {why}"
        yield wrong(area, "DriverNotReady", text, f"kubectl logs -n {meta.namespace} {meta.name}")
    images: dict[str, list[str]] = defaultdict(list)
    for pod in pods:
        pod_view = PodView.of(pod)
        image = next((container.image for container in pod_view.spec.containers), "") or "unknown"
        images[image].append(pod_view.metadata.name)
    if len(images) > 1:
        few = min(images, key=lambda image: len(images[image]))
        counts = ", ".join(f"{len(pods)} x {image}" for image, pods in sorted(images.items()))
        text = f"the driver's pods are of several versions: {counts}; {words.listed(images[few], 2)} of {few}"
        yield wrong(area, "DriverVersions", text, "if no update runs: kubectl rollout status of the driver's DaemonSet")
    if not bad and len(images) == 1:
        yield ok(area, f"{words.count(len(pods), 'pod')} Ready, image {next(iter(images))}")


def _slices(world: World, missing: Mapping[str, str], chosen: Sequence[str], only: str) -> Iterator[Line]:
    """Yield whether other programs wrote slices of the driver's pools."""
    area = "slices"
    if "ResourceSlice" in missing:
        yield unknown(area, f"ResourceSlices: {missing['ResourceSlice']}")
        return
    own_count, foreign_names, nodeless_names = 0, [], []
    for raw_slice in world.snapshot.all("ResourceSlice"):
        slice_view = SliceView.of(raw_slice)
        name, node, pool = slice_view.metadata.name, slice_view.spec.node_name, slice_view.spec.pool.name
        if not slice_view.spec.is_ours or only not in ("", node, pool):
            continue
        if node == pool and slices.is_ours(name, node):
            own_count += 1
        else:
            foreign_names.append(name)
        if node and node not in world.nodes:
            nodeless_names.append(name)
    if foreign_names:
        text = f"{words.count(len(foreign_names), 'ResourceSlice')} of driver {names.DRIVER} by another program: "
        todo = "find their author (kubectl get resourceslice NAME -o yaml --show-managed-fields), and delete them"
        yield wrong(area, "ForeignSlice", text + words.listed(foreign_names), todo)
    if nodeless_names and "Node" not in missing:
        count = words.count(len(nodeless_names), "ResourceSlice")
        text = f"{count} of nodes that do not exist: {words.listed(nodeless_names)}"
        yield wrong(area, "SliceWithoutNode", text, "delete them")
    if not foreign_names and not nodeless_names and (own_count or not chosen):
        yield ok(area, f"{words.count(own_count, 'ResourceSlice')} of the driver, each of its own node")
