"""One cgroup per node, below one per test bed, in every controller, for cgroup v1 (or hybrid) and v2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from hack.bed.errors import BedError, NotPossibleHereError
from hack.bed.layout import Layout

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")  # the kubelet does not start without them


def is_v2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Return the mount points below which a cgroup must be created: one on v2, one per controller on v1."""
    if is_v2():
        return [ROOT]
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and Path(mount_point).parent == ROOT:  # cgroup2: the hybrid's
            found.append(Path(mount_point))
    return found


def check() -> None:
    """Raise NotPossibleHereError if a kubelet cannot run in this machine's cgroups."""
    if is_v2():
        available = (ROOT / "cgroup.controllers").read_text().split()
    else:
        controllers = [path for path in hierarchies() if os.access(path, os.W_OK)]
        available = [name for path in controllers for name in path.name.split(",")]
    missing = [name for name in NEEDED if name not in available]
    if missing:
        kind = "v2" if is_v2() else "v1"
        raise NotPossibleHereError(
            f"the kubelet needs the cgroup {kind} controllers {', '.join(missing)}, and {ROOT} does not offer them"
            " (writable); in a container, give it the host's cgroup namespace or delegate them"
        )


def kubelet_root(layout: Layout, node: str) -> str:
    """Return the kubelet's `cgroupRoot`."""
    return f"/{layout.name}/{node}"


def make(layout: Layout, node: str) -> None:
    """Create the cgroup of `node` in every hierarchy."""
    for hierarchy in hierarchies():
        own = hierarchy / layout.name
        for directory in (own, own / node):
            if is_v2():
                _enable_controllers(directory.parent)
            directory.mkdir(exist_ok=True)
            if "cpuset" in hierarchy.name.split(","):
                _copy_down(directory, ("cpuset.cpus", "cpuset.mems"))


def _enable_controllers(directory: Path) -> None:
    """Enable the controllers for the children of `directory` (v2)."""
    available = (directory / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in (*NEEDED, "io", "hugetlb") if name in available)
    try:
        (directory / "cgroup.subtree_control").write_text(wanted)
    except OSError as err:
        raise NotPossibleHereError(
            f"cannot enable cgroup v2 controllers in {directory} ({err}); processes in it prevent that if it is not the"
            " root of the hierarchy: run the test bed on the machine itself or in a container with --cgroupns=host"
        ) from err


def _copy_down(directory: Path, files: tuple[str, ...]) -> None:
    """Fill a new v1 cpuset, which is empty and accepts no process before that."""
    for name in files:
        if not (directory / name).read_text().strip():
            (directory / name).write_text((directory.parent / name).read_text())


def _directories(layout: Layout, node: str | None) -> Iterator[Path]:
    """Yield every cgroup of the test bed or of one of its nodes, children first."""
    for hierarchy in hierarchies():
        top = hierarchy / layout.name / (node or "")
        for path, _, _ in os.walk(top, topdown=False):
            yield Path(path)


def members(layout: Layout, node: str | None = None) -> set[int]:
    """Return the processes in the cgroups, which are those of the pods."""
    found: set[int] = set()
    for directory in _directories(layout, node):
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
    return found - {os.getpid()}


def remove(layout: Layout, node: str | None = None, timeout_s: float = 15) -> None:
    """Kill every process in the cgroups of `node` (all nodes if None) and remove the cgroups.

    Raises:
        BedError: a cgroup is left after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        for pid in members(layout, node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = []
        for directory in _directories(layout, node):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left.append(directory)
        if not left:
            return
        if time.monotonic() > deadline:
            raise BedError(f"cgroups cannot be removed: {', '.join(map(str, left[:5]))}")
        time.sleep(0.05)
