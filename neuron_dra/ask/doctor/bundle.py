"""Writes a bundle: the report and redacted objects, as a tar.gz."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuron_dra import __version__
from neuron_dra.ask.doctor import lines, redacted
from neuron_dra.ask.doctor.lines import Line
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.errors import SettingsError


def write(path: Path, report_lines: Sequence[Line], seen: Seen) -> None:
    """Write the bundle to a new file that only its owner can read. Raises SettingsError if there is one already."""
    report: dict[str, Any] = {
        "version": __version__,
        "apiServer": seen.version,
        "notSeen": dict(seen.snapshot.left_out),
    }
    report |= {"unread": dict(seen.unread), **lines.to_wire(report_lines)}
    objects = {"apiVersion": "v1", "kind": "List", "items": redacted.objects(seen)}
    raw = _packed({"report.json": redacted.clean(report), "objects.json": objects})
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SettingsError(f"--bundle {path}: the file exists; name another one") from None
    except OSError as err:
        raise SettingsError(f"--bundle {path}: {err.strerror}") from err
    with os.fdopen(descriptor, "wb") as file:
        file.write(raw)


def _packed(files: dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as zipped, tarfile.TarFile(fileobj=zipped, mode="w") as archive:
        for name, content in files.items():
            raw = (json.dumps(content, indent=1) + "\n").encode()
            tar_entry = tarfile.TarInfo(f"neuron-dra-doctor/{name}")
            tar_entry.size = len(raw)
            archive.addfile(tar_entry, io.BytesIO(raw))
    return packed.getvalue()
