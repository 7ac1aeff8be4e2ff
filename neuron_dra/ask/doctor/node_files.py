"""Reads files and folders of a node, and writes nothing. Its functions block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RUNTIMES: Final = ("/etc/containerd/config.toml", "/etc/crio/crio.conf")
_LARGEST: Final = 64 * 1024 * 1024


def read(path: Path) -> bytes | None:
    """Return the contents of a file, None if there is none. Raises OSError."""
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        return None


def names(folder: Path) -> list[str]:
    """Return the names in a folder, none if it does not exist. Raises OSError."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def why_not_writable(folder: Path) -> str:
    """Return why no file can be created in a folder; empty if nothing speaks against it. No file is written."""
    if not folder.is_dir():
        return f"the folder {folder} does not exist here"
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        return f"{folder} is mounted read-only"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not writable for uid {os.geteuid()}"
    if disk.f_blocks and disk.f_bavail == 0:
        return f"the disk with {folder} is full"
    if disk.f_files and disk.f_favail == 0:
        return f"the disk with {folder} has no inode left"
    return ""


def runtime_config() -> str:
    """Return the runtime's configuration, if this container sees it; empty if not."""
    for name in RUNTIMES:
        try:
            return (read(Path(name)) or b"").decode(errors="replace")
        except OSError:
            continue
    return ""
