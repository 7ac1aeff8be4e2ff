"""What never answers: a file whose reader waits, and a process that is stopped. Each can be let go.

hang(node.folder(3) / "reset")      # as a read of sysfs does while the kernel driver is stuck in a device
let_go(node.folder(3) / "reset")    # the reads that wait end empty, those to come are as before
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

STOP_S: Final = 10.0  # until a process that was sent a signal is stopped, on a busy machine


def hang(path: Path) -> None:
    """Let everybody who opens this file wait: a FIFO that nobody writes to takes its place."""
    mode = stat.S_IMODE(path.stat().st_mode)
    os.rename(path, _kept(path))
    os.mkfifo(path)
    path.chmod(mode)


def let_go(path: Path) -> None:
    """Put the file back, and end the reads that wait for it. A file that does not hang stays as it is."""
    if not _kept(path).exists():
        return
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # who waits for a writer has had one from here on
    os.rename(_kept(path), path)
    os.close(writer)


def _kept(path: Path) -> Path:
    return path.with_name(f".{path.name}.kept")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process, so that it lives and does nothing, until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + STOP_S
        while _state(pid)[0] not in "TtXZ" and time.monotonic() < until:
            time.sleep(0.005)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run (Linux)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = _state(int(folder.name))
                if parent == pid and state != "Z":
                    found.append(int(folder.name))
    return sorted(found)


def _state(pid: int) -> tuple[str, int]:
    """Return a process' state, as /proc spells it, and its parent. Raises OSError."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)
