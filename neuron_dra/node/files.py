"""All file writes of this program: every durable write is a sequence of the operations below.

A write survives the end of the process immediately. It survives a power cut once it was flushed: `sync_file` flushes a
file's bytes, and `sync_folder` its name. Only these two wait for the disk.

Tests inject crashes, power cuts and full disks with a subclass of `Files`. Another test makes sure that no other module
writes files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

Stamp = tuple[int, int, int, int]
"""A file's inode, size, time of writing and time of change."""


class Files:
    """File operations. Each succeeds or raises OSError."""

    def read(self, path: Path) -> bytes | None:
        """Return a file's bytes, or None if there is no such file."""
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def stamp(self, path: Path) -> Stamp | None:
        """Return a value that changes when the file is replaced or written; None if there is no such file."""
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; a missing folder is empty."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, folder: Path, mode: int) -> None:
        """Create a folder and its parents; one that exists is left as it is."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent, 0o755)
        folder.mkdir(mode=mode, exist_ok=True)

    def write(self, path: Path, data: bytes, mode: int) -> None:
        """Write a new or existing file. Not atomic: `replace` is."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.fchmod(handle, mode)
            _write_all(handle, data)
        finally:
            os.close(handle)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Write the first bytes of an existing file in place. Not atomic, and needs no space on the disk."""
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(handle, data)
        finally:
            os.close(handle)

    def sync_file(self, path: Path) -> None:
        """Flush a file's bytes to the disk; an earlier failure to write them is an error too."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; replace the target."""
        os.rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        """Flush a folder's entries to the disk."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> bool:
        """Remove a file; return False if there was none."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, folder: Path) -> bool:
        """Remove an empty folder; return False if there was none."""
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return False
        return True


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


TEMPORARY_SUFFIX = ".tmp"


def write_atomically(files: Files, path: Path, data: bytes, mode: int) -> None:
    """Replace `path` with `data`: readers, also after a power cut, see either the old bytes or the new ones.

    Raises OSError.
    """
    replace(files, path, data, mode, sync=True)
    files.sync_folder(path.parent)


def replace(files: Files, path: Path, data: bytes, mode: int, *, sync: bool = False) -> None:
    """Replace `path` with `data`: readers, also after the end of this process, see the old bytes or the new ones.

    With `sync` the bytes are flushed before they get their name; the name is not. Raises OSError, and `path` is then
    unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        files.write(temporary, data, mode)
        if sync:
            files.sync_file(temporary)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is raised; a later sweep removes the file
            files.remove(temporary)
        raise


def make_durable_folder(files: Files, folder: Path, mode: int) -> None:
    """Create a folder and its parents, so that they survive a power cut. Raises OSError."""
    if folder.is_dir():
        return
    make_durable_folder(files, folder.parent, 0o755)
    files.make_folder(folder, mode)
    files.sync_folder(folder.parent)


def sweep(files: Files, path: Path) -> None:
    """Remove the temporary files of processes that died while they replaced `path`. Raises OSError."""
    for name in files.names(path.parent):
        if name.startswith(f".{path.name}.") and name.endswith(TEMPORARY_SUFFIX):
            files.remove(path.with_name(name))


LOCK_POLL_S = 0.02


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path`, also against other processes. Blocks the calling thread.

    Raises TimeoutError. The lock is released when its process ends, even by a crash.
    """
    handle = _locked_handle(path, time.monotonic() + timeout_s, timeout_s)
    try:
        yield
    finally:
        os.close(handle)


def _locked_handle(path: Path, deadline: float, timeout_s: float) -> int:
    """Return an open file that has the lock, and that is the file which `path` names. Raises TimeoutError, OSError."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not try_lock(handle):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} is locked by another process for more than {timeout_s:g} s")
                time.sleep(LOCK_POLL_S)
            # The folder may have been emptied meanwhile. Another process then has a lock on the new file of this name.
            if _is_named(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_named(handle: int, path: Path) -> bool:
    """Return whether `path` is the name of an open file."""
    try:
        path_stat = os.stat(path)
    except FileNotFoundError:
        return False
    handle_stat = os.fstat(handle)
    return (path_stat.st_dev, path_stat.st_ino) == (handle_stat.st_dev, handle_stat.st_ino)


def try_lock(handle: int) -> bool:
    """Take an exclusive lock on an open file; return False if another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
