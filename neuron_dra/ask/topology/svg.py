"""Pictures of nodes and UltraServers as SVG: real text, light and dark, letters beside colors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from neuron_dra.ask.world import picture
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import CLOSED, FAULT, FREE, MANY, NOTHING, PAIRS, PLACES, Cell, Legend, Picture

MARGIN: Final = 24
LINE: Final = 20
COLORS: Final = (  # Okabe and Ito's, which color-blind readers can tell apart, each with its text color
    ("#56B4E9", "#111"),
    ("#E69F00", "#111"),
    ("#009E73", "#111"),
    ("#CC79A7", "#111"),
    ("#F0E442", "#111"),
    ("#0072B2", "#fff"),
    ("#D55E00", "#111"),
)
STYLE: Final = """\
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b1f24; }
.title { font-size: 18px; font-weight: 600; }
.small { font-size: 13px; }
.number { font-size: 12px; text-anchor: middle; }
.mark { font-size: 15px; font-weight: 700; text-anchor: middle; }
.paper { fill: #ffffff; }
.link { stroke: #6e7781; stroke-width: 2.5; fill: none; }
.up { stroke: #1b1f24; stroke-width: 4; }
.down { stroke: #b3261e; stroke-width: 4; stroke-dasharray: 3 6; }
.unknown { stroke: #6e7781; stroke-width: 4; stroke-dasharray: 1 7; }
.cell { stroke: #6e7781; stroke-width: 1.5; }
.free { fill: #eef1f4; }
.closed { fill: #ffffff; stroke-dasharray: 3 3; }
.fault { fill: url(#hatch); stroke: #b3261e; stroke-width: 2.5; }
.stripe { stroke: #b3261e; stroke-width: 2.5; }
.plate { fill: #ffffff; stroke: none; }
.node { fill: none; stroke: #6e7781; stroke-width: 1; }
.gone { fill: none; stroke: #b3261e; stroke-width: 2; stroke-dasharray: 6 5; }
.tiny { font-size: 10px; }
.alert { fill: #b3261e; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .paper, .closed, .plate { fill: #0d1117; }
  .link, .unknown, .cell, .node { stroke: #9198a1; }
  .up { stroke: #e6edf3; }
  .free { fill: #21262d; }
  .alert { fill: #ff8a80; }
  .down, .fault, .stripe, .gone { stroke: #ff8a80; }
}
"""


SCALE: Final = {"title": 1.3, "tiny": 0.75, "tiny alert": 0.75, "number": 0.5}
"""The width of a character by style, in eighths of a rem; centered text reaches half as far."""


@dataclass(slots=True)
class Canvas:
    """Collects elements, and the size that they need."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def text(self, x: float, y: float, text: str, style: str = "small", extra: str = "") -> None:
        """Add a line of text; an empty one adds nothing."""
        if not text:
            return
        self.parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}"{extra}>{escape(text)}</text>')
        self._reach(x + 8 * len(text) * SCALE.get(style, 0.95), y)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "link") -> None:
        """Add a link."""
        self.parts.append(f'<line class="{style}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>')
        self._reach(max(x1, x2), max(y1, y2))

    def box(
        self, x: float, y: float, width: float, height: float, style: str, title: str = "", extra: str = ""
    ) -> None:
        """Add a rectangle, with a tooltip."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{min(8, width / 5):g}"'
        shape = f'<rect class="{style}" {place}{extra}'
        self.parts.append(f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>")
        self._reach(x + width, y + height)

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def done(self, title: str) -> str:
        """Return the picture."""
        width, height = self.width + MARGIN, self.height + MARGIN
        pattern = (
            '<pattern id="hatch" width="8" height="8" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">'
            '<rect class="plate" width="8" height="8"/><line class="stripe" x1="0" y1="0" x2="0" y2="8"/></pattern>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
                f'height="{height:g}" role="img" aria-label="{escape(title, quote=True)}">',
                f"<title>{escape(title)}</title>",
                f"<style>\n{STYLE}</style>",
                f"<defs>{pattern}</defs>",
                '<rect class="paper" width="100%" height="100%"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def node(view: NodeView) -> str:
    """Return the picture of one node."""
    legend, canvas = Legend(), Canvas()
    node_picture = picture.draw(view, legend)
    title = f"node {view.name}"
    canvas.text(MARGIN, MARGIN + 14, title, "title")
    canvas.text(MARGIN, MARGIN + 38, picture.summary(view))
    _devices(canvas, node_picture, MARGIN + 24, MARGIN + 76, 84, 48)
    _legend(canvas, [node_picture], legend)
    return canvas.done(title)


def ultraserver(name: str, views: Sequence[NodeView], missing: Mapping[int, str] = NOTHING) -> str:
    """Return the picture of an UltraServer: its nodes, those that are missing, and the links between them."""
    legend, canvas = Legend(), Canvas()
    pictures = [picture.draw(view, legend) for view in views]
    title = f"UltraServer {name}"
    canvas.text(MARGIN, MARGIN + 14, title, "title")
    of = f" of {len(views) + len(missing)}" if missing else ""
    canvas.text(MARGIN, MARGIN + 38, f"{views[0].type}, {len(views)}{of} nodes")
    square, step, top = picture.square(views), 46, MARGIN + 64
    spacing = 4 * step + 110
    places: dict[int, tuple[float, float]] = {}
    for number, position in enumerate(sorted([*(view.position for view in views), *missing])):
        column, row = PLACES[position] if square else (number % 4, number // 4)
        places[position] = (MARGIN + column * spacing, top + row * spacing)
    size = 4 * step + 16
    if square:
        for way, pairs in PAIRS.items():
            for pair in pairs:
                if set(pair) <= set(places) - set(missing):
                    _between(canvas, views, way, pair, places, size)
    for node_picture in pictures:
        x, y = places[node_picture.node.position]
        below = square and y > top  # the vertical links come from above
        name = picture.short(node_picture.node.name)
        canvas.text(x, y + size + 34 if below else y + 6, f"{name} (node {node_picture.node.position})")
        canvas.box(x - 8, y + 14, size, size, "node")
        _devices(canvas, node_picture, x + 6, y + 26, step, 32, links=False)
    for position, node_name in missing.items():
        x, y = places[position]
        below = square and y > top
        canvas.text(x, y + size + 34 if below else y + 6, f"{picture.short(node_name)} (node {position})".lstrip())
        canvas.box(x - 8, y + 14, size, size, "gone", f"node {position} is missing")
        canvas.text(x - 8 + size / 2, y + 14 + size / 2, "missing", "number")
    if not square:
        y = max(place[1] for place in places.values()) + size + 34
        canvas.line(MARGIN, y, MARGIN + min(len(places), 4) * spacing - 110, y, "up")
        canvas.text(MARGIN, y + 22, "switches connect all devices of all nodes")
    _legend(canvas, pictures, legend)
    return canvas.done(title)


def _between(
    canvas: Canvas,
    views: Sequence[NodeView],
    way: str,
    pair: tuple[int, int],
    places: dict[int, tuple[float, float]],
    size: float,
) -> None:
    """Draw the link between two nodes of a Trn2 UltraServer."""
    state = picture.link(views, way, pair)
    style = {True: "up", False: "down", None: "unknown"}[state]
    (x1, y1), (x2, y2) = (places[position] for position in pair)
    word = {True: "", False: "down", None: "unknown"}[state]
    if way == "vertical":
        middle = x1 - 8 + size / 2
        canvas.line(middle, y1 + 14 + size, middle, y2 + 14, style)
        canvas.text(middle + 10, y1 + size + 34, way)
        canvas.text(middle + 10, y1 + size + 52, word)
    else:
        middle = y1 + 14 + size / 2
        canvas.line(x1 - 8 + size, middle, x2 - 8, middle, style)
        canvas.text(x1 + size + 6, middle - 10, way)
        canvas.text(x1 + size + 6, middle + 20, word)


def _devices(
    canvas: Canvas, node_picture: Picture, left: float, top: float, step: float, size: float, *, links: bool = True
) -> None:
    centers = {}
    for cell in node_picture.cells:
        centers[cell.number] = (left + cell.x * step + size / 2, top + cell.y * step + size / 2)
    if links:
        for device, linked_device in node_picture.links:
            _link(canvas, node_picture, centers[device], centers[linked_device], step, size)
    for cell in node_picture.cells:
        x, y = left + cell.x * step, top + cell.y * step
        _cell(canvas, cell, x, y, size)
    if node_picture.switched and links:
        y = top + node_picture.rows * step - step + size + 18
        canvas.line(left, y, left + (node_picture.columns - 1) * step + size, y, "up")
        canvas.text(left, y + 20, "a switch connects all devices")


def _link(
    canvas: Canvas,
    node_picture: Picture,
    first_center: tuple[float, float],
    second_center: tuple[float, float],
    step: float,
    size: float,
) -> None:
    """Draw one link; one that wraps around is two stubs."""
    (x1, y1), (x2, y2) = first_center, second_center
    if abs(x1 - x2) + abs(y1 - y2) <= step * 1.01 or node_picture.rows == 2:
        canvas.line(x1, y1, x2, y2)
        return
    across = 1 if y1 == y2 else 0
    reach = size / 2 + 14
    for (x, y), sign in ((first_center, -1), (second_center, 1)):
        canvas.line(x, y, x + sign * reach * across, y + sign * reach * (1 - across))


def _cell(canvas: Canvas, cell: Cell, x: float, y: float, size: float) -> None:
    title = f"device {cell.number}: {cell.title}"
    color = _color(cell.mark)
    style = {FREE: "free", CLOSED: "closed", FAULT: "fault"}.get(cell.mark, "free")
    canvas.box(x, y, size, size, f"cell {style}", title, f' style="fill: {color[0]}"' if color else "")
    ink = f' style="fill: {color[1]}"' if color else ""
    if size < 20:
        return
    if cell.mark == FREE or size < 40:
        canvas.text(x + size / 2, y + size / 2 + 5, cell.mark if size < 40 else str(cell.number), "number", ink)
    else:
        if cell.mark == FAULT:  # the stripes stay around the text
            canvas.box(x + size / 4, y + 5, size / 2, size - 10, "plate")
        canvas.text(x + size / 2, y + size / 2, cell.mark, "mark", ink)
        canvas.text(x + size / 2, y + size - 8, str(cell.number), "number", ink)


def _color(mark: str) -> tuple[str, str] | None:
    place = picture.LETTERS.find(mark)
    if place >= 0:
        return COLORS[place % len(COLORS)]
    if mark == MANY:
        return ("#8b949e", "#111")
    return None


def _legend(canvas: Canvas, pictures: Sequence[Picture], legend: Legend) -> None:
    """Draw what letters and fills mean, below the picture."""
    cells: list[Cell] = []
    for node_picture in pictures:
        cells += node_picture.cells
    rows = []
    for holder, letter in legend.letters.items():
        rows.append((letter, f"{holder}: {picture.amount(pictures, letter)}"))
    reasons = sorted({cell.title for cell in cells if cell.mark == FAULT})
    for mark, text in (
        (FREE, "free"),
        (CLOSED, "free, on a node that takes no pods"),
        (FAULT, "; ".join(reasons[:3])),
        (MANY, "several"),
    ):
        number = picture.amount(pictures, mark)
        rows += [(mark, f"{text}: {number}")] if number else []
    y = canvas.height + 30
    for mark, text in rows:
        _cell(canvas, Cell(0, 0, 0, mark, text), MARGIN, y - 14, 18)
        canvas.text(MARGIN + 9, y, mark, "number", f' style="fill: {color[1]}"' if (color := _color(mark)) else "")
        canvas.text(MARGIN + 30, y, text)
        y += LINE + 4
