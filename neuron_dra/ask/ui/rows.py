"""Rows of the page: of nodes, UltraServers, pods that wait and workloads. Pure, except for the terminal's width."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.read.node_views import KubeNodeView
from neuron_dra.ask.read.views import ConditionView, UltraServerView, WorkloadView
from neuron_dra.ask.status import holders, stuck
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.status import workloads as workload_status
from neuron_dra.ask.world import fleet, picture, states, unseen
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import Legend, Picture
from neuron_dra.ask.world.world import World
from neuron_dra.core import ultraserver
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.ultraserver import Allocation
from neuron_dra.core.wire import Wire

Rows = dict[str, dict[str, Any]]
"""By section, then by key."""

_VERSIONS: Final = (("Neuron driver", "neuronDriverVersion"), ("DRA driver", "draDriverVersion"))
"""Programs of a node, and the attributes that its devices publish of them."""
NOTE: Final = "note"
EMPTY: Final = "empty"


def facts(world: World, *, is_empty: bool) -> dict[str, Any]:
    """Return what is to be said about the whole: what was not read, and that there is nothing."""
    empty = ""
    if is_empty:
        is_unknown = "Node" in unseen.kinds(world.snapshot)
        if is_unknown:
            empty = "unknown: the nodes could not be read"
        else:
            empty = f"no Neuron nodes: {fleet.NONE}"
    missing = sorted(unseen.kinds(world.snapshot))
    return {NOTE: unseen.note(world.snapshot), EMPTY: empty, "missing": missing, "version": world.snapshot.version}


def shape_key(node_picture: Picture) -> str:
    """Return the key of a picture's shape: nodes of an unknown type can have any number of devices."""
    return f"{node_picture.node.type}/{len(node_picture.cells)}"


def shape(node_picture: Picture) -> dict[str, Any]:
    """Return the places of devices, and their links, in a picture."""
    return {
        "columns": node_picture.columns,
        "rows": node_picture.rows,
        "places": [(cell.x, cell.y) for cell in node_picture.cells],
        "links": node_picture.links,
        "switched": node_picture.switched,
    }


def node(node_picture: Picture, missing: Collection[str]) -> dict[str, Any]:
    """Return a node: its state, and a mark for each device."""
    view = node_picture.node
    state = states.of(view, missing)
    return {
        "type": view.type,
        "shape": shape_key(node_picture),
        "letter": state.kind.value,
        "state": state.text,
        "marks": "".join(picture.fill(cell) for cell in node_picture.cells),
        "devices": len(view.devices),
        "free": view.free,
        "held": view.held,
        "faulty": view.faulty,
        "server": view.ultraserver,
        "position": view.position,
    }


def server(members: Sequence[NodeView], missing: Mapping[int, str]) -> dict[str, Any]:
    """Return an UltraServer: its nodes with their places, those that it lacks, and the links between the nodes."""
    # Two nodes with one position, which only a wrong label makes, would cover each other.
    is_square = picture.square(members) and len({member.position for member in members}) == len(members)
    columns = picture.columns(len(members) + len(missing))
    named = [(member.position, member.name) for member in members]
    nodes = []
    for number, (position, name) in enumerate(sorted([*named, *missing.items()])):
        x, y = picture.PLACES[position] if is_square else (number % columns, number // columns)
        nodes.append({"name": name, "position": position, "x": x, "y": y, "missing": position in missing})
    links = []
    for way, pairs in picture.PAIRS.items() if is_square else ():
        for pair in pairs:
            ends = [member.name for member in members if member.position in pair]
            if len(ends) == 2:
                links.append({"way": way, "ends": ends, "up": picture.link(members, way, pair)})
    return {"type": members[0].type, "nodes": nodes, "links": links}


def holders_of(nodes: Sequence[NodeView]) -> dict[str, Any]:
    """Return who holds devices, by claim and node."""
    holder_rows = {}
    for row in holders.rows(nodes, ""):
        holder_rows[f"{row.namespace}/{row.claim}@{row.node}"] = {
            "namespace": row.namespace,
            "pods": row.pods,
            "claim": row.claim,
            "node": row.node,
            "devices": row.short,
            "count": len(row.devices),
        }
    return holder_rows


def waiting(pods: Sequence[Wire]) -> dict[str, Any]:
    """Return the pods that wait, equal ones together, in order."""
    waiting_rows = {}
    for number, equal_pods in enumerate(status_text.alike(pods)):
        meta = equal_pods[0]["metadata"]
        namespace = str(meta.get("namespace") or "default")
        names = [str(pod["metadata"]["name"]) for pod in equal_pods]
        waiting_rows[f"{namespace}/{names[0]}"] = {
            "order": number,
            "namespace": namespace,
            "pods": names,
            "since": str(meta.get("creationTimestamp") or ""),
        }
    return waiting_rows


def stuck_pods(world: World) -> dict[str, Any]:
    """Return the pods that have a node and do not start or end there, with the reason."""
    stuck_rows = {}
    for pod in stuck.stuck(world, ""):
        namespace, _, name = pod.name.partition("/")
        pod_object = world.snapshot.get("Pod", name, namespace) or {}
        since = str((pod_object.get("metadata") or {}).get("creationTimestamp") or "")
        stuck_rows[pod.name] = {"namespace": namespace, "pod": name, "node": pod.node, "text": pod.text, "since": since}
    return stuck_rows


def workloads(world: World) -> dict[str, Any]:
    """Return the UltraServer workloads: their state, ranks and conditions."""
    slots: dict[str, list[tuple[str, Allocation]]] = {}
    for server in world.snapshot.all("NeuronUltraServer"):
        view = UltraServerView.of(server)
        name = view.status.ultraserver_id or view.metadata.name
        for slot in ultraserver.decode_allocations(server):
            slots.setdefault(slot.workload, []).append((name, slot))
    workload_rows = {}
    for workload_object in world.snapshot.all("NeuronUltraServerWorkload"):
        workload = WorkloadView.of(workload_object)
        namespace = workload.metadata.namespace or "default"
        if namespace == NAMESPACE:
            continue  # a test is nobody's
        key = f"{namespace}/{workload.metadata.name}"
        workload_rows[key] = _workload(workload, workload_object, slots.get(key, ()))
    return workload_rows


def _workload(workload: WorkloadView, workload_object: Wire, slots: Sequence[tuple[str, Allocation]]) -> dict[str, Any]:
    spec, status = workload.spec, workload.status
    wait = workload_status.wait(workload)
    ranks = []
    for _, slot in slots:
        for node in slot.nodes:
            ranks.append((slot.rank(node), node, slot.phase.value))
    return {
        "namespace": workload.metadata.namespace or "default",
        "name": workload.metadata.name,
        "state": status.state or "not handled yet",
        "waits": wait is not None,
        "reason": wait.reason if wait is not None else "",
        "type": spec.instance_type,
        "wanted": spec.server_count,
        "each": spec.topology_size,
        "groups": len(slots),
        "servers": sorted({name for name, _ in slots}),
        "since": str(workload_object["metadata"].get("creationTimestamp") or ""),
        "ranks": sorted(ranks),
        "conditions": _conditions(status.conditions),
    }


def _conditions(conditions: Sequence[ConditionView]) -> list[dict[str, str]]:
    wire_conditions = []
    for condition in conditions:
        wire_conditions.append(
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
            }
        )
    return wire_conditions


def node_object(node_wire: Wire, view: NodeView) -> Mapping[str, Any]:
    """Return the age of a node, the versions of its programs, its taints and its conditions."""
    node = KubeNodeView.of(node_wire)
    published = view.devices[0].attributes if view.devices else {}
    texts = [str(next(iter((published.get(name) or {"": ""}).values()))) for _, name in _VERSIONS]
    versions = [(title, text or "unknown") for (title, _), text in zip(_VERSIONS, texts, strict=True)]
    info = node.status.node_info
    versions.append(("kubelet", info.kubelet_version or "unknown"))
    versions.append(("runtime", info.container_runtime_version or "unknown"))
    taints = []
    for taint in node.spec.taints:
        value = f"={taint.value}" if taint.value else ""
        taints.append(f"{taint.key}{value}:{taint.effect}")
    return {
        "since": str(node.metadata.creation_timestamp or ""),
        "versions": versions,
        "taints": taints,
        "conditions": _conditions(node.status.conditions),
    }


def node_details(view: NodeView) -> Mapping[str, Any]:
    """Return the picture of one node with who holds what, in words."""
    legend = Legend()
    node_picture = picture.draw(view, legend)
    return {
        "summary": picture.summary(view),
        "cells": [(cell.mark, picture.fill(cell), cell.title) for cell in node_picture.cells],
        "shape": shape(node_picture),
        "groups": picture.free_groups(view),
    }
