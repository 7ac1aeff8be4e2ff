"""The picture of a fleet as SVG: a block of squares for each node, its name above it, UltraServers as frames. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from neuron_dra.ask.render import words
from neuron_dra.ask.topology.svg import LINE, MARGIN, Canvas
from neuron_dra.ask.world import fleet as fleets
from neuron_dra.ask.world import picture
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import CLOSED, FAULT, FREE, PLACES, Cell, Legend, Picture

STATES: Final = {FREE: "free", CLOSED: "free, on a node that takes no pods", FAULT: "unhealthy or not published"}
GONE: Final = "gone"
DOWN: Final = "down"
"""States of nodes, in the legend."""
NAMED: Final = 38
"""The width of the sample of a name in the legend."""
SIGN: Final = 6.8
"""The width of a character of the legend."""
APART: Final = 20
"""From the end of one text of the legend to the next sample."""
HELD: Final = "#0072B2"
RESERVED: Final = "#E69F00"
STEP: Final = 13
"""From one device to the next."""
NAME: Final = 14
"""The height of the line with a node's name."""
GAP: Final = 14
WIDTH: Final = 1000
WIDE: Final = 1500
MANY_NODES: Final = 100
"""From this number of nodes on, the picture is WIDE."""
LETTER: Final = 5.8
"""The width of a character of a node's name."""
FRAMED: Final = 90
"""The least width of a node in a frame, so that the frame has room for what is wrong."""
LONGEST: Final = 20
"""Characters of a name that are written; the tooltip has the others."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What is placed in rows: one node, or an UltraServer in its frame."""

    name: str
    nodes: tuple[Picture, ...]
    missing: Mapping[int, str]
    framed: bool

    @property
    def size(self) -> int:
        """The number of places for nodes."""
        return len(self.nodes) + len(self.missing)


def fleet(views: Sequence[NodeView], missing: Mapping[str, Mapping[int, str]] | None = None) -> str:
    """Return the picture; `missing` has the nodes that UltraServers lack, by id and position."""
    canvas = Canvas()
    title = f"{words.count(len(views), 'Neuron node')}"
    canvas.text(MARGIN, MARGIN + 14, title, "title")
    limit = WIDE if len(views) > MANY_NODES else WIDTH
    legend = Legend()
    pictures = [picture.draw(view, legend) for view in views]
    missing_by_ultraserver = missing or {}
    y = _states(canvas, pictures, MARGIN + 44.0, limit, any_gone=any(missing_by_ultraserver.values())) + LINE
    for kind in sorted({view.type for view in views}):
        pictures_of_type = [node_picture for node_picture in pictures if node_picture.node.type == kind]
        tiles = sorted(_tiles(pictures_of_type, missing_by_ultraserver), key=lambda tile: not _wrong(tile))
        canvas.text(MARGIN, y, "; ".join(filter(None, [_heading(kind, pictures_of_type), _broken(tiles)])))
        y = _rows(canvas, tiles, y + 14, limit) + 30
    return canvas.done(title)


def _broken(tiles: Sequence[Tile]) -> str:
    """Return how many UltraServers have faults; these are drawn first."""
    wrong = servers = 0
    for tile in tiles:
        servers += tile.framed
        wrong += bool(_wrong(tile))
    if not wrong:
        return ""
    return f"{wrong} of {words.count(servers, 'UltraServer')} with faults"


def _heading(kind: str, pictures: Sequence[Picture]) -> str:
    """Return the type with its nodes, and what of it is free, in one unit."""
    nodes = words.count(len(pictures), "node")
    free = sum(node_picture.node.free for node_picture in pictures)
    total = sum(len(node_picture.node.devices) for node_picture in pictures)
    published = [node_picture.node for node_picture in pictures if node_picture.node.devices]
    if not published:
        return f"{kind}: {nodes}, which publish nothing"
    if all(picture.is_whole(node) for node in published):
        return f"{kind}: {nodes}, {free} of them free"
    return f"{kind}: {nodes}, {free} of {words.count(total, 'device')} free"


def _tiles(pictures: Sequence[Picture], missing: Mapping[str, Mapping[int, str]]) -> Iterator[Tile]:
    """Yield the UltraServers, then the other nodes."""
    by_name = {node_picture.node.name: node_picture for node_picture in pictures}
    for name, nodes in fleets.ultraservers([node_picture.node for node_picture in pictures]).items():
        yield Tile(name, tuple([by_name[node.name] for node in nodes]), missing.get(name, {}), framed=True)
    for node_picture in pictures:
        if not node_picture.node.ultraserver:
            yield Tile(node_picture.node.name, (node_picture,), {}, framed=False)


def _rows(canvas: Canvas, tiles: Sequence[Tile], top: float, limit: float) -> float:
    """Draw the tiles in rows that are filled from left to right, and return where they end."""
    width, rows = 0.0, 0
    for tile in tiles:
        if tile.framed:
            width = max(width, FRAMED)
        for node_picture in tile.nodes:
            width = max(width, node_picture.columns * STEP, LETTER * len(_short(node_picture.node.name)))
            rows = max(rows, node_picture.rows)
    height = NAME + rows * STEP
    x, y, tallest = float(MARGIN), top, 0.0
    for tile in tiles:
        columns = _columns(tile)
        wide = columns * (width + GAP) + (GAP if tile.framed else 0)
        high = -(-tile.size // columns) * (height + GAP) + (2 * NAME + GAP if tile.framed else 0)
        if x > MARGIN and x + wide > limit:
            x, y, tallest = float(MARGIN), y + tallest, 0.0
        _tile(canvas, tile, x, y, width, height)
        x, tallest = x + wide, max(tallest, high)
    return y + tallest


def _columns(tile: Tile) -> int:
    return picture.columns(tile.size) if tile.framed else 1


def _tile(canvas: Canvas, tile: Tile, x: float, y: float, width: float, height: float) -> None:
    left, top = x, y
    columns = _columns(tile)
    if tile.framed:
        left, top = x + GAP / 2, y + 2 * NAME + GAP / 2
        rows, wide = -(-tile.size // columns), columns * (width + GAP)
        texts = []
        for text in (f"UltraServer {tile.name}", _note(tile)):
            if text:
                texts.append(text)
        title = ": ".join(texts)
        canvas.box(x, y, wide + 2, rows * (height + GAP) + 2 * NAME + 2, "node", title)
        canvas.text(left, y + NAME, _within(_short(tile.name), wide), "tiny")
        canvas.text(left, y + 2 * NAME, _within(_note(tile), wide), "tiny alert" if _wrong(tile) else "tiny")
    views = [node_picture.node for node_picture in tile.nodes]
    square = tile.framed and picture.square(views)
    if tile.framed:
        order = sorted([*(view.position for view in views), *tile.missing])
    else:
        order = [views[0].position]
    for number, position in enumerate(order):
        if square:
            column, row = PLACES[position]
        else:
            column, row = (number % columns, number // columns)
        at = left + column * (width + GAP), top + row * (height + GAP)
        matching = (candidate for candidate in tile.nodes if not tile.framed or candidate.node.position == position)
        node_picture = next(matching, None)
        if node_picture is not None:
            _block(canvas, node_picture, *at)
        else:
            _gone(canvas, position, tile.missing[position], *at, width, height)


def _wrong(tile: Tile) -> list[str]:
    faults = [f"{len(tile.missing)} missing"] if tile.missing else []
    for way in ("vertical", "horizontal"):
        if any(getattr(node_picture.node, way) is False for node_picture in tile.nodes):
            faults.append(f"{way} links down")
    return faults


def _note(tile: Tile) -> str:
    """Return what is wrong with an UltraServer, which workloads its nodes are reserved for, or that it is a spare."""
    workloads = {node_picture.node.tag.workload for node_picture in tile.nodes if node_picture.node.tag is not None}
    spare = ["spare"] if any(node_picture.node.spare for node_picture in tile.nodes) else []
    return ", ".join([*_wrong(tile), *(f"for {workload}" for workload in sorted(workloads)), *spare])


def _within(text: str, width: float) -> str:
    most = int(width / LETTER)
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"


def _short(name: str) -> str:
    """Return a name without its domain, cut in its middle if it is still long: both ends tell nodes apart."""
    first = picture.short(name)
    half = LONGEST // 2
    if len(first) <= LONGEST:
        return first
    return f"{first[: half - 1]}…{first[-half:]}"


def _gone(canvas: Canvas, position: int, name: str, x: float, y: float, width: float, height: float) -> None:
    canvas.text(x, y + 10, _short(name) or f"node {position}", "tiny")
    canvas.box(x, y + NAME, width - GAP / 2, height - NAME, "gone", f"{name or f'node {position}'} is missing")
    canvas.text(
        x + (width - GAP / 2) / 2, y + NAME + (height - NAME) / 2 + 4, "missing", "tiny", ' text-anchor="middle"'
    )


def _block(canvas: Canvas, node_picture: Picture, left: float, top: float) -> None:
    title = f"{node_picture.node.name}: {picture.summary(node_picture.node)}"
    canvas.parts.append(f"<g><title>{escape(title)}</title>")
    canvas.text(left, top + 10, _short(node_picture.node.name), "tiny alert" if _is_down(node_picture.node) else "tiny")
    for cell in node_picture.cells:
        _state(canvas, _fill(node_picture, cell), left + cell.x * STEP, top + NAME + cell.y * STEP, STEP - 2)
    canvas.parts.append("</g>")


def _is_down(node: NodeView) -> bool:
    """Return True for a node that somebody has to look at, rather than one that was cordoned."""
    return not node.ready or not node.devices


def _fill(node_picture: Picture, cell: Cell) -> str:
    """Return the state of a device: a mark of STATES, # for held, R for reserved."""
    if cell.mark in STATES:
        return cell.mark
    if cell.title.startswith("reserved"):
        return "R"
    return "#"


def _state(canvas: Canvas, state: str, x: float, y: float, size: float) -> None:
    """Draw a small device; a held one is filled, a reserved one has a dot, so that color is not needed."""
    style = {FREE: "free", CLOSED: "closed", FAULT: "fault"}.get(state, "free")
    color = {"#": HELD, "R": RESERVED}.get(state)
    canvas.box(x, y, size, size, f"cell {style}", extra=f' style="fill: {color}"' if color else "")
    if state == "R":
        canvas.parts.append(f'<circle cx="{x + size / 2:g}" cy="{y + size / 2:g}" r="{size / 5:g}" fill="#111"/>')


def _states(canvas: Canvas, pictures: Sequence[Picture], y: float, limit: float, *, any_gone: bool) -> float:
    """Draw what the squares mean, those that occur, side by side, and return where this ends."""
    x = float(MARGIN)
    for state, text in _meanings(pictures, any_gone=any_gone):
        sample = NAMED if state == DOWN else 24
        wide = sample + SIGN * len(text)
        if x > MARGIN and x + wide > limit:
            x, y = float(MARGIN), y + LINE
        if state == GONE:
            canvas.box(x, y - 11, 14, 14, "gone")
        elif state == DOWN:
            canvas.text(x, y, "name", "tiny alert")
        else:
            _state(canvas, state, x, y - 11, 14)
        canvas.text(x + sample, y, text)
        x += wide + APART
    return y + LINE / 2


def _meanings(pictures: Sequence[Picture], *, any_gone: bool) -> Iterator[tuple[str, str]]:
    """Yield the states that occur, and what they mean."""
    if any_gone:
        yield GONE, "missing in its UltraServer"
    if any(_is_down(node_picture.node) for node_picture in pictures):
        yield DOWN, "of a node that is not Ready, or publishes nothing"
    used = set()
    for node_picture in pictures:
        for cell in node_picture.cells:
            used.add(_fill(node_picture, cell))
    for state, text in (*STATES.items(), ("#", "held"), ("R", "reserved for a workload")):
        if state in used:
            yield state, text
