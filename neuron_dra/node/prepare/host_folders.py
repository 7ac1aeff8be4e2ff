"""Detects that a folder which is mounted from the host was removed or replaced there.

Otherwise the plugin would write to a folder that neither the kubelet nor the container runtime sees, and report
claims as prepared. Only a new container gets the host's present folder, so the plugin ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from neuron_dra.core import mounts
from neuron_dra.core.mounts import HostMount
from neuron_dra.errors import HostFolderReplaced
from neuron_dra.node.files import Files, Stamp

MOUNTINFO = Path("/proc/self/mountinfo")


class HostFolders:
    """Checks the host's folders. The files of claims are written to the folder `written`. Its methods block."""

    def __init__(self, written: Path, others: Iterable[Path], files: Files, mountinfo: Path = MOUNTINFO) -> None:
        self._written = written
        self._folders = [os.path.realpath(folder) for folder in (written, *others)]
        self._files = files
        self._mountinfo = mountinfo
        self._stamp: Stamp | None = None  # of the folder after our last write, which a rename of the folder changes
        self._seen: bytes | None = None  # what was read last, in which no folder was replaced
        self._mounts: dict[str, HostMount | None] = {}

    def check(self) -> None:
        """Check all folders. Raises HostFolderReplaced. A system without /proc/self/mountinfo has no such mounts."""
        raw = self._files.read(self._mountinfo)
        if raw is None or raw == self._seen:
            return
        text = os.fsdecode(raw)
        mount_by_folder = {folder: mounts.mount_of(text, folder) for folder in self._folders}
        for folder, mount in mount_by_folder.items():
            if why := mounts.why_replaced(self._mounts.get(folder), mount):
                raise HostFolderReplaced(
                    f"{why}; what the driver writes there is not seen by the kubelet and the container runtime, so it "
                    "ends, and the kubelet starts it again with the present folder"
                )
        self._seen, self._mounts = raw, mount_by_folder

    def check_before_write(self) -> None:
        """Check unless nobody changed the folder since our last write: the kernel takes long to list the mounts.

        Raises HostFolderReplaced.
        """
        if self._is_mount and self._stamp_now() != self._stamp:
            self.check()

    def wrote(self) -> None:
        """Record that the folder's changes up to now are our own."""
        if self._is_mount:
            self._stamp = self._stamp_now()

    @property
    def _is_mount(self) -> bool:
        return self._mounts.get(self._folders[0]) is not None

    def _stamp_now(self) -> Stamp | None:
        with contextlib.suppress(OSError):
            return self._files.stamp(self._written)
        return None
