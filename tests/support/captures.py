"""Trees and timelines that the real kernel driver wrote, in memory: tests/data/kernel-driver/README.md.

tree = captures.tree("trn2.48xlarge-2.26.5.0")
raw = captures.read(tree)
for moment in captures.moments("life-inf2"): ...
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.helper import CLASS, VIRTUAL

FOLDER: Final = Path(__file__).parents[1] / "data/kernel-driver"
LIFE: Final = "life-inf2"
MODULE: Final = "sys/module/neuron"
PRODUCT_NAME: Final = "sys/devices/virtual/dmi/id/product_name"
PERIOD_S: Final = 0.09  # the reader of the timelines looked every 100 ms

_RANKS: Final = (("class-ls", 0), ("dev-ls", 1), (f"{CLASS}/neuron", 3), (CLASS, 2), (MODULE, 4), ("dev/", 5))
"""The order in which the reader of the timelines looked."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a link or a folder (kinds f, c, l and d) with its mode; `text` is the content or the link's target."""

    kind: str
    mode: int
    text: str | None = None


Tree = dict[str, Entry]
"""Entries by their path, which has no slash in front."""


def names() -> list[str]:
    """Return the names of the captured trees."""
    return sorted(path.name.removesuffix(".tree") for path in FOLDER.glob("*.tree"))


def timelines() -> list[str]:
    """Return the names of the captured timelines."""
    return sorted(path.name.removesuffix(".timeline") for path in FOLDER.glob("*.timeline"))


@functools.cache
def tree(name: str) -> Mapping[str, Entry]:
    """Return a captured tree. That of the life of an Inferentia2 is made of the larger type's first six devices."""
    if name == LIFE:
        return _six_of(tree("inf2.48xlarge-2.26.5.0"))
    entries: Tree = {}
    ids: list[str] = []
    for line in (FOLDER / f"{name}.tree").read_text().splitlines():
        kind, *fields = line.split("\t")
        if kind == "devices":
            ids = fields[0].split(",")
        elif kind == "include":
            for device_id in fields[1].split(","):
                for shared in (FOLDER / fields[0]).read_text().splitlines():
                    _add(entries, shared, device_id, f"{VIRTUAL}/neuron{device_id}/")
        elif "neuron*" in fields[1]:
            for device_id in ids:
                _add(entries, line, device_id)
        else:
            _add(entries, line)
    return entries


def _add(entries: Tree, line: str, device_id: str = "", folder: str = "") -> None:
    kind, mode, path, *text = line.split("\t")
    if device_id:
        path = path.replace("neuron*", f"neuron{device_id}")
        text = [re.sub(r"(neuron|:|MINOR=)\*", rf"\g<1>{device_id}", each) for each in text]
    path = folder + path.lstrip("/")
    entries[path] = Entry(kind, int(mode, 8), json.loads(text[0]) if text else None)
    for parent in Path(path).parents:
        entries.setdefault(str(parent), Entry("d", 0o755))


def _six_of(larger: Mapping[str, Entry]) -> Tree:
    entries: Tree = {}
    for path, entry in larger.items():
        unit = helper.unit_of(path)
        if unit == path or int(unit.removeprefix("neuron")) < 6:
            entries[path] = entry
    entries[PRODUCT_NAME] = Entry("f", 0o444, "inf2.24xlarge\n")
    for device_id in range(6):
        beside = [other for other in (device_id - 1, device_id + 1) if 0 <= other < 6]
        path = f"{VIRTUAL}/neuron{device_id}/connected_devices"
        entries[path] = Entry("f", 0o400, ", ".join(map(str, beside)) + "\n")
    return entries


def device_ids(entries: Mapping[str, Entry]) -> list[int]:
    """Return the ids of the devices that the class folder lists."""
    found = re.compile(rf"{CLASS}/neuron(\d+)")
    return sorted(int(match[1]) for match in map(found.fullmatch, entries) if match)


class CapturedSource(helper.Source):
    """Reads a tree; after `switch_at` operations another one, as when the kernel driver changes during a reading."""

    def __init__(self, before: Mapping[str, Entry], after: Mapping[str, Entry] | None = None, switch_at: int = 0):
        self._before = before
        self._after = before if after is None else after
        self._switch_at = switch_at
        self._children: dict[int, dict[str, list[tuple[str, Entry]]]] = {}
        self.operations = 0

    @property
    def _now(self) -> Mapping[str, Entry]:
        self.operations += 1
        return self._before if self.operations <= self._switch_at else self._after

    def names(self, folder: str) -> list[str]:
        return [name for name, _ in self._below(self._now, folder)]

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        return [(name, entry.kind == "d") for name, entry in self._below(self._now, folder) if entry.kind != "l"]

    def contents(self, path: str) -> bytes:
        now = self._now
        entry = now.get(_resolved(now, path))
        if entry is None or entry.kind != "f" or entry.text is None:
            raise FileNotFoundError(path)
        return entry.text.encode()

    def kind(self, path: str) -> int:
        return helper.A_DEVICE if path.lstrip("/") in self._now else helper.NO_FILE

    def _below(self, now: Mapping[str, Entry], folder: str) -> list[tuple[str, Entry]]:
        real = _resolved(now, folder)
        if real not in now:
            raise FileNotFoundError(folder)
        if id(now) not in self._children:
            self._children[id(now)] = _by_folder(now)
        return self._children[id(now)].get(real, [])


def _by_folder(entries: Mapping[str, Entry]) -> dict[str, list[tuple[str, Entry]]]:
    children: dict[str, list[tuple[str, Entry]]] = {}
    for path, entry in entries.items():
        parent, _, name = path.rpartition("/")
        children.setdefault(parent, []).append((name, entry))
    return children


def _resolved(entries: Mapping[str, Entry], path: str) -> str:
    """Return a path without links; functions below /sys/bus/pci/devices are links that the captures leave out."""
    function = re.match(r"/?sys/bus/pci/devices/([^/]+)(/.*)?$", path)
    if function:
        path = f"sys/devices/pci{function[1][:7]}/{function[1]}{function[2] or ''}"
    parts: list[str] = []
    for part in path.strip("/").split("/"):
        if part == "..":
            parts.pop()
            continue
        parts.append(part)
        entry = entries.get("/".join(parts))
        if entry is not None and entry.kind == "l":
            parts = _resolved(entries, "/".join([*parts[:-1], entry.text or ""])).split("/")
    return "/".join(parts)


def read(
    entries: Mapping[str, Entry], after: Mapping[str, Entry] | None = None, switch_at: int = 0
) -> sysfs.FileReading:
    """Return what the plugin's helper reads of a tree, or of one that becomes another during the reading."""
    return sysfs.read(CapturedSource(entries, after, switch_at), "", "/dev")


# Timelines.


@dataclass(frozen=True, slots=True)
class Moment:
    """The tree at one moment of a timeline, in seconds of the capture. `is_loaded`: no load or unload is under way."""

    at_s: float
    entries: Mapping[str, Entry]
    is_loaded: bool


@dataclass(slots=True)
class _State:
    """What the reader saw last: the files that have a line, and which devices are listed; None is no class folder."""

    listed: list[str] | None = None
    in_dev: list[str] = field(default_factory=list)
    texts: dict[str, str | None] = field(default_factory=dict)

    def take(self, path: str, text: str | list[str] | None) -> None:
        if isinstance(text, list) or path in (CLASS, "dev"):
            ids = None if text is None else [name.removeprefix("neuron") for name in text]
            if path == CLASS:
                self.listed = ids
            else:
                self.in_dev = ids or []
        else:
            self.texts[path] = text

    @property
    def initstate(self) -> str:
        return (self.texts.get(f"{MODULE}/initstate") or "").strip()

    def tree(self, whole: Mapping[str, Entry]) -> Tree:
        entries: Tree = {}
        is_filled = self.initstate == "live"
        for path, entry in whole.items():
            if not self._is_there(path):
                continue
            seen = path.replace(VIRTUAL, CLASS)
            if entry.kind == "f" and seen in self.texts:
                text = self.texts[seen]
                if text is not None:
                    entries[path] = Entry("f", entry.mode, text)
                continue
            if path.endswith("/connected_devices") and not is_filled:
                entry = Entry("f", entry.mode, "\n")
            entries[path] = entry
        return entries

    def _is_there(self, path: str) -> bool:
        if path == MODULE or path.startswith((f"{MODULE}/", "sys/bus/pci/drivers/neuron-driver")):
            return self.texts.get(f"{MODULE}/version") is not None
        number = helper.unit_of(path).removeprefix("neuron")
        if path.startswith("dev/"):
            return number in self.in_dev
        if path.startswith((CLASS, VIRTUAL)):
            return self.listed is not None and (not number.isdecimal() or number in self.listed)
        return True


def moments(name: str) -> Iterator[Moment]:
    """Yield the tree after each look of the reader that saw a change, without the statistics, which it did not read."""
    whole = {path: entry for path, entry in tree(name).items() if "/neuron_core" not in path and "_mem/" not in path}
    state = _State()
    last: tuple[float, int] | None = None
    for line in (FOLDER / f"{name}.timeline").read_text().splitlines():
        if " SLOW " in line:
            continue
        at_s, path, text = _parsed(line)
        rank = _rank(path, text)
        if last is not None and (rank < last[1] or at_s - last[0] > PERIOD_S):
            yield Moment(last[0], state.tree(whole), state.initstate == "live")
        last = at_s, rank
        state.take(path, text)
    if last is not None:
        yield Moment(last[0], state.tree(whole), state.initstate == "live")


def _rank(path: str, text: str | list[str] | None) -> int:
    if path in (CLASS, "dev"):
        return 0 if path == CLASS else 1
    return next(rank for prefix, rank in _RANKS if path.startswith(prefix))


def _parsed(line: str) -> tuple[float, str, str | list[str] | None]:
    """Return the time, the path and what was there: a text, the names of a folder, or None."""
    at, rest = line.split(" ", 1)
    path, _, what = rest.removeprefix("/").partition(" ")
    if what.startswith("ls("):
        return float(at), path, what.partition(":")[2].split()
    if what.startswith("("):
        return float(at), path, json.loads(what.partition(" ")[2])
    return float(at), path, None if what.startswith(("ENOENT", "opendir")) else ""
