"""The fleet on one screen: node types, UltraServers, and the pods that wait. Pure, except for the terminal's width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from neuron_dra.core.wire import Wire
from neuron_dra.inspect import fleet, terminal, why_pod, words
from neuron_dra.inspect.fleet import NodeView
from neuron_dra.inspect.world import World

EXPLAINED: Final = 5
"""Waiting pods whose cause is shown; the others are counted."""
ROWS: Final = 8


def data(world: World, namespace: str) -> dict[str, Any]:
    """Return the status for `-o json` and `-o yaml`; `namespace` limits the pods that wait, empty for all."""
    found = fleet.nodes(world)
    return {
        "types": [_type(kind, nodes) for kind, nodes in _by_type(found)],
        "ultraServers": [_group(name, nodes) for name, nodes in fleet.ultraservers(found).items()],
        "waiting": [_waiting(world, pod, None) for pod in _pods(world, namespace)],
        "nodes": [_row(node) for node in found],
    }


def _pods(world: World, namespace: str) -> list[Wire]:
    return [pod for pod in fleet.waiting(world) if not namespace or pod["metadata"].get("namespace") == namespace]


def _by_type(found: Iterable[NodeView]) -> list[tuple[str, list[NodeView]]]:
    groups: dict[str, list[NodeView]] = defaultdict(list)
    for node in found:
        groups[node.type].append(node)
    return sorted(groups.items())


def _type(kind: str, nodes: Sequence[NodeView]) -> dict[str, Any]:
    return {
        "type": kind,
        "nodes": len(nodes),
        "notReady": sum(not node.ready for node in nodes),
        "cordoned": sum(not node.schedulable for node in nodes),
        "silent": sum(not node.devices for node in nodes),
        "reserved": sum(node.tag is not None for node in nodes),
        "devices": sum(len(node.devices) for node in nodes),
        "free": sum(node.free for node in nodes),
        "held": sum(node.held for node in nodes),
        "unhealthy": sum(node.faulty for node in nodes),
        "largestFree": max((node.free for node in nodes), default=0),
    }


def _group(name: str, nodes: Sequence[NodeView]) -> dict[str, Any]:
    return {
        "name": name,
        "type": nodes[0].type,
        "nodes": [
            {"name": node.name, "state": state(node), "vertical": node.vertical, "horizontal": node.horizontal}
            for node in nodes
        ],
    }


def _row(node: NodeView) -> dict[str, Any]:
    return {
        "name": node.name,
        "type": node.type,
        "state": state(node),
        "devices": len(node.devices),
        "free": node.free,
        "held": node.held,
        "unhealthy": node.faulty,
    }


def state(node: NodeView) -> str:
    """Return a node's state in a few words; the first that applies."""
    if not node.ready:
        return "not Ready"
    if not node.devices:
        return "publishes nothing"
    if node.tag is not None:
        return f"{node.tag.workload} {node.tag.phase.value}"
    if not node.schedulable:
        return "cordoned"
    users = sorted({str(holder) for device in node.devices for holder in device.holders})
    return words.listed(users, 2) if users else "free"


def _waiting(world: World, pod: Wire, cause: str | None) -> dict[str, Any]:
    meta = pod["metadata"]
    return {
        "pod": f"{meta.get('namespace') or 'default'}/{meta['name']}",
        "since": meta.get("creationTimestamp"),
        **({"cause": cause} if cause else {}),
    }


def lines(world: World, namespace: str, *, wide: bool = False) -> list[str]:
    """Return the screen. `wide` has a line for every node, and every pod that waits."""
    found = fleet.nodes(world)
    if not found:
        return ["no Neuron nodes: no node publishes devices, and no Node has a Neuron instance type"]
    out = _types(found)
    groups = fleet.ultraservers(found)
    if groups:
        out += ["", terminal.colored("ULTRASERVER", "bold"), *_groups(groups, wide=wide)]
    if wide:
        out += ["", *_nodes(found)]
    return out + _causes(world, _pods(world, namespace), wide=wide)


def _types(found: Sequence[NodeView]) -> list[str]:
    rows = [["TYPE", "NODES", "DEVICES", "FREE", "HELD", "UNHEALTHY", "MOST FREE", "PROBLEMS"]]
    for kind, nodes in _by_type(found):
        row = _type(kind, nodes)
        problems = [
            f"{row[key]} {text}"
            for key, text in (
                ("notReady", "not Ready"),
                ("cordoned", "cordoned"),
                ("silent", "silent"),
                ("reserved", "reserved"),
            )
            if row[key]
        ]
        numbers = [row[key] for key in ("nodes", "devices", "free", "held", "unhealthy", "largestFree")]
        rows.append([kind, *map(str, numbers), ", ".join(problems)])
    return _headed(rows)


def _headed(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = terminal.table(rows)
    return [terminal.colored(head, "bold"), *rest]


def _groups(groups: dict[str, list[NodeView]], *, wide: bool) -> list[str]:
    rows = []
    for name, nodes in list(groups.items())[: None if wide else ROWS]:
        states = [state(node) for node in nodes]
        texts = [f"{states.count(each)} {each}" for each in dict.fromkeys(states)]
        down = [way for way in ("vertical", "horizontal") if any(getattr(node, way) is False for node in nodes)]
        rows.append(
            [name, nodes[0].type, words.listed(texts, 3) + (f"; {' and '.join(down)} links down" if down else "")]
        )
    more = len(groups) - len(rows)
    return terminal.table(rows) + ([f"and {more} more: -o wide"] if more else [])


def _nodes(found: Sequence[NodeView]) -> list[str]:
    rows = [["NODE", "TYPE", "FREE", "HELD", "UNHEALTHY", "STATE"]]
    rows += [[n.name, n.type, str(n.free), str(n.held), str(n.faulty), state(n)] for n in found]
    return _headed(rows)


def _causes(world: World, pods: Sequence[Wire], *, wide: bool) -> list[str]:
    if not pods:
        return ["", "no pod waits for Neuron devices"]
    out = ["", terminal.colored(f"WAITING ({words.count(len(pods), 'pod')})", "bold")]
    shown = pods if wide else pods[:EXPLAINED]
    for pod in shown:
        meta = pod["metadata"]
        found = why_pod.waiting(world, pod)
        text = f"{meta.get('namespace') or 'default'}/{meta['name']}: {found[0].text}"
        out += terminal.wrapped(text, rest="  ")
    left = len(pods) - len(shown)
    return out + ([f"and {words.count(left, 'more pod')}: -o wide"] if left else [])
