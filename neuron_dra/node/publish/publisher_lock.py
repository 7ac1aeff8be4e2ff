"""The publisher lock: of several plugins on a node (a rolling update) only the newest publishes.

The plugin that has the lock on one file publishes. A new plugin writes its name to another file; the holder of the lock
reads it and releases the lock. If the new plugin dies, its lock is free, and the older plugin takes it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from neuron_dra.node.files import Files, Stamp, sweep, try_lock, write_atomically
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.signal import Signal

log = logging.getLogger(__name__)

END_S: Final = 1.0  # the longest wait for the disk when the plugin ends
ORPHANED_POLLS: Final = 5  # an older plugin takes the lock if it has been free for this many polls


class PublisherLock:
    """The right to publish. `holding` is True while this process has it."""

    def __init__(self, folder: Path, identity: str, files: Files, then: Callable[[], None] | None = None) -> None:
        self._lock = folder / "publisher.lock"
        self._name = folder / "publisher"
        self._identity = identity
        self._files = files
        self._handle: int | None = None
        self._free_polls = 0
        self._read_at: Stamp | None = None
        self._read = ""
        self.changed = Signal(then)  # notified when the lock is taken or released

    @property
    def holding(self) -> bool:
        """True if this process publishes."""
        return self._handle is not None

    def begin(self) -> None:
        """Take the lock if it is free; otherwise `claim` takes it after registration. Raises OSError."""
        self.sweep()
        if self._is_free():
            self.claim()

    def claim(self) -> None:
        """Name this process as the newest plugin, and take the lock if it is free. Raises OSError."""
        try:
            self._write_name()
        except FileNotFoundError:  # removed by the sweep of another plugin that just started
            self._write_name()
        self.poll()

    def poll(self) -> None:
        """Take the lock if we are the newest plugin, or release it if another one is. Raises OSError."""
        newest = self._named()
        if self.holding:
            if newest != self._identity:
                log.info("another plugin on this node now publishes", extra={"newest": newest})
                self.release()
            return
        if newest == self._identity or self._free_polls >= ORPHANED_POLLS:
            if self._take():
                if newest != self._identity:
                    self._write_name()
                log.info("this plugin publishes the node's ResourceSlices", extra={"identity": self._identity})
                self._free_polls = 0
                self.changed.notify()
        else:
            self._free_polls = self._free_polls + 1 if self._is_free() else 0

    def _write_name(self) -> None:
        write_atomically(self._files, self._name, self._identity.encode(), 0o600)

    def sweep(self) -> None:
        """Remove temporary files of plugins that died while writing their name. Raises OSError."""
        sweep(self._files, self._name)

    def _named(self) -> str:
        """Return the newest plugin's name; the file is read only if it has changed."""
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
        """Release the lock, if we hold it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self.changed.notify()


class LockKeeper:
    """Takes the steps of a PublisherLock in a thread, in order, so that a disk that hangs stops nothing else."""

    def __init__(self, lock: PublisherLock) -> None:
        self._lock = lock
        self._disk = Worker("publisher lock")
        self._steps: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def claim(self) -> None:
        """Name this process as the newest plugin, and take the lock if it is free."""
        self._steps.put_nowait(self._lock.claim)

    def poll(self) -> None:
        """Take or release the lock, unless an earlier step is not done yet."""
        if self._steps.empty():
            self._steps.put_nowait(self._lock.poll)

    async def run(self) -> None:
        """Take the steps until cancelled; an error, such as that of a full disk, is logged."""
        await self._take(self._lock.begin)
        while True:
            await self._take(await self._steps.get())

    async def end(self) -> None:
        """Release the lock after the last step. If that does not end in time, the end of the process releases it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._take(self._lock.release)

    async def _take(self, step: Callable[[], None]) -> None:
        try:
            await self._disk.do(step)
        except OSError as err:
            log.warning("cannot take the publisher lock", extra={"error": str(err)})
