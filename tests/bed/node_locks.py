"""The nodes of a test bed that tests in several processes share."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any


class NodeLocks:
    """Nodes that tests in several processes share, one test at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: dict[str, Any] = {}

    def take(self, prefix: str) -> str:
        """Return the name of a free node of this kind; wait for other processes if none is free."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = next(f"{prefix}-{number}" for number in range(100) if f"{prefix}-{number}" not in self._held)
        lock = (self.directory / name).open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._held[name] = lock
        return name

    def release(self, name: str) -> None:
        self._held.pop(name).close()
