"""Directories of a host that a container has as mounts, and that are removed, replaced or mounted over on the host.

    with hosting() as mounts:
        mounts.make(folder / "host" / "cdi")
        host.container = mounts.container({host.cdi: folder / "host" / "cdi"}, receives_mounts=True)
        process = await host.start_process("pod-1")
        mounts.remake(folder / "host" / "cdi")
        assert mounts.names(folder / "host" / "cdi") == []

The host is a mount namespace of its own, so that nothing is mounted on this machine. That needs root; without it,
`hosting` skips the test. What a program reads of its mounts needs none: `mountinfo`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.skipping import impossible

_SETUP_TIMEOUT_S: Final = 60.0


class Change(enum.Enum):
    """What somebody does to a directory on the host while containers have it as a mount."""

    NOTHING = "nothing"
    REMOVED = "removed"
    REMADE = "removed, and made again"
    RENAMED = "renamed, and made again"
    MOUNTED_OVER = "mounted over"


def mountinfo(directory: Path, mount_point: Path, change: Change, *, receives_mounts: bool) -> str:
    """Return the lines of /proc/self/mountinfo for one mount in a container after a change on its host.

    A mount over a directory does not show in a container that does not receive mounts.
    """
    root = {
        Change.REMOVED: f"{directory}//deleted",
        Change.REMADE: f"{directory}//deleted",
        Change.RENAMED: f"{directory}.old",
    }.get(change, str(directory))
    source = "master:1 " if receives_mounts else ""
    lines = [f"700 650 0:23 {root} {mount_point} rw,relatime {source}- tmpfs tmpfs rw"]
    if change is Change.MOUNTED_OVER and receives_mounts:
        lines.append(f"701 700 0:77 / {mount_point} rw,relatime {source}- tmpfs tmpfs rw")
    return "\n".join(lines) + "\n"


class HostMounts:
    """The mount namespace of a host."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._enter = ("nsenter", f"--mount=/proc/{pid}/ns/mnt", "--")

    def run(self, *command: str | Path) -> None:
        """Run a command on the host. Raises CalledProcessError."""
        subprocess.run([*self._enter, *command], check=True, timeout=_SETUP_TIMEOUT_S)

    def make(self, directory: Path) -> None:
        directory.mkdir(parents=True)

    def container(self, directories: Mapping[Path, Path], *, receives_mounts: bool) -> tuple[str, ...]:
        """Return the command that runs a program in a new container, with directories of the host by mount point.

        With `receives_mounts` it sees later mounts of the host in them, as with mountPropagation HostToContainer.
        """
        propagation = "slave" if receives_mounts else "private"
        mounts: list[str] = []
        for mount_point, directory in directories.items():
            mount_point.mkdir(parents=True, exist_ok=True)
            mounts += [str(directory), str(mount_point)]
        script = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 125; shift 2; done; shift; exec "$@"'
        unshare = ("unshare", "--mount", f"--propagation={propagation}")
        return (*self._enter, *unshare, "sh", "-c", script, "sh", *mounts, "--")

    def apply(self, change: Change, directory: Path) -> None:
        """Change a directory on the host."""
        match change:
            case Change.REMOVED:
                shutil.rmtree(directory)
            case Change.REMADE:
                shutil.rmtree(directory)
                directory.mkdir()
            case Change.RENAMED:
                directory.rename(directory.with_name(f"{directory.name}.old"))
                directory.mkdir()
            case Change.MOUNTED_OVER:
                self.run("mount", "-t", "tmpfs", "tmpfs", directory)

    def unmount(self, directory: Path) -> None:
        """End a mount over a directory."""
        self.run("umount", directory)

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory as the host sees it, and so its container runtime."""
        return sorted(os.listdir(f"/proc/{self._pid}/root{directory}"))


@contextlib.contextmanager
def hosting() -> Iterator[HostMounts]:
    """Make a host, until the end of the context. Skips the test where mount namespaces cannot be made."""
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("nsenter"):
        impossible("mount namespaces need Linux, with unshare and nsenter")
    script = "mount --make-rshared / && echo ready && exec sleep infinity"
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if process.stdout.readline() != "ready\n":
                impossible(f"mount namespaces need root: {process.stderr.read().strip()}")
            yield HostMounts(process.pid)
        finally:
            process.kill()
