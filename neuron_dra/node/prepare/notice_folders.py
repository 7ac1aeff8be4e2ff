"""The folders of prepared claims with the notice of their workload, in a folder of the CDI folder.

A folder exists before the CDI file that mounts it, and until that file is removed, because a container whose mount has
no source does not start. It stays the same folder while the claim is prepared, because running containers mount it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from neuron_dra.core import notice
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.notice import Told
from neuron_dra.node.files import Files, replace

log = logging.getLogger(__name__)


class NoticeFolders:
    """Makes and removes folders, and writes notices into them; it raises OSError. The store's lock must be held."""

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files
        self._told: Told | None = None

    def make(self, claim: PreparedClaim) -> None:
        """Make the folder of a claim, with the notice of its workload."""
        if notice.has_folder(claim):
            self._files.make_folder(self._folder(claim.ref.uid), 0o755)
            self._write(claim)

    def is_complete(self, claim: PreparedClaim) -> bool:
        """Return whether a claim has all that `make` gives it."""
        if not notice.has_folder(claim):
            return True
        return self._files.stamp(self._folder(claim.ref.uid)) is not None and not self._differs(claim)

    def tell(self, told: Told, claims: Collection[PreparedClaim]) -> None:
        """Write the notice of a workload for its claims, also for those that are prepared later."""
        self._told = told
        for claim in claims:
            if notice.has_folder(claim) and told.concerns(claim):
                self._files.make_folder(self._folder(claim.ref.uid), 0o755)
                self._write(claim)

    def remove(self, uid: str) -> None:
        """Remove the folder of a claim, also of one that is unknown."""
        folder = self._folder(uid)
        for name in self._files.names(folder):
            self._files.remove(folder / name)
        self._files.remove_folder(folder)

    def sweep(self, claim_uids: Collection[str]) -> None:
        """Remove the folders of claims other than `claim_uids`."""
        for name in self._files.names(self._root):
            uid = notice.claim_uid_of(name)
            if uid not in claim_uids and name == notice.folder_name(uid):
                self.remove(uid)
                log.info("removed the leftover folder of a notice", extra={"folder": name})

    def _folder(self, uid: str) -> Path:
        return self._root / notice.folder_name(uid)

    def _notice_bytes(self, claim: PreparedClaim) -> bytes | None:
        """Return the bytes of a claim's file; None if it should have none."""
        told = self._told
        return told.notice.encode() if told is not None and told.notice is not None else None

    def _differs(self, claim: PreparedClaim) -> bool:
        """Return whether a claim's notice must be written. Until its workload is known, the file stays as it is."""
        if self._told is None or not self._told.concerns(claim):
            return False
        return self._files.read(self._folder(claim.ref.uid) / notice.FILE) != self._notice_bytes(claim)

    def _write(self, claim: PreparedClaim) -> None:
        if not self._differs(claim):
            return
        path, notice_bytes = self._folder(claim.ref.uid) / notice.FILE, self._notice_bytes(claim)
        if notice_bytes is None:
            self._files.remove(path)
        else:
            replace(self._files, path, notice_bytes, 0o644)
