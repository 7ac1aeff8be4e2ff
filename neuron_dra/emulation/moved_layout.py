"""Simulated hardware whose kernel driver has moved its files, as driver 2.31 did; no public list has the new paths.

Files keep their names and contents. Each seed moves them to other folders, and plants decoys: files of the same name in
the folders of cores, copies with other contents, and names that resemble real ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from neuron_dra.emulation.simulated_files import put
from neuron_dra.emulation.simulated_node import CLASS, DEVICES

_FOLDERS: Final = (
    "info",
    "stats",
    "stats/ecc_counters",
    "health",
    "hw/status",
    "topology",
    "arch/v2",
    "ras/report/now",
)
_KERNEL: Final = ("dev", "uevent", "subsystem", "reset")
"""What the kernel makes, and the file whose name does not say what it is."""


def apply(root: Path, seed: int) -> None:
    """Move the files of all devices of the simulated node below `root`, and those of its class."""
    for device in sorted((root / DEVICES).glob("neuron*")):
        move(device, seed)
    move_class(root / CLASS, seed)


def move(device: Path, seed: int) -> frozenset[str]:
    """Move the files of a device's folder; return the names of those that have a copy with other contents."""
    chosen = random.Random(seed)
    names = _moved(device, _files(device), chosen)
    copied = frozenset(name for name in sorted(names) if chosen.random() < 0.15)
    for name in sorted(names):
        put(device / "neuron_core0/stats" / name, "7\n")
        put(device / "stats/old" / f"{name}_before", "9\n")
        if name in copied:
            put(device / "mirror" / name, "3\n")
    return copied


def move_class(folder: Path, seed: int) -> None:
    """Move the files of the class to folders below it, with decoys whose names resemble them."""
    chosen = random.Random(seed)
    files = []
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("."):
            files.append(path)
    for name in sorted(_moved(folder, files, chosen)):
        put(folder / "old" / f"{name}_before", "1\n")


def _files(device: Path) -> list[Path]:
    paths = []
    for path in device.rglob("*"):
        if path.is_file() and path.name not in _KERNEL and not str(path.relative_to(device)).startswith("neuron_core"):
            paths.append(path)
    return paths


def _moved(folder: Path, files: Iterable[Path], chosen: random.Random) -> set[str]:
    names = set()
    for path in sorted(files):
        target = folder / chosen.choice(_FOLDERS) / f"{chosen.randrange(3)}" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        names.add(path.name)
    return names
