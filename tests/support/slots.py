"""The checkpoint's slots in a plugin's folder, as tests read and damage them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import SLOTS, Checkpoint
from neuron_dra.errors import CheckpointDamaged

HEADER: Final = ("checksum", "length", "sequence", "version")
TORN_AT: Final = 60  # within the header


def sealed(body: dict[str, Any], *, sequence: int = 0, version: str = "v1") -> bytes:
    """Return a slot with `body` as another program that knows the format would write it."""
    return sealed_text(json.dumps(body), sequence=sequence, version=version)


def sealed_text(text: str, *, sequence: int = 0, version: str = "v1") -> bytes:
    """Return a slot with a JSON object."""
    line = f'"sequence":{sequence},"version":"{version}",{text.removeprefix("{")}'
    line = f'"length":{len(line.encode())},{line}'
    return f'{{"checksum":"{hashlib.sha256(line.encode()).hexdigest()}",{line}\n'.encode()


def paths(folder: Path) -> list[Path]:
    """Return the slots that exist."""
    return [folder / name for name in SLOTS if (folder / name).exists()]


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint. Raises CheckpointDamaged, FileNotFoundError."""
    checkpoint = checkpoints.newest(path.read_bytes() for path in paths(folder))
    if checkpoint is None:
        raise FileNotFoundError(folder)
    return checkpoint


def newest(folder: Path) -> Path:
    """Return the whole slot that counts."""
    sequences = {}
    for path in paths(folder):
        try:
            sequences[checkpoints.decode(path.read_bytes()).sequence] = path
        except CheckpointDamaged:
            continue
    return sequences[max(sequences)]


def older(folder: Path) -> Path:
    """Return the slot that is written next."""
    [path] = set(paths(folder)) - {newest(folder)}
    return path


def tear(path: Path) -> None:
    """Leave a slot as a write of other contents that was stopped."""
    raw = path.read_bytes()
    path.write_bytes(raw[:TORN_AT] + bytes(len(raw) - TORN_AT))


def tear_all(folder: Path) -> None:
    """Tear both slots."""
    for path in paths(folder):
        tear(path)


def remove_all(folder: Path) -> None:
    """Remove both slots."""
    for path in paths(folder):
        path.unlink()
