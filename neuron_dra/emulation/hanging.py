"""Simulates hangs: a file whose reads block until it is released, and a process that is stopped for a while.

hang(node.folder(3) / "reset")      # as sysfs reads do while the kernel driver waits for a device
release(node.folder(3) / "reset")   # blocked reads return no bytes; later reads succeed
with stopped(pid): ...
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

STOP_S: Final = 10.0  # limit for a signal to stop a process


def hang(path: Path) -> None:
    """Block all readers of this file: replace it with a FIFO that has no writer. The file is never absent.

    Does nothing if the file already hangs.
    """
    if _kept(path).exists():
        return
    fifo = path.with_name(f".{path.name}.fifo")
    os.mkfifo(fifo)
    fifo.chmod(stat.S_IMODE(path.stat().st_mode))
    os.link(path, _kept(path))
    os.rename(fifo, path)


def release(path: Path) -> None:
    """Restore the file and end blocked reads. Does nothing if the file does not hang."""
    if not _kept(path).exists():
        return
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # blocked readers reach the end of file when this writer closes
    os.rename(_kept(path), path)
    os.close(writer)


def _kept(path: Path) -> Path:
    return path.with_name(f".{path.name}.kept")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Suspend a process until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + STOP_S
        while _state(pid)[0] not in "TtXZ" and time.monotonic() < until:
            time.sleep(0.005)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the process was killed while it was stopped
            os.kill(pid, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """Return the ids of a process's running children (Linux)."""
    child_pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended since the folder was listed
                state, parent = _state(int(folder.name))
                if parent == pid and state != "Z":
                    child_pids.append(int(folder.name))
    return sorted(child_pids)


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state letter from /proc, and its parent's id. Raises OSError."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)
