"""Files that fail on request: a full disk, a read-only one, a late one, a power cut, at any single operation.

files = FaultyFiles()
files.fail(3, PowerCut())            # the third change to the disk from now on does not happen
files.fail(3, PowerCut(), Moment.AFTER)
files.hold(3)                        # the third change waits, as on a disk that is slow to answer, until let_go()
"""

from __future__ import annotations

import enum
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from neuron_dra.node.files import Files


class PowerCut(BaseException):
    """The process is gone at this point: no handler of it runs, save what the system does for a dead process."""


class Moment(enum.Enum):
    BEFORE = "before"  # the operation does not happen
    HALF = "half"  # a write leaves half of its bytes; for other operations the same as BEFORE
    AFTER = "after"  # the operation happens, and the caller does not learn of it


def disk_error(number: int) -> OSError:
    """Return the error of a disk that is full (ENOSPC), read-only (EROFS), or broken (EIO)."""
    return OSError(number, os.strerror(number))


LONGEST_HOLD_S: Final = 60.0  # a test that forgets to let go ends all the same
DISK_ERRORS: Final = (errno.ENOSPC, errno.EROFS, errno.EIO)


class FaultyFiles(Files):
    """Counts every change to the disk, and fails at those it is told to."""

    def __init__(self) -> None:
        self.changes: list[str] = []  # what was done or tried, such as "rename checkpoint.json"
        self._at: int | None = None
        self._last: int | None = None
        self._error: BaseException = PowerCut()
        self._moment = Moment.BEFORE
        self._held_at: int | None = None
        self._open = threading.Event()
        self.holding = False  # a change waits now

    def fail(self, nth: int, error: BaseException, moment: Moment = Moment.BEFORE, *, times: int | None = 1) -> None:
        """Fail at the `nth` change from now on (from 1), and at the `times` - 1 after it; None: for ever."""
        self._at = len(self.changes) + nth
        self._last = None if times is None else self._at + times - 1
        self._error, self._moment = error, moment

    def hold(self, nth: int) -> None:
        """Let the `nth` change from now on (from 1) wait until `let_go()`; then it happens. It blocks its thread."""
        self._open.clear()
        self._held_at = len(self.changes) + nth

    def let_go(self) -> None:
        """Let the change that waits happen, and none wait any more."""
        self._held_at = None
        self._open.set()

    def heal(self) -> None:
        """Work from now on."""
        self._at = None

    def make_folder(self, folder: Path, mode: int) -> None:
        if folder.is_dir():
            return  # nothing changes, and a full disk does not mind
        self._change("make_folder", folder, lambda: super(FaultyFiles, self).make_folder(folder, mode))

    def write(self, path: Path, data: bytes, mode: int) -> None:
        half = lambda: super(FaultyFiles, self).write(path, data[: len(data) // 2], mode)  # noqa: E731
        self._change("write", path, lambda: super(FaultyFiles, self).write(path, data, mode), half)

    def link(self, existing: Path, new: Path) -> None:
        self._change("link", new, lambda: super(FaultyFiles, self).link(existing, new))

    def rename(self, source: Path, target: Path) -> None:
        self._change("rename", target, lambda: super(FaultyFiles, self).rename(source, target))

    def sync_folder(self, folder: Path) -> None:
        self._change("sync_folder", folder, lambda: super(FaultyFiles, self).sync_folder(folder))

    def remove(self, path: Path) -> bool:
        return bool(self._change("remove", path, lambda: super(FaultyFiles, self).remove(path)))

    def _change(self, what: str, path: Path, act: Callable[[], Any], act_half: Callable[[], Any] = lambda: None) -> Any:
        self.changes.append(f"{what} {path.name}")
        number = len(self.changes)
        if number == self._held_at:
            self.holding = True
            self._open.wait(LONGEST_HOLD_S)
            self.holding = False
        if self._at is None or number < self._at or (self._last is not None and number > self._last):
            return act()
        if self._moment is Moment.AFTER:
            act()
        elif self._moment is Moment.HALF:
            act_half()
        raise self._error
