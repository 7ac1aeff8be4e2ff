"""The files of each prepared claim: its CDI file, and the metadata files and the folder that the CDI file mounts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from neuron_dra.core import cdi
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.dra_driver import Driver
from neuron_dra.node import files as disk
from neuron_dra.node.files import TEMPORARY_SUFFIX, Files
from neuron_dra.node.prepare import specs
from neuron_dra.node.prepare.metadata_files import MetadataFiles
from neuron_dra.node.prepare.notice_folders import NoticeFolders
from neuron_dra.node.prepare.specs import Spec

Renew = Callable[[PreparedClaim], PreparedClaim]


class ClaimFiles:
    """Writes and removes the files of one driver's claims; it raises OSError. The store's lock must be held.

    `renew` returns a prepared claim with the device files that it should have now: their names may change in a boot.
    """

    def __init__(self, cdi_root: Path, files: Files, driver: Driver, renew: Renew = lambda claim: claim) -> None:
        self._renew = renew
        self._cdi_root = cdi_root
        self._files = files
        self._driver = driver
        self._metadata = MetadataFiles(cdi_root / driver.metadata_folder, files)
        self.notices = NoticeFolders(cdi_root / driver.notices_folder, files)

    def path(self, uid: str) -> Path:
        """Return the path of a claim's CDI file."""
        return self._cdi_root / cdi.file_name(uid, self._driver)

    def others_path(self, uid: str) -> Path:
        """Return the path that another implementation of the driver gives to a claim's CDI file."""
        return self._cdi_root / cdi.other_file_name(uid, self._driver)

    def uid_of(self, name: str) -> str | None:
        """Return the claim UID in the name of a CDI file; None for other names."""
        return cdi.claim_uid_of(name, self._driver)

    def others_uid_of(self, name: str) -> str | None:
        """Return the claim UID in the name of another implementation's CDI file; None for other names."""
        return cdi.other_claim_uid_of(name, self._driver)

    def is_temporary(self, name: str) -> bool:
        """Return whether a file of this name is what a process left that died while it wrote a CDI file."""
        return name.startswith(f".{self._driver.cdi_file_prefix}") and name.endswith(TEMPORARY_SUFFIX)

    def uids(self) -> list[str]:
        """Return the UIDs of claims that have a CDI file, ours or another implementation's."""
        return specs.uids(self._files, self._cdi_root, self._driver)

    def spec(self, uid: str) -> Spec | None:
        """Return the contents of a claim's CDI file; None if it is invalid, or does not name the claim."""
        return specs.read(self._files, self.path(uid), uid, self._driver)

    def foreign_device_ids(self, uid: str) -> tuple[int, ...]:
        """Return the Neuron devices in the CDI file of a claim that we did not prepare."""
        return specs.foreign_device_ids(self._files, self._cdi_root, uid, self._driver)

    def write(self, claim: PreparedClaim) -> None:
        """Write all files of a claim."""
        self._files.make_folder(self._cdi_root, 0o755)
        # The CDI file comes last, because a container whose mounts have no source does not start.
        self._metadata.write(claim)
        self.notices.make(claim)
        spec = cdi.encode(cdi.spec(claim, self._driver))
        disk.replace(self._files, self.path(claim.ref.uid), spec, 0o644)

    def write_missing(self, claim: PreparedClaim) -> bool:
        """Write the files of a claim if one is missing or altered; return whether that was so."""
        if claim.adopted:
            return False
        claim = self._renew(claim)
        if self._are_complete(claim):
            return False
        self.write(claim)
        return True

    def _are_complete(self, claim: PreparedClaim) -> bool:
        spec = self._files.read(self.path(claim.ref.uid)) or b""
        is_ours = cdi.is_of(claim, spec, self._driver)
        return is_ours and self._metadata.are_complete(claim) and self.notices.is_complete(claim)

    def remove(self, uid: str) -> None:
        """Remove all files of a claim, also those of a claim that is unknown."""
        self._files.remove(self.path(uid))
        self._metadata.remove(uid)
        self.notices.remove(uid)

    def sweep(self, claim_uids: Collection[str]) -> None:
        """Remove metadata files and folders of claims other than `claim_uids`."""
        self._metadata.sweep(claim_uids)
        self.notices.sweep(claim_uids)
