"""Pictures of nodes, UltraServers and fleets in characters: letters tell the holders apart, colors only help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.topology import matrix
from neuron_dra.ask.world import interfaces, picture
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.interfaces import InterfaceView
from neuron_dra.ask.world.picture import CLOSED, FAULT, FREE, MANY, NOTHING, PAIRS, Legend, Picture
from neuron_dra.ask.world.world import World

_COLORS: Final = ("cyan", "green", "yellow", "magenta", "blue")
_ACROSS: Final = {True: "────", False: "╌╳╌╌", None: " ?? "}
_DOWN: Final = {True: "│", False: "╳", None: "?"}
PODS: Final = 10
"""Pods of a matrix on one screen; more need -o wide."""


def node(world: World, view: NodeView, *, wide: bool = False) -> list[str]:
    """Return the picture of one node, with legend and matrix."""
    legend = Legend()
    node_picture = picture.draw(view, legend)
    out = terminal.wrapped(f"node {view.name}: {picture.summary(view)}", rest="  ")
    out += ["", *(f"  {line}" for line in _grid(node_picture)), ""]
    for text in picture.free_groups(view):
        out += [f"  {line}" for line in terminal.wrapped(text)]
    out += _legend([node_picture], legend)
    return out + _interfaces(world, view) + _matrix(world, [view], wide=wide)


def _interfaces(world: World, view: NodeView) -> list[str]:
    """Return a line for each EFA interface of a node; none if it publishes none."""
    if contested := interfaces.why_contested(world, view.name):
        return ["", *terminal.wrapped(contested, first="  ", rest="    ")]
    node_interfaces = interfaces.of_node(world, view.name)
    if not node_interfaces:
        return []
    closed = picture.why_closed(view)
    free = 0 if closed else sum(interface.free for interface in node_interfaces)
    parts = [f"{free} of {words.count(len(node_interfaces), 'EFA interface')} free"]
    states = {
        "held": sum(interface.holder is not None for interface in node_interfaces),
        "unhealthy": sum(bool(interface.faults) for interface in node_interfaces),
    }
    parts += [f"{number} {text}" for text, number in states.items() if number]
    if interfaces.foreign_slices(world, view.name):
        parts.append("published by DRANET")
    rows = [["INTERFACE", "RDMA NAME", "NEXT TO", "STATE"]]
    for interface in node_interfaces:
        next_to = interfaces.devices_next_to([interface]) or "-"
        state = _interface_state(interface) or closed or "free"
        rows.append([interface.name, interface.rdma_name or "-", next_to, state])
    return ["", *terminal.wrapped(", ".join(parts), first="  ", rest="    "), *terminal.table(rows, indent="  ")]


def _interface_state(interface: InterfaceView) -> str:
    texts = [interface.faults]
    if interface.holder is not None:
        texts.insert(0, f"held by {interface.holder}")
    return ", ".join(text for text in texts if text)


def ultraserver(
    world: World, name: str, views: Sequence[NodeView], missing: Mapping[int, str] = NOTHING, *, wide: bool = False
) -> list[str]:
    """Return the picture of an UltraServer; `missing` has the nodes that it lacks, by position."""
    legend = Legend()
    pictures = {view.position: picture.draw(view, legend) for view in views}
    of = f" of {len(views) + len(missing)}" if missing else ""
    out = terminal.wrapped(f"UltraServer {name}: {views[0].type}, {len(views)}{of} nodes", rest="  ")
    out.append("")
    if picture.square(views):
        out += _square(views, pictures, missing)
    else:
        out += ["  ══ connected by switches ══", ""]
        for node_picture in pictures.values():
            out.append(f"  {node_picture.node.name} (node {node_picture.node.position})")
            out += [*(f"    {line}" for line in _grid(node_picture)), ""]
    if missing and not picture.square(views):
        for position, node_name in missing.items():
            out.append(f"  {node_name} (node {position}): missing".replace("   (", "  ("))
    out += _links(views)
    out += _legend(list(pictures.values()), legend)
    return out + _matrix(world, views, wide=wide)


def _links(views: Sequence[NodeView]) -> list[str]:
    """Return a line for each kind of link of an UltraServer that is down or unknown."""
    out = []
    for way in PAIRS:
        for state, text in ((False, "down"), (None, "unknown")):
            names = [view.name for view in views if getattr(view, way) is state]
            if names:
                out += terminal.wrapped(f"{way} links {text} on {', '.join(names)}", first="  ", rest="    ")
    return out


def _square(views: Sequence[NodeView], pictures: dict[int, Picture], missing: Mapping[int, str]) -> list[str]:
    longest = max(len(view.name) for view in views)
    full = 2 * longest + len("    (node 0)") * 2 <= terminal.width()
    blocks = {position: _block(node_picture, full=full) for position, node_picture in pictures.items()}
    width = 0
    for block in blocks.values():
        width = max(width, *map(len, block))
    upper, lower = PAIRS["horizontal"]
    out: list[str] = []
    for pair in (upper, lower):
        link = _ACROSS[picture.link(views, "horizontal", pair)]
        left, right = (blocks.get(position) or _gone(position, missing.get(position, "")) for position in pair)
        height = max(len(left), len(right))
        for row in range(height):
            between = link if row == height // 2 else " " * len(link)
            line = f"  {_cell(left, row, width)} {between} {_cell(right, row, width)}"
            out.append(line.rstrip())
        if pair == upper:
            marks = []
            for column in PAIRS["vertical"]:
                marks.append(_DOWN[picture.link(views, "vertical", column)])
            out.append(f"  {marks[0].center(width)}      {marks[1].center(width)}".rstrip())
    return [*out, ""]


def _gone(position: int, name: str) -> list[str]:
    """Return what stands for a node that is missing."""
    return [f"{name} (node {position})".lstrip(), "missing"]


def _cell(block: Sequence[str], row: int, width: int) -> str:
    """Return a line of a block, as wide as all blocks; blank below its end."""
    if row < len(block):
        return block[row].ljust(width)
    return " " * width


def _block(node_picture: Picture, *, full: bool) -> list[str]:
    """Return a small picture: a line for each row of devices, with their marks only; the name may lack its domain."""
    marks = []
    for row in range(node_picture.rows):
        marks.append([cell.mark for cell in node_picture.cells if cell.y == row])
    name = node_picture.node.name if full else picture.short(node_picture.node.name)
    head = f"{name} (node {node_picture.node.position})"
    return [head, *(" ".join(row).center(len(head)).rstrip() for row in marks)]


def _grid(node_picture: Picture) -> list[str]:
    shape = node_picture.node.spec.shape if node_picture.node.spec else "none"
    cells = {}
    for cell in node_picture.cells:
        cells[(cell.x, cell.y)] = _styled(cell.mark, f"{cell.number:>2} {cell.mark}")
    rows = []
    for y in range(node_picture.rows):
        rows.append([cells[x, y] for x in range(node_picture.columns) if (x, y) in cells])
    if shape == "torus" and node_picture.rows == 4:
        upright = "   │    " * 4
        lines = [upright.rstrip()]
        for row in rows:
            lines += [f"─{'─── '.join(row)}─── ".replace("─── ", "───"), upright.rstrip()]
        return [*lines, "rows and columns wrap around"]
    if shape == "ring" and node_picture.rows == 2:
        return [f"╭─{'───'.join(rows[0])}─╮", f"╰─{'───'.join(rows[1])}─╯"]
    if node_picture.switched:
        wide = max(len(row) for row in rows) * 7 - 3
        return [*(("   ".join(row)) for row in rows), "═" * wide, "a switch connects all devices"]
    return ["───".join(row) if shape == "line" else "   ".join(row) for row in rows]


def _styled(mark: str, text: str) -> str:
    if mark == FAULT:
        return terminal.colored(text, "red")
    if mark in (FREE, CLOSED):
        return terminal.colored(text, "dim")
    place = picture.LETTERS.find(mark)
    if place >= 0:
        return terminal.colored(text, _COLORS[place % len(_COLORS)])
    return text


def _legend(pictures: Iterable[Picture], legend: Legend) -> list[str]:
    """Return what the marks mean: holders with the number of their devices, faults with their reasons."""
    drawn = list(pictures)
    cells = []
    for node_picture in drawn:
        for cell in node_picture.cells:
            cells.append((node_picture.node.name, cell))
    out = []
    for holder, letter in legend.letters.items():
        out += terminal.wrapped(f"{letter}  {holder}, {picture.amount(drawn, letter)}", first="  ", rest="     ")
    for mark, text in ((FREE, "free"), (CLOSED, "free, on a node that takes no pods")):
        number = picture.amount(drawn, mark)
        if number:
            out.append(f"  {mark}  {text}, {number}")
    for mark in (FAULT, MANY):
        reasons: dict[str, list[str]] = {}
        for name, cell in cells:
            if cell.mark == mark:
                reasons.setdefault(cell.title, []).append(f"{name}/{cell.number}")
        for reason, where in list(reasons.items())[:6]:
            numbers = ", ".join(where[:4])
            if len(where) > 4:
                numbers += f" and {len(where) - 4} more"
            out += terminal.wrapped(f"{mark}  {reason}: {numbers}", first="  ", rest="     ")
    return out


def _matrix(world: World, views: Sequence[NodeView], *, wide: bool) -> list[str]:
    rows = matrix.matrix(world, views)
    if not rows:
        return []
    if len(rows) - 1 > PODS and not wide:
        return ["", f"  {len(rows) - 1} pods; -o wide prints the matrix of their links"]
    used: set[str] = set()
    for row in rows[1:]:
        used.update(row[1:])
    out = ["", *terminal.table(rows, indent="  "), ""]
    for name in matrix.MEANINGS:
        if name not in used:
            continue
        out += terminal.wrapped(f"{name:<3} {matrix.MEANINGS[name]}", first="  ", rest="      ")
    return out


def fleet(views: Sequence[NodeView]) -> list[str]:
    """Return a line for each node: one mark for each device."""
    out: list[str] = []
    for kind in sorted({view.type for view in views}):
        of_kind = [view for view in views if view.type == kind]
        rows = []
        for view in of_kind:
            node_picture = picture.draw(view, Legend())
            marks = "".join(_plain(cell.mark) for cell in node_picture.cells)
            rows.append([view.name, marks, _in_short(view)])
        out.append(terminal.colored(f"{kind}: {words.count(len(rows), 'node')}", "bold"))
        out += terminal.columns(terminal.table(rows, indent="  ", hosts=0))
    marks = f"{FREE} free  # held or reserved  {FAULT} unhealthy or not published  {CLOSED} node takes no pods"
    return [*out, "", marks]


def _plain(mark: str) -> str:
    if mark in (FREE, FAULT, CLOSED):
        return mark
    return "#"


def _in_short(view: NodeView) -> str:
    if view.tag is not None:
        return f"reserved for {view.tag.workload}"
    if not view.ready:
        return "not Ready"
    if not view.schedulable:
        return "cordoned"
    return "spare" if view.spare else ""
