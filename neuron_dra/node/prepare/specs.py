"""Reads the claims' CDI files, which show what was prepared if the checkpoint is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from neuron_dra.core import cdi
from neuron_dra.core.claims import ClaimRef
from neuron_dra.node.files import Files


@dataclass(frozen=True, slots=True)
class Spec:
    """The contents of one of our CDI files: its claim, and the names of its devices."""

    ref: ClaimRef
    devices: tuple[str, ...]


def uids(files: Files, cdi_root: Path) -> list[str]:
    """Return the UIDs of claims that have a CDI file, ours or another driver's."""
    found = {cdi.claim_uid_of(name) or cdi.other_claim_uid_of(name) for name in files.names(cdi_root)}
    return sorted(uid for uid in found if uid is not None)


def read(files: Files, path: Path, uid: str) -> Spec | None:
    """Return the contents of a claim's file; None if it is invalid or does not name the claim."""
    try:
        document = json.loads(files.read(path) or b"")
    except ValueError:
        return None
    parts = cdi.annotated_ref(document)
    if parts is None or parts[2] != uid:
        return None
    return Spec(ClaimRef(*parts), cdi.device_names(document, uid))
