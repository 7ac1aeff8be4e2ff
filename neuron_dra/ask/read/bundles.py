"""Reads the objects of a bundle of `neuron-dra doctor --bundle`, which is then a snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    import tarfile

MAGIC: Final = b"\x1f\x8b"
"""The first bytes of a file of gzip."""
FOLDER: Final = "neuron-dra-doctor"
MOST_BYTES: Final = 2**30
"""Of one file in a bundle."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle has: its objects, the version of the API server, and the kinds that were not read, and why."""

    objects: Any
    version: str
    not_seen: Mapping[str, str]


def is_bundle(name: str) -> bool:
    """Return True if a file is compressed, as bundles are."""
    path = Path(name)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(name: str) -> Bundle:
    """Return what a bundle has. Raises SettingsError if the file is none."""
    import tarfile

    try:
        with tarfile.open(name, "r:gz") as archive:
            objects, report = (_member(archive, part) for part in ("objects.json", "report.json"))
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError, RecursionError) as err:
        raise SettingsError(f"--snapshot {name}: this is not a bundle of neuron-dra doctor: {err}") from err
    if not isinstance(objects, dict) or not isinstance(report, dict):
        raise SettingsError(f"--snapshot {name}: this is not a bundle of neuron-dra doctor")
    not_seen = report.get("notSeen")
    if isinstance(not_seen, dict):
        kinds = {str(kind): str(why) for kind, why in not_seen.items()}
    else:
        kinds = {}
    return Bundle(objects, str(report.get("apiServer") or ""), kinds)


def _member(archive: tarfile.TarFile, name: str) -> Any:
    """Return the content of a JSON file. Raises KeyError or ValueError."""
    file = archive.extractfile(f"{FOLDER}/{name}")
    if file is None:
        raise ValueError(f"{name} is no file")
    raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{name} is larger than {MOST_BYTES} bytes")
    return json.loads(raw)
