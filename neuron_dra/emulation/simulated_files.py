"""The files of simulated hardware: the contents of UltraServer files, and writing them as sysfs does."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core.catalogue import Platform

NO_ID = "0" * 16
_REWRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
TRANSITIONAL = {
    "node_id_2": "busy",
    "node_id_4": "busy",
    "node_id": "busy",
    "node_cnt": "busy",
    "ultraserver_mode": "busy",
    "server_id_2": NO_ID,
    "server_id_4": NO_ID,
    "reservation_id": NO_ID,
}
"""The class attributes while the election of the ids runs."""


@dataclass(frozen=True, slots=True)
class SimulatedPlace:
    """A node's place in its UltraServer: its number among `nodes` (2 or 4), and the id that all its nodes share."""

    node_id: int
    server_id: str
    nodes: int = 4
    capacity_block_id: str = ""


DEFAULT_PDS_PLACE: Final = SimulatedPlace(0, f"{1:016x}", 2)
"""What a PDS driver up to 2.26 shows unless its parameters are set: each node is node 0 of the same pair."""


def elected_files(place: SimulatedPlace | None, platform: Platform) -> dict[str, str]:
    """Return the class files of Trn2; drivers up to 2.26 have them on all machines.

    Without a `place` a node is single. What is not the node's, or is not known to the driver as a type of UltraServers,
    reads -1, zeros and an empty list of modes.
    """
    none = {"node_id_2": "-1", "node_id_4": "-1", "server_id_2": NO_ID, "server_id_4": NO_ID}
    if platform is Platform.STANDARD:
        return {**none, "ultraserver_mode": ""}
    if place is None and platform is not Platform.ULTRASERVER:
        place = DEFAULT_PDS_PLACE
    if place is None:
        return {**none, "ultraserver_mode": "4"}
    if place.nodes == 2:
        pair = {"node_id_2": str(place.node_id), "server_id_2": place.server_id}
        return {**none, **pair, "ultraserver_mode": "3,4"}
    pair_id = int(place.server_id, 16) - (1 if place.node_id >= 2 else 0)
    return {
        "node_id_2": str(place.node_id % 2),
        "node_id_4": str(place.node_id),
        "server_id_2": f"{pair_id:016x}",
        "server_id_4": place.server_id,
        "ultraserver_mode": "1,3,4",
    }


def reserved_files(place: SimulatedPlace | None) -> dict[str, str]:
    """Return the class files of PDS and MAX types from driver 2.27 on; without a `place` a node is single."""
    if place is None:
        return {"node_id": "-1", "node_cnt": "1", "reservation_id": NO_ID, "ultraserver_mode": "4"}
    return {
        "node_id": str(place.node_id),
        "node_cnt": str(place.nodes),
        "reservation_id": place.server_id,
        "ultraserver_mode": "1,3,4" if place.nodes == 4 else "3,4",
    }


def put(path: Path, text: str, mode: int = 0o444) -> None:
    """Write a file with sysfs's mode. An existing file is rewritten in place, so that bind mounts show the change."""
    try:
        number = os.open(path, _REWRITE, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, _REWRITE, 0o600)
    except PermissionError:  # most files are read-only, which stops users other than root
        path.chmod(mode | 0o200)
        number = os.open(path, _REWRITE, 0o600)
    with open(number, "wb", buffering=0) as file:
        file.write(text.encode())
        os.fchmod(number, mode)


def change(path: Path, text: str) -> None:
    """Change a file's contents, and keep its mode."""
    put(path, text, stat.S_IMODE(path.stat().st_mode))


def make_link(path: Path, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    try:
        path.symlink_to(target)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
