"""Files that fail on request: a full, read-only or slow disk, or a power cut, at any single operation.

files = FaultyFiles()
files.fail(3, PowerCut())            # the third change from now on does not happen
files.fail(3, PowerCut(), Moment.AFTER)
files.hold(3)                        # the third change waits until release(), as on a slow disk
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
    """The process ends at this point: its handlers do not run, only the system's cleanup."""


class Moment(enum.Enum):
    BEFORE = "before"  # the operation does not happen
    HALF = "half"  # a write leaves half of its bytes; for other operations the same as BEFORE
    AFTER = "after"  # the operation happens, but the caller gets no result


def disk_error(number: int) -> OSError:
    """Return the error of a disk that is full (ENOSPC), read-only (EROFS), or broken (EIO)."""
    return OSError(number, os.strerror(number))


LONGEST_HOLD_S: Final = 60.0  # limit, for a test that does not call release()
DISK_ERRORS: Final = (errno.ENOSPC, errno.EROFS, errno.EIO)


class FaultyFiles(Files):
    """Counts each change to the disk, and fails at the chosen ones."""

    def __init__(self) -> None:
        self.changes: list[str] = []  # operations, failed ones too, such as "rename boot.json"
        self._at: int | None = None
        self._last: int | None = None
        self._error: BaseException = PowerCut()
        self._moment = Moment.BEFORE
        self._held_at: int | None = None
        self._open = threading.Event()
        self.holding = False  # set while a change waits

    def fail(self, nth: int, error: BaseException, moment: Moment = Moment.BEFORE, *, times: int | None = 1) -> None:
        """Fail at the `nth` change from now on (from 1) and the `times` - 1 after it; None: at all after it."""
        self._at = len(self.changes) + nth
        self._last = None if times is None else self._at + times - 1
        self._error, self._moment = error, moment

    def hold(self, nth: int) -> None:
        """Block the thread of the `nth` change from now on (from 1) until `release()`; then the change happens."""
        self._open.clear()
        self._held_at = len(self.changes) + nth

    def release(self) -> None:
        """Let the waiting change happen, and block no other."""
        self._held_at = None
        self._open.set()

    def heal(self) -> None:
        """Stop failing."""
        self._at = None

    def make_folder(self, folder: Path, mode: int) -> None:
        if folder.is_dir():
            return  # no change, so it succeeds even on a full disk
        self._change("make_folder", folder, lambda: super(FaultyFiles, self).make_folder(folder, mode))

    def write(self, path: Path, data: bytes, mode: int) -> None:
        half = lambda: super(FaultyFiles, self).write(path, data[: len(data) // 2], mode)  # noqa: E731
        self._change("write", path, lambda: super(FaultyFiles, self).write(path, data, mode), half)

    def overwrite(self, path: Path, data: bytes) -> None:
        half = lambda: super(FaultyFiles, self).overwrite(path, data[: len(data) // 2])  # noqa: E731
        name = path.with_name(path.stem)  # which of the two slots is written depends on all writes before
        self._change("overwrite", name, lambda: super(FaultyFiles, self).overwrite(path, data), half)

    def rename(self, source: Path, target: Path) -> None:
        self._change("rename", target, lambda: super(FaultyFiles, self).rename(source, target))

    def sync_file(self, path: Path) -> None:
        self._change("sync_file", path, lambda: super(FaultyFiles, self).sync_file(path))

    def sync_folder(self, folder: Path) -> None:
        self._change("sync_folder", folder, lambda: super(FaultyFiles, self).sync_folder(folder))

    def remove(self, path: Path) -> bool:
        return bool(self._change("remove", path, lambda: super(FaultyFiles, self).remove(path)))

    def remove_folder(self, folder: Path) -> bool:
        return bool(self._change("remove_folder", folder, lambda: super(FaultyFiles, self).remove_folder(folder)))

    def _change(self, what: str, path: Path, act: Callable[[], Any], act_half: Callable[[], Any] = lambda: None) -> Any:
        self.changes.append(f"{what} {path.name}")
        number = len(self.changes)
        if number == self._held_at:
            self.holding = True
            if not self._open.wait(LONGEST_HOLD_S):
                raise AssertionError(f"{what} {path.name} waited {LONGEST_HOLD_S:g} s for release()")
            self.holding = False
        if self._at is None or number < self._at or (self._last is not None and number > self._last):
            return act()
        if self._moment is Moment.AFTER:
            act()
        elif self._moment is Moment.HALF:
            act_half()
        raise self._error
