"""The places of the drivers' files: a disk whose flushes are slow, memory, and an XFS file system."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hack.bench.drivers import Place

FLUSHES = "fsync,fdatasync,sync_file_range,syncfs"
XFS_MIB = 512
PROBE = """
import os, sys, time
handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in range(50):
    os.write(handle, b"x")
    began = time.perf_counter()
    os.fsync(handle)
    print(time.perf_counter() - began)
"""


def slow_disk(root: Path, delay_ms: float) -> Place | None:
    """Return a place where each flush takes this much longer; None, with the reason on standard error, without strace.

    strace stops the processes at these system calls only. Unlike a preloaded library it also sees those of Go, which
    makes them itself.
    """
    if shutil.which("strace") is None:
        print("the slow disk is left out: no strace on the PATH", file=sys.stderr)
        return None
    inject = f"inject={FLUSHES}:delay_exit={round(delay_ms * 1000)}"
    # -D: the driver stays the child of this process.
    under = ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={FLUSHES}", "-e", inject)
    files = root / "slow"
    files.mkdir(exist_ok=True)
    return Place("slow", files, under=under)


def flush_ms(place: Place) -> float:
    """Return the median time of a flush in a place, in milliseconds."""
    command = [*place.under, sys.executable, "-c", PROBE, str(place.files / "probe")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return statistics.median(map(float, done.stdout.split())) * 1000


@contextlib.contextmanager
def cdi_in_memory(root: Path) -> Iterator[Place | None]:
    """A place whose CDI files are in memory, as /var/run is on nodes; None, with the reason, without /dev/shm."""
    if not Path("/dev/shm").is_dir():
        print("CDI files in memory are left out: no /dev/shm", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-", dir="/dev/shm") as folder:
        yield Place("cdi-in-memory", root, cdi=Path(folder))


@contextlib.contextmanager
def on_xfs(root: Path) -> Iterator[Place | None]:
    """A place on an XFS file system in a file; None, with the reason on standard error, if that is not possible."""
    why = _why_no_xfs()
    if why:
        print(f"XFS is left out: {why}", file=sys.stderr)
        yield None
        return
    image, files = root / "xfs.img", root / "xfs"
    files.mkdir()
    with image.open("wb") as file:
        file.truncate(XFS_MIB * 2**20)
    subprocess.run(["mkfs.xfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(files)], check=True)
    try:
        yield Place("xfs", files)
    finally:
        subprocess.run(["umount", "--lazy", str(files)], check=False)


def _why_no_xfs() -> str:
    if os.geteuid() != 0:
        return "mounting needs root"
    if "xfs" not in Path("/proc/filesystems").read_text().split():
        return "the kernel does not have it"
    return "" if shutil.which("mkfs.xfs") else "no mkfs.xfs on the PATH (package xfsprogs)"
