"""The fleet on one screen: node types, UltraServers, and the pods that wait. Pure, except for the terminal's width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from neuron_dra.ask.read.views import TestedView
from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.status import stuck, workloads
from neuron_dra.ask.status.stuck import StuckPod
from neuron_dra.ask.world import capacity, faults, fleet, states, tested, unseen
from neuron_dra.ask.world.capacity import Layouts
from neuron_dra.ask.world.faults import FleetFault
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World
from neuron_dra.core import labels
from neuron_dra.core.wire import Wire

EXPLAINED: Final = 5
"""Waiting pods whose cause is shown; the others are counted."""
ROWS: Final = 8
NAMED: Final = 12
"""UltraServers, nodes and pods that are named with what they share; the others are counted."""
LINES: Final = 3
"""Lines of one kind of fault."""
_UNKNOWN: Final = {
    "ResourceSlice": ("devices", "free", "held", "unhealthy", "largestFree", "silent", "reserved"),
    "ResourceClaim": ("free", "held", "largestFree"),
    "DeviceTaintRule": ("free", "unhealthy", "largestFree"),
}
"""Numbers that need all objects of a kind."""
_TOTALS: Final[Mapping[str, Callable[[NodeView], int]]] = {
    "notReady": lambda node: not node.ready,
    "cordoned": lambda node: not node.schedulable,
    "silent": lambda node: not node.devices,
    "reserved": lambda node: node.tag is not None,
    "devices": lambda node: len(node.devices),
    "free": lambda node: node.free,
    "held": lambda node: node.held,
    "unhealthy": lambda node: node.faulty,
}
"""What is added up over the nodes of a type."""


def data(world: World, namespace: str, selected: labels.Test = labels.EVERY) -> dict[str, Any]:
    """Return the status for `-o json` and `-o yaml`; `namespace` limits the pods that wait, empty for all."""
    return of_nodes(world, fleet.nodes(world, selected), namespace)


def of_nodes(world: World, node_views: Sequence[NodeView], namespace: str) -> dict[str, Any]:
    """Return the same of nodes that are known already."""
    missing = unseen.kinds(world.snapshot)
    types = [of_type(kind, members, missing) for kind, members in _by_type(node_views)]
    groups, results = [], _results(world)
    for name, members in fleet.ultraservers(node_views).items():
        groups.append({**_group(name, members, missing), "tests": tested.rows(results.get(name, ()))})
    waiting = [_waiting(pod) for pod in _pods(world, namespace)]
    nodes = [_row(node, missing) for node in node_views]
    not_started = [stuck_pod.to_wire() for stuck_pod in stuck.stuck(world, namespace)]
    reservations = [workload.to_wire() for workload in workloads.waiting(world, namespace)]
    return {
        "notSeen": unseen.data(world.snapshot),
        "wrong": list(map(fault_row, [*faults.of_fleet(world, node_views), *stuck.without_devices(world, namespace)])),
        "types": types,
        "ultraServers": groups,
        "waiting": waiting,
        "notStarted": not_started,
        "workloads": reservations,
        "nodes": nodes,
    }


def _results(world: World) -> dict[str, list[TestedView]]:
    """Return what tests found, by id of the UltraServer."""
    return {name: tested.results(world, server) for name, server in faults.by_id(world).items()}


def _known(row: dict[str, Any], missing: Collection[str]) -> dict[str, Any]:
    """Return the row with None for numbers that are unknown."""
    unknown: set[str] = set()
    for kind in missing:
        unknown.update(_UNKNOWN.get(kind, ()))
    return {key: None if key in unknown else value for key, value in row.items()}


def _pods(world: World, namespace: str) -> list[Wire]:
    pods = []
    for pod in fleet.waiting(world):
        if not namespace or pod["metadata"].get("namespace") == namespace:
            pods.append(pod)
    return pods


def _by_type(node_views: Iterable[NodeView]) -> list[tuple[str, list[NodeView]]]:
    groups: dict[str, list[NodeView]] = defaultdict(list)
    for node in node_views:
        groups[node.type].append(node)
    return sorted(groups.items())


def of_type(
    kind: str, nodes: Sequence[NodeView], missing: Collection[str], layouts: Layouts | None = None
) -> dict[str, Any]:
    """Return the row of a type, from all of its nodes; `layouts` are kept from one time to the next."""
    row: dict[str, Any] = {"type": kind, "nodes": len(nodes)}
    for name, number in _TOTALS.items():
        row[name] = sum(map(number, nodes))
    row["largestFree"] = max((node.free for node in nodes), default=0)
    for size, count in capacity.groups(nodes, layouts).items():
        row[f"freeGroupsOf{size}"] = count
    return _known(row, missing)


def fault_row(fault: FleetFault) -> dict[str, Any]:
    """Return the row of a fault."""
    return {"kind": fault.kind, "name": fault.name, "what": fault.what, "detail": fault.detail}


def _group(name: str, nodes: Sequence[NodeView], missing: Collection[str]) -> dict[str, Any]:
    rows = []
    for node in nodes:
        links = {"vertical": node.vertical, "horizontal": node.horizontal}
        rows.append({"name": node.name, "state": state(node, missing), **links})
    return {"name": name, "type": nodes[0].type, "nodes": rows}


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
    return states.of(node, missing).text


def _waiting(pod: Wire) -> dict[str, Any]:
    meta = pod["metadata"]
    return {
        "pod": f"{meta.get('namespace') or 'default'}/{meta['name']}",
        "since": meta.get("creationTimestamp"),
    }


@dataclass(frozen=True, slots=True)
class Screen:
    """How the status is printed: `wide` has a line for every node, and all pods that wait."""

    wide: bool = False
    headers: bool = True
    sort_by: str = "name"


PLAIN: Final = Screen()


def sorted_nodes(world: World, selected: labels.Test, sort_by: str) -> list[NodeView]:
    """Return the nodes that are selected, by name or by a number, the smallest first as in kubectl."""
    node_views = fleet.nodes(world, selected)
    numbers = {"free": lambda node: node.free, "held": lambda node: node.held, "unhealthy": lambda node: node.faulty}
    if sort_by in numbers:
        return sorted(node_views, key=numbers[sort_by])
    return node_views


def lines(
    world: World, namespace: str, selected: labels.Test = labels.EVERY, screen: Screen = PLAIN, *, wide: bool = False
) -> list[str]:
    """Return the screen, with the nodes that are selected."""
    wide = wide or screen.wide
    node_views, missing = sorted_nodes(world, selected, screen.sort_by), unseen.kinds(world.snapshot)
    note = unseen.note(world.snapshot)
    out = terminal.wrapped(note, rest="  ") if note else []
    if not screen.headers:
        types = {kind: of_type(kind, nodes, missing) for kind, nodes in _by_type(node_views)}
        return [*out, *_headed(_counts(node_views, types))[1:], *(_nodes(node_views, missing)[1:] if wide else ())]
    if not node_views:
        if "Node" in missing:
            return [*out, "unknown: the nodes could not be read"]
        pods = _pods(world, namespace)
        return [*out, f"no Neuron nodes: {fleet.NONE}", *(_causes(world, pods, wide=wide) if pods else ())]
    wrong = [*faults.of_fleet(world, node_views), *stuck.without_devices(world, namespace)]
    out += _wrong(wrong, wide=wide)
    types = {kind: of_type(kind, nodes, missing) for kind, nodes in _by_type(node_views)}
    out += _types(node_views, types)
    out += _causes(world, _pods(world, namespace), wide=wide)
    out += _not_started(stuck.stuck(world, namespace), wide=wide)
    out += workloads.lines(world, workloads.waiting(world, namespace), most_named=None if wide else NAMED)
    groups = fleet.ultraservers(node_views)
    if groups:
        out += ["", terminal.colored("ULTRASERVER", "bold")]
        out += _groups(groups, _faulty(wrong), _results(world), missing, wide=wide)
    if wide:
        out += ["", *_nodes(node_views, missing)]
    return out


def _faulty(wrong: Sequence[FleetFault]) -> dict[str, list[str]]:
    """Return what is wrong with UltraServers, by their ids."""
    texts_by_id: dict[str, list[str]] = defaultdict(list)
    for fault in wrong:
        if fault.kind == faults.ULTRASERVER:
            texts_by_id[fault.name].append(fault.what)
    return texts_by_id


def _wrong(fleet_faults: Sequence[FleetFault], *, wide: bool) -> list[str]:
    """Return a line for each fault, with the UltraServers or nodes that have it."""
    if not fleet_faults:
        return []
    groups: dict[tuple[str, str], list[FleetFault]] = defaultdict(list)
    for fault in fleet_faults:
        groups[fault.what, fault.kind].append(fault)
    out = [terminal.colored("WRONG", "bold")]
    for (what, kind), same in groups.items():
        who = f"{kind}{'' if len(same) == 1 else 's'}"
        detail = f" ({same[0].detail})" if len(same) == 1 and same[0].detail else ""
        out += _affected(f"{what}: {who}", same, detail, wide=wide)
    return [*out, ""]


def _affected(head: str, same: Sequence[FleetFault], detail: str, *, wide: bool) -> list[str]:
    """Return a fault with as many names as LINES have room for, so that all kinds of faults are on one screen."""
    shown = len(same) if wide else min(len(same), NAMED)
    while True:
        text = f"{head} {words.listed((fault.name for fault in same), shown)}{detail}"
        fault_lines = terminal.wrapped(text, first="  ", rest="    ")
        if wide or shown == 1 or len(fault_lines) <= LINES:
            return fault_lines
        shown -= 1


def _types(node_views: Sequence[NodeView], types: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return what is free of each type, then what there is: one table on a terminal that has room for it, else two."""
    free, counts, servers = _capacity(node_views, types), _counts(node_views, types), _servers(node_views, types)
    both = []
    for free_row, count_row in zip(free, counts, strict=True):
        both.append([*free_row, *count_row[1:]])
    if terminal.is_terminal() and terminal.fits(both):
        return _headed(both) + servers
    return [*_headed(free), *servers, "", *_headed(counts)]


def _capacity(node_views: Sequence[NodeView], types: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Return the free devices of each type, and how many groups of them are free together."""
    rows = [["TYPE", "MOST ON A NODE", "FREE", *(f"OF {size}" for size in capacity.SIZES)]]
    for kind, nodes in _by_type(node_views):
        row = types[kind]
        cells = [kind, _number(row["largestFree"]), _amount(row["free"], nodes)]
        for size in capacity.SIZES:
            count = "?" if row["free"] is None else row[f"freeGroupsOf{size}"]
            cells.append("-" if count is None else str(count))
        rows.append(cells)
    return rows


def _servers(node_views: Sequence[NodeView], types: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return how many UltraServers, pairs and single nodes of each type are free."""
    lines: list[str] = []
    for kind, nodes in _by_type(node_views):
        free = free_servers(nodes, types[kind])
        if free:
            # A node is counted once: in its UltraServer, or else in its pair, or else alone.
            parts = list(zip(free, ("UltraServer", "pair", "other node"), strict=True))
            text = " and ".join(", ".join(words.count(*part) for part in parts).rsplit(", ", 1))
            lines += terminal.wrapped(f"{kind}: {text} are free")
    return lines


def free_servers(nodes: Sequence[NodeView], row: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how many UltraServers, pairs and single nodes of a type are free; none if it forms no UltraServers.

    `row` is that of the type: none either if it is unknown what is free.
    """
    if row["free"] is None or not any(node.ultraserver for node in nodes):
        return ()
    return capacity.servers(nodes)


def unit(nodes: Iterable[NodeView]) -> str:
    """Return what the numbers of a type count: nodes that are published as a whole are not devices."""
    is_whole = any(device.number is None for node in nodes for device in node.devices)
    return "node" if is_whole else "device"


def _amount(number: int | None, nodes: Sequence[NodeView]) -> str:
    """Return a number with its unit."""
    if number is None:
        return "?"
    return words.count(number, unit(nodes))


def _counts(node_views: Sequence[NodeView], types: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Return how many nodes and devices of each type there are, and in which states."""
    rows = [["TYPE", "NODES", "PUBLISHED", "HELD", "UNHEALTHY", "RESERVED", "PROBLEMS"]]
    for kind, nodes in _by_type(node_views):
        row = types[kind]
        shown = (("notReady", "not Ready"), ("cordoned", "cordoned"), ("silent", "silent"))
        problems = [f"{row[key]} {text}" for key, text in shown if row[key]]
        numbers = [row[key] for key in ("held", "unhealthy", "reserved")]
        published = _amount(row["devices"], nodes)
        rows.append([kind, _number(row["nodes"]), published, *map(_number, numbers), ", ".join(problems)])
    return rows


def _number(value: int | None) -> str:
    if value is None:
        return "?"
    return str(value)


def _headed(rows: Sequence[Sequence[str]], hosts: int | None = None) -> list[str]:
    head, *other_lines = terminal.table(rows, hosts=hosts)
    return [terminal.colored(head, "bold"), *other_lines]


def _groups(
    groups: Mapping[str, list[NodeView]],
    wrong: Mapping[str, Sequence[str]],
    results: Mapping[str, Sequence[TestedView]],
    missing: Collection[str],
    *,
    wide: bool,
) -> list[str]:
    """Return a line for each UltraServer, those with faults first."""
    first = sorted(groups.items(), key=lambda id_and_nodes: id_and_nodes[0] not in wrong)
    rows = []
    for name, nodes in first[: None if wide else 2 * ROWS]:
        shown = [state(node, missing) for node in nodes]
        texts = [f"{shown.count(node_state)} {node_state}" for node_state in dict.fromkeys(shown)]
        parts = [words.listed(texts, 3), *wrong.get(name, ()), *tested.texts(results.get(name, ()))]
        rows.append([name, nodes[0].type, "; ".join(parts)])
    number = min(terminal.across(terminal.table(rows)), 2)
    listed = rows if wide else rows[: number * ROWS]
    more = len(groups) - len(listed)
    return terminal.columns(terminal.table(listed)) + ([f"and {more} more: -o wide"] if more else [])


def _nodes(node_views: Sequence[NodeView], missing: Collection[str]) -> list[str]:
    rows = [["NODE", "TYPE", "FREE", "HELD", "UNHEALTHY", "STATE"]]
    for node in node_views:
        row = _row(node, missing)
        numbers = [_number(row[key]) for key in ("free", "held", "unhealthy")]
        rows.append([node.name, node.type, *numbers, row["state"]])
    return _headed(rows, hosts=0)


def _causes(world: World, pods: Sequence[Wire], *, wide: bool) -> list[str]:
    if not pods and "Pod" in unseen.kinds(world.snapshot):
        return ["", "unknown whether pods wait"]
    if not pods:
        return ["", "no pod waits for Neuron devices"]
    from neuron_dra.ask.why import situations  # only if a pod waits: its rooms and the engine of selectors are large

    out = ["", terminal.colored(f"WAITING ({words.count(len(pods), 'pod')})", "bold")]
    groups = alike(pods)
    shown = groups if wide else groups[:EXPLAINED]
    causes: dict[str, list[str]] = defaultdict(list)
    for same in shown:
        finding = unseen.doubted(situations.waiting(world, same[0])[0], world.snapshot)
        causes[finding.text] += map(_name, same)
    out += _together(causes, "pods wait", wide=wide)
    hidden = len(pods) - sum(map(len, shown))
    return out + ([f"and {words.count(hidden, 'more pod')}: -o wide"] if hidden else [])


def _not_started(stuck_pods: Sequence[StuckPod], *, wide: bool) -> list[str]:
    if not stuck_pods:
        return []
    causes: dict[str, list[str]] = defaultdict(list)
    for stuck_pod in stuck_pods:
        causes[stuck_pod.text].append(stuck_pod.name)
    shown = dict(list(causes.items())[: None if wide else EXPLAINED])
    hidden = len(stuck_pods) - sum(map(len, shown.values()))
    out = ["", terminal.colored(f"NOT STARTED ({words.count(len(stuck_pods), 'pod')})", "bold")]
    out += _together(shown, "pods", wide=wide)
    return out + ([f"and {words.count(hidden, 'more pod')}: -o wide"] if hidden else [])


def _together(causes: Mapping[str, Sequence[str]], several: str, *, wide: bool) -> list[str]:
    """Return each cause once, with the pods that have it."""
    out: list[str] = []
    for text, names in causes.items():
        if len(names) == 1:
            out += terminal.wrapped(f"{names[0]}: {text}", rest="  ")
            continue
        out += terminal.wrapped(f"{len(names)} {several}: {text}", rest="  ")
        out += terminal.wrapped(words.listed(names, len(names) if wide else NAMED), first="  ", rest="  ")
    return out


def alike(pods: Sequence[Wire]) -> list[list[Wire]]:
    """Return pods with equal demands together, which wait for one reason."""
    pods_by_demand: dict[bytes, list[Wire]] = defaultdict(list)
    for pod in pods:
        has_claims = bool((pod.get("status") or {}).get("resourceClaimStatuses"))
        owner = [reference.get("uid") for reference in pod["metadata"].get("ownerReferences") or ()]
        key = msgspec.json.encode((pod["metadata"].get("namespace"), has_claims, owner, pod["spec"]))
        pods_by_demand[key].append(pod)
    return list(pods_by_demand.values())


def _name(pod: Wire) -> str:
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"
