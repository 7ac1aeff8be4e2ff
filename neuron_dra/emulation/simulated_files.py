"""The files of simulated hardware: the contents of UltraServer files, and writing them as sysfs does."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

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
    """A node's place in its UltraServer: `node_id` 0 to 3 of `nodes`, and the ids that all its nodes share."""

    node_id: int
    server_id: str
    nodes: int = 4
    capacity_block_id: str = ""


def trn2_files(place: SimulatedPlace | None) -> dict[str, str]:
    if place is None:
        return {
            "node_id_2": "-1",
            "node_id_4": "-1",
            "server_id_2": NO_ID,
            "server_id_4": NO_ID,
            "ultraserver_mode": "4",
        }
    pair = int(place.server_id, 16) - (1 if place.node_id >= 2 else 0)
    return {
        "node_id_2": str(place.node_id % 2),
        "node_id_4": str(place.node_id),
        "server_id_2": f"{pair:016x}",
        "server_id_4": place.server_id,
        "ultraserver_mode": "1,3,4",
    }


def trn3_files(place: SimulatedPlace | None) -> dict[str, str]:
    if place is None:
        return {"node_id": "-1", "node_cnt": "1", "reservation_id": NO_ID, "ultraserver_mode": "4"}
    return {
        "node_id": str(place.node_id),
        "node_cnt": str(place.nodes),
        "reservation_id": place.server_id,
        "ultraserver_mode": "1,3,4",
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
