"""The fleet on one screen: node types, UltraServers, and the pods that wait. Pure, except for the terminal's width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import fleet, unseen
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World
from neuron_dra.core import labels
from neuron_dra.core.wire import Wire

EXPLAINED: Final = 5
"""Waiting pods whose cause is shown; the others are counted."""
ROWS: Final = 8
_UNKNOWN: Final = {
    "ResourceSlice": ("devices", "free", "held", "unhealthy", "largestFree", "silent"),
    "ResourceClaim": ("free", "held", "largestFree"),
    "DeviceTaintRule": ("free", "unhealthy", "largestFree"),
}
"""Numbers that need all objects of a kind."""


def data(world: World, namespace: str, selected: labels.Test = labels.EVERY) -> dict[str, Any]:
    """Return the status for `-o json` and `-o yaml`; `namespace` limits the pods that wait, empty for all."""
    found, missing = fleet.nodes(world, selected), unseen.kinds(world.snapshot)
    return {
        "notSeen": [{"kind": kind, "reason": why} for kind, why in missing.items()],
        "types": [_type(kind, nodes, missing) for kind, nodes in _by_type(found)],
        "ultraServers": [_group(name, nodes, missing) for name, nodes in fleet.ultraservers(found).items()],
        "waiting": [_waiting(pod) for pod in _pods(world, namespace)],
        "nodes": [_row(node, missing) for node in found],
    }


def _known(row: dict[str, Any], missing: Collection[str]) -> dict[str, Any]:
    """Return the row with None for numbers that are unknown."""
    unknown = {key for kind in missing for key in _UNKNOWN.get(kind, ())}
    return {key: None if key in unknown else value for key, value in row.items()}


def _pods(world: World, namespace: str) -> list[Wire]:
    return [pod for pod in fleet.waiting(world) if not namespace or pod["metadata"].get("namespace") == namespace]


def _by_type(found: Iterable[NodeView]) -> list[tuple[str, list[NodeView]]]:
    groups: dict[str, list[NodeView]] = defaultdict(list)
    for node in found:
        groups[node.type].append(node)
    return sorted(groups.items())


def _type(kind: str, nodes: Sequence[NodeView], missing: Collection[str]) -> dict[str, Any]:
    row = {
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
    return _known(row, missing)


def _group(name: str, nodes: Sequence[NodeView], missing: Collection[str]) -> dict[str, Any]:
    return {
        "name": name,
        "type": nodes[0].type,
        "nodes": [
            {"name": node.name, "state": state(node, missing), "vertical": node.vertical, "horizontal": node.horizontal}
            for node in nodes
        ],
    }


def _row(node: NodeView, missing: Collection[str]) -> dict[str, Any]:
    row = {
        "name": node.name,
        "type": node.type,
        "state": state(node, missing),
        "devices": len(node.devices),
        "free": node.free,
        "held": node.held,
        "unhealthy": node.faulty,
    }
    return _known(row, missing)


def state(node: NodeView, missing: Collection[str]) -> str:
    """Return a node's state in a few words, the first that applies; `missing` kinds were not read."""
    if not node.ready:
        return "not Ready"
    if not node.devices:
        return "unknown" if "ResourceSlice" in missing else "publishes nothing"
    if node.tag is not None:
        return f"{node.tag.workload} {node.tag.phase.value}"
    if not node.schedulable:
        return "cordoned"
    users = sorted({str(holder) for device in node.devices for holder in device.holders})
    return words.listed(users, 2) if users else "unknown" if "ResourceClaim" in missing else "free"


def _waiting(pod: Wire) -> dict[str, Any]:
    meta = pod["metadata"]
    return {
        "pod": f"{meta.get('namespace') or 'default'}/{meta['name']}",
        "since": meta.get("creationTimestamp"),
    }


def lines(world: World, namespace: str, selected: labels.Test = labels.EVERY, *, wide: bool = False) -> list[str]:
    """Return the screen, with the nodes that are selected. `wide` has a line for every node, and all pods that wait."""
    found, missing = fleet.nodes(world, selected), unseen.kinds(world.snapshot)
    note = unseen.note(world.snapshot)
    out = terminal.wrapped(note, rest="  ") if note else []
    if not found:
        return [*out, "unknown: the nodes could not be read" if "Node" in missing else f"no Neuron nodes: {fleet.NONE}"]
    out += _types(found, missing)
    groups = fleet.ultraservers(found)
    if groups:
        out += ["", terminal.colored("ULTRASERVER", "bold"), *_groups(groups, missing, wide=wide)]
    if wide:
        out += ["", *_nodes(found, missing)]
    return out + _causes(world, _pods(world, namespace), wide=wide)


def _types(found: Sequence[NodeView], missing: Collection[str]) -> list[str]:
    rows = [["TYPE", "NODES", "DEVICES", "FREE", "HELD", "UNHEALTHY", "MOST FREE", "PROBLEMS"]]
    for kind, nodes in _by_type(found):
        row = _type(kind, nodes, missing)
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
        rows.append([kind, *map(_number, numbers), ", ".join(problems)])
    return _headed(rows)


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _headed(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = terminal.table(rows)
    return [terminal.colored(head, "bold"), *rest]


def _groups(groups: dict[str, list[NodeView]], missing: Collection[str], *, wide: bool) -> list[str]:
    rows = []
    for name, nodes in list(groups.items())[: None if wide else ROWS]:
        states = [state(node, missing) for node in nodes]
        texts = [f"{states.count(each)} {each}" for each in dict.fromkeys(states)]
        down = [way for way in ("vertical", "horizontal") if any(getattr(node, way) is False for node in nodes)]
        rows.append(
            [name, nodes[0].type, words.listed(texts, 3) + (f"; {' and '.join(down)} links down" if down else "")]
        )
    more = len(groups) - len(rows)
    return terminal.table(rows) + ([f"and {more} more: -o wide"] if more else [])


def _nodes(found: Sequence[NodeView], missing: Collection[str]) -> list[str]:
    rows = [["NODE", "TYPE", "FREE", "HELD", "UNHEALTHY", "STATE"]]
    for node in found:
        row = _row(node, missing)
        numbers = [_number(row[key]) for key in ("free", "held", "unhealthy")]
        rows.append([node.name, node.type, *numbers, row["state"]])
    return _headed(rows)


def _causes(world: World, pods: Sequence[Wire], *, wide: bool) -> list[str]:
    if not pods and "Pod" in unseen.kinds(world.snapshot):
        return ["", "unknown whether pods wait"]
    if not pods:
        return ["", "no pod waits for Neuron devices"]
    out = ["", terminal.colored(f"WAITING ({words.count(len(pods), 'pod')})", "bold")]
    shown = pods if wide else pods[:EXPLAINED]
    for pod in shown:
        meta = pod["metadata"]
        found = unseen.doubted(why_pod.waiting(world, pod)[0], world.snapshot)
        text = f"{meta.get('namespace') or 'default'}/{meta['name']}: {found.text}"
        out += terminal.wrapped(text, rest="  ")
    left = len(pods) - len(shown)
    return out + ([f"and {words.count(left, 'more pod')}: -o wide"] if left else [])
