"""Whose turn it is to publish: of several plugins on one node (a rolling update) exactly one, the newest.

A lock on one file says who publishes. A newcomer writes its name into another file; whoever holds the lock looks there
and gives way. If the newcomer dies, its lock is free, and the older one takes it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from neuron_dra.node.files import TEMPORARY_SUFFIX, Files, Stamp, try_lock, write_atomically

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
ORPHANED_POLLS: Final = 5  # an older plugin waits this many polls before it takes an unclaimed turn


class PublisherLock:
    """The right to publish. `holding` says whether we have it now."""

    def __init__(self, folder: Path, identity: str, files: Files) -> None:
        self._lock = folder / "publisher.lock"
        self._name = folder / "publisher"
        self._identity = identity
        self._files = files
        self._handle: int | None = None
        self._free_polls = 0
        self._read_at: Stamp | None = None
        self._read = ""
        self.changed = asyncio.Event()

    @property
    def holding(self) -> bool:
        """This process publishes."""
        return self._handle is not None

    def begin(self) -> None:
        """Take the turn if nobody has it; otherwise wait until the kubelet has registered us. Raises OSError."""
        self.sweep()
        if self._is_free():
            self.claim()

    def claim(self) -> None:
        """Ask for the turn, as the plugin that the kubelet registered last. Raises OSError."""
        try:
            self._write_name()
        except FileNotFoundError:  # swept by a plugin that started at this very moment
            self._write_name()
        self.poll()

    def poll(self) -> None:
        """Take the turn if it is ours, give it up if it is somebody else's. Raises OSError."""
        named = self._named()
        if self.holding:
            if named != self._identity:
                log.info("another plugin of this node publishes from now on", extra={"newest": named})
                self.release()
            return
        if named == self._identity or self._free_polls >= ORPHANED_POLLS:
            if self._take():
                if named != self._identity:
                    self._write_name()
                log.info("this plugin publishes the node's ResourceSlices", extra={"identity": self._identity})
                self._free_polls = 0
                self.changed.set()
        else:
            self._free_polls = self._free_polls + 1 if self._is_free() else 0

    def _write_name(self) -> None:
        write_atomically(self._files, self._name, self._identity.encode(), 0o600)

    def sweep(self) -> None:
        """Remove what plugins left that died while they wrote their name. Raises OSError."""
        for name in self._files.names(self._name.parent):
            if name.startswith(f".{self._name.name}.") and name.endswith(TEMPORARY_SUFFIX):
                self._files.remove(self._name.with_name(name))

    def _named(self) -> str:
        """Return who was named last; the file is read only when it is another one than before."""
        stamp = self._files.stamp(self._name)
        if stamp is None or stamp != self._read_at:
            self._read = (self._files.read(self._name) or b"").decode(errors="replace")
            self._read_at = stamp
        return self._read

    def _take(self) -> bool:
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(handle):
            os.close(handle)
            self._free_polls = 0
            return False
        self._handle = handle
        return True

    def _is_free(self) -> bool:
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return try_lock(handle)
        finally:
            os.close(handle)

    def release(self) -> None:
        """Give the turn up."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self.changed.set()
