"""What a picture of nodes shows: a place and a mark for each device, the links, and a legend. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from neuron_dra.ask.render import words
from neuron_dra.ask.world.fleet import DeviceView, NodeView
from neuron_dra.core.catalogue import Platform

LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
NOTHING: Final[Mapping[int, str]] = {}
"""The nodes that an UltraServer lacks, if it lacks none."""
FREE: Final = "·"
FAULT: Final = "!"
MANY: Final = "+"
"""The mark of holders for which no letter is left, and of devices with several holders."""
CLOSED: Final = "-"
"""The mark of devices that no pod can get: their node is cordoned, not Ready, or publishes nothing."""
HELD: Final = "#"
RESERVED: Final = "R"
"""The marks of a small picture, which does not show by whom."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A Neuron device at a place of the grid."""

    number: int
    x: int
    y: int
    mark: str
    title: str


@dataclass(slots=True)
class Legend:
    """The letters of the holders, in the order in which they are met; several pictures can share one."""

    letters: dict[str, str] = field(default_factory=dict)

    def letter(self, holder: str) -> str:
        """Return the letter of a holder."""
        if holder not in self.letters:
            if len(self.letters) < len(LETTERS):
                self.letters[holder] = LETTERS[len(self.letters)]
            else:
                self.letters[holder] = MANY
        return self.letters[holder]


@dataclass(frozen=True, slots=True)
class Picture:
    """A node's devices on a grid. `links` are pairs of device numbers; with `switched`, all are connected."""

    node: NodeView
    columns: int
    rows: int
    cells: tuple[Cell, ...]
    links: tuple[tuple[int, int], ...]
    switched: bool


def draw(node: NodeView, legend: Legend) -> Picture:
    """Return the picture of a node."""
    spec = node.spec
    whole = next((device for device in node.devices if device.number is None), None)
    by_number = {device.number: device for device in node.devices if device.number is not None}
    number = spec.device_count if spec else len(by_number)
    places, columns = _places(spec.shape if spec else "none", number)
    cells = []
    for device_number, (x, y) in enumerate(places):
        mark, title = _mark(node, by_number.get(device_number, whole), legend)
        cells.append(Cell(device_number, x, y, mark, title))
    switched = spec is not None and spec.shape == "switch"
    links = () if spec is None or switched else _links(spec.links)
    rows = max((y for _, y in places), default=0) + 1
    return Picture(node, columns, rows, tuple(cells), links, switched)


def _places(shape: str, number: int) -> tuple[list[tuple[int, int]], int]:
    """Return the place of each device, and the number of columns."""
    if number == 16 and shape in ("torus", "switch"):
        return [(index % 4, index // 4) for index in range(number)], 4
    if shape == "ring" and number > 3:
        half = (number + 1) // 2
        return [(index, 0) if index < half else (number - 1 - index, 1) for index in range(number)], half
    return [(index, 0) for index in range(number)], number


@cache  # there are few types, and thousands of nodes
def _links(neighbors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, int], ...]:
    links = set()
    for device_number, neighbor_numbers in enumerate(neighbors):
        for neighbor in neighbor_numbers:
            links.add((min(device_number, neighbor), max(device_number, neighbor)))
    return tuple(sorted(links))


def _mark(node: NodeView, device: DeviceView | None, legend: Legend) -> tuple[str, str]:
    """Return mark and words for a device."""
    if device is None:
        return FAULT, "not published"
    held_by = "held by " + words.listed(map(str, device.holders))
    if device.faults:  # a fault is what a reader looks for, whoever holds the device
        return FAULT, f"{device.faults}, {held_by}" if device.holders else device.faults
    if len(device.holders) > 1:
        return MANY, held_by
    if device.holders:
        return legend.letter(str(device.holders[0])), held_by
    if node.tag is not None:
        return legend.letter(f"workload {node.tag.workload}"), f"reserved for workload {node.tag.workload}"
    if why := why_closed(node):
        return CLOSED, why
    return FREE, "free"


def why_closed(node: NodeView) -> str:
    """Return why no pod can get a free device of a node; empty if pods can."""
    if not node.ready:
        return "node not Ready"
    return "" if node.schedulable else "node cordoned"


_SHAPES: Final = {"torus": "4 x 4 torus", "switch": "all connected by a switch"}


def summary(node: NodeView) -> str:
    """Return a node's type and counts in one line."""
    spec = node.spec
    parts = [node.type or "unknown type"]
    if spec is not None and spec.shape != "none":
        parts.append(_SHAPES.get(spec.shape, spec.shape))
    if not node.devices:
        parts.append("publishes nothing")
    elif is_whole(node):
        parts.append("published as a whole")
        # Its state is no number of devices.
        states = {"free": node.free, "held": node.held, "unhealthy": node.faulty}
        parts += [text for text, number in states.items() if number]
    else:
        parts.append(f"{node.free} of {words.count(len(node.devices), 'device')} free")
        states = {"held": node.held, "unhealthy": node.faulty}
        parts += [f"{number} {text}" for text, number in states.items() if number]
    if node.tag is not None:
        parts.append(f"reserved for {node.tag.workload}")
    if not node.ready:
        parts.append("not Ready")
    elif not node.schedulable:
        parts.append("cordoned")
    return ", ".join(parts)


def is_whole(node: NodeView) -> bool:
    """Return True for a node of an UltraServer that is published as one device."""
    return bool(node.devices) and all(device.number is None for device in node.devices)


def amount(pictures: Sequence[Picture], mark: str) -> str:
    """Return how many devices have a mark, or how many nodes if all are published as a whole; empty if none has it."""
    counts = [sum(cell.mark == mark for cell in picture.cells) for picture in pictures]
    if not any(counts):
        return ""
    if all(is_whole(picture.node) for picture in pictures):
        return words.count(sum(count > 0 for count in counts), "node")
    return words.count(sum(counts), "device")


def short(name: str) -> str:
    """Return a node's name without its domain."""
    return name.partition(".")[0]


def free_groups(node: NodeView) -> list[str]:
    """Return, for each group attribute, the devices of a group that is entirely free, or that none is."""
    lines = []
    names: set[str] = set()
    for device in node.devices:
        names.update(device.groups)
    for name in sorted(names, key=lambda key: (len(key), key)):
        groups: dict[object, list[DeviceView]] = {}
        for device in node.devices:
            groups.setdefault(device.groups.get(name), []).append(device)
        size = max(len(members) for members in groups.values())
        if size < 2:
            continue
        texts = []
        for members in groups.values():
            if node.free and all(device.free for device in members):
                text = words.devices([device.name for device in members])
                texts.append(text.removeprefix("devices "))
        lines.append(f"groups of {size} free: {', '.join(texts) or 'none'}")
    return lines


def square(nodes: Sequence[NodeView]) -> bool:
    """Return True if the nodes of an UltraServer form the square of Trn2: 0 over 1, beside 3 over 2."""
    spec = nodes[0].spec if nodes else None
    positions = {node.position for node in nodes}
    return spec is not None and spec.platform is Platform.ULTRASERVER and positions <= {0, 1, 2, 3} and len(nodes) > 1


def columns(size: int) -> int:
    """Return how many nodes of an UltraServer stand side by side."""
    return min(size, 2 if size <= 4 else 4)


PLACES: Final = {0: (0, 0), 1: (0, 1), 2: (1, 1), 3: (1, 0)}
"""The places of the nodes of a Trn2 UltraServer in the square."""
PAIRS: Final = {"vertical": ((0, 1), (3, 2)), "horizontal": ((0, 3), (1, 2))}


def link(nodes: Iterable[NodeView], way: str, pair: tuple[int, int]) -> bool | None:
    """Return whether a link between two positions is up; None if it is unknown."""
    ends = [getattr(node, way) for node in nodes if node.position in pair]
    if False in ends:
        return False
    if ends == [True, True]:
        return True
    return None


def fill(cell: Cell) -> str:
    """Return what a small picture shows of a device: free, closed, faulty, held or reserved, and not by whom."""
    if cell.mark in (FREE, CLOSED, FAULT):
        return cell.mark
    if cell.title.startswith("reserved"):
        return RESERVED
    return HELD
