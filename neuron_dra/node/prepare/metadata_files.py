"""The metadata files of prepared claims, in a folder of the CDI folder. The CDI files mount them into containers.

They are written before the CDI file that mounts them, and removed after it, because a container whose mount has no
source does not start. A file is never written in place, so a running container keeps the file that it has mounted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from neuron_dra.core import metadata
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.node.files import TEMPORARY_SUFFIX, Files, replace

log = logging.getLogger(__name__)


class MetadataFiles:
    """Writes and removes metadata files; its methods raise OSError. The store's lock must be held."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files

    def write(self, claim: PreparedClaim) -> None:
        """Write all files of a claim."""
        for name, data in metadata.files(claim).items():
            self._files.make_folder(self._folder, 0o755)
            replace(self._files, self._folder / name, data, 0o644)

    def are_complete(self, claim: PreparedClaim) -> bool:
        """Return whether all files of a claim are there, unaltered."""
        return all(self._files.read(self._folder / name) == data for name, data in metadata.files(claim).items())

    def remove(self, uid: str) -> None:
        """Remove all files of a claim, also those of a claim that is unknown."""
        for name in self._files.names(self._folder):
            if metadata.claim_uid_of(name) == uid:
                self._files.remove(self._folder / name)

    def sweep(self, claim_uids: Collection[str]) -> None:
        """Remove the files of claims other than `claim_uids`, and temporary files of processes that died."""
        for name in self._files.names(self._folder):
            is_ours = name.endswith((".json", TEMPORARY_SUFFIX))
            if is_ours and metadata.claim_uid_of(name) not in claim_uids:
                self._files.remove(self._folder / name)
                log.info("removed a leftover metadata file", extra={"file": name})
