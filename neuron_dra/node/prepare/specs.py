"""Reads the claims' CDI files, which show what was prepared if the checkpoint is lost.

A file that cannot be read, written or removed, such as a folder in its place, concerns its claim alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from neuron_dra.core import cdi, names
from neuron_dra.core.cdi import ShownDevice
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.dra_driver import NEURON, Driver
from neuron_dra.node.files import Files

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spec:
    """The contents of one of our CDI files: its claim and its devices."""

    ref: ClaimRef
    devices: tuple[ShownDevice, ...]


def uids(files: Files, cdi_root: Path, driver: Driver = NEURON) -> list[str]:
    """Return the UIDs of claims that have a CDI file, ours or another driver's."""
    names_in_folder = files.names(cdi_root)
    file_uids = {cdi.claim_uid_of(name, driver) or cdi.other_claim_uid_of(name, driver) for name in names_in_folder}
    return sorted(uid for uid in file_uids if uid is not None)


def read(files: Files, path: Path, uid: str, driver: Driver = NEURON) -> Spec | None:
    """Return the contents of a claim's file; None if it is invalid, cannot be read, or does not name the claim."""
    try:
        document = json.loads(files.read(path) or b"")
    except (ValueError, OSError):
        return None
    parts = cdi.annotated_ref(document)
    if parts is None or parts[2] != uid:
        return None
    return Spec(ClaimRef(*parts), cdi.devices(document, uid, driver))


def adopted(spec: Spec) -> PreparedClaim:
    """Return a claim that holds all that its file adds to containers."""
    devices = []
    for shown in spec.devices:
        device = PreparedDevice("", "", shown.name, shown.device_ids, (), {}, shown.admin_access, shown.share_id)
        devices.append(replace(device, cores=shown.cores))
    return PreparedClaim(spec.ref, tuple(devices), adopted=True)


def adopted_foreign(uid: str, device_ids: tuple[int, ...]) -> PreparedClaim:
    """Return a claim that holds what another driver's file adds to containers; only its UID is known."""
    devices = [PreparedDevice("", "", f"{names.DEVICE_PREFIX}{number}", (number,), (), {}) for number in device_ids]
    return PreparedClaim(ClaimRef("", "", uid), tuple(devices), adopted=True)


def foreign_device_ids(files: Files, cdi_root: Path, uid: str, driver: Driver = NEURON) -> tuple[int, ...]:
    """Return the Neuron devices in another driver's file, whatever its format; none if it cannot be read."""
    device_ids: set[int] = set()
    for name in (cdi.file_name(uid, driver), cdi.other_file_name(uid, driver)):
        with contextlib.suppress(OSError):
            text = (files.read(cdi_root / name) or b"").decode(errors="replace")
            device_ids |= cdi.device_files_in(text)
    return tuple(sorted(device_ids))


def written(claims: Iterable[PreparedClaim], write: Callable[[PreparedClaim], bool]) -> list[ClaimRef]:
    """Write the files that are missing; return the claims for which `write` has done so.

    An error is logged: the next repair tries again, and the claim stays prepared.
    """
    written_refs = []
    for claim in claims:
        try:
            if write(claim):
                written_refs.append(claim.ref)
        except OSError as err:
            log.warning("a CDI file could not be written", extra={"claim": str(claim.ref), "error": str(err)})
    return written_refs


def remove_leftover(files: Files, path: Path) -> None:
    """Remove a file without a held claim; an error is logged."""
    try:
        files.remove(path)
    except OSError as err:
        log.warning("a leftover CDI file cannot be removed", extra={"file": path.name, "error": str(err)})
        return
    log.info("removed a leftover CDI file", extra={"file": path.name})
