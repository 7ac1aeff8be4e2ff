"""Writing files so that a crash, a power cut or a full disk leaves the old bytes or the new ones."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from neuron_dra.node.files import Files, locked, replace, try_lock, write_atomically
from tests.support.faulty_files import (
    DISK_ERRORS,
    FaultyFiles,
    Moment,
    PowerCut,
    disk_error,
)

OLD, NEW = b"old" * 1000, b"new" * 2000
STEPS = range(1, 8)


def test_missing_file_is_none_and_folder_empty(short_path: Path) -> None:
    files = Files()
    assert files.read(short_path / "none") is None
    assert files.names(short_path / "none") == []
    assert files.remove(short_path / "none") is False


def test_file_mode_ignores_the_umask(short_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(Files(), short_path / "spec.json", NEW, 0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((short_path / "spec.json").stat().st_mode) == 0o644
    assert (short_path / "spec.json").read_bytes() == NEW


def test_overwrite_keeps_the_file_and_its_end(short_path: Path) -> None:
    path = short_path / "a"
    write_atomically(Files(), path, NEW, 0o600)
    before = path.stat()
    Files().overwrite(path, OLD)
    assert path.read_bytes() == OLD + NEW[len(OLD) :]
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Files().overwrite(path, OLD)


@pytest.mark.contract("P18")
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("step", STEPS)
def test_power_cut_leaves_old_or_new_bytes(short_path: Path, step: int, moment: Moment) -> None:
    path = short_path / "a"
    replace(Files(), path, OLD, 0o600, sync=True)
    files = FaultyFiles()
    files.fail(step, PowerCut(), moment)
    try:
        replace(files, path, NEW, 0o600, sync=True)
    except PowerCut:
        assert path.read_bytes() in (OLD, NEW)
    else:
        assert step > len(files.changes)
        assert path.read_bytes() == NEW


@pytest.mark.contract("P22")
@pytest.mark.parametrize("number", DISK_ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_disk_error_leaves_no_temporary_file(short_path: Path, step: int, number: int) -> None:
    path = short_path / "a"
    replace(Files(), path, OLD, 0o600, sync=True)
    files = FaultyFiles()
    files.fail(step, disk_error(number), Moment.HALF)
    try:
        replace(files, path, NEW, 0o600, sync=True)
    except OSError as err:
        assert err.errno == number
        assert path.read_bytes() == OLD
    assert set(os.listdir(short_path)) == {"a"}


@pytest.mark.contract("C2")
def test_a_reader_never_sees_half_a_file(short_path: Path) -> None:
    path = short_path / "a"
    write_atomically(Files(), path, OLD, 0o600)
    wrong: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if path.read_bytes() not in (OLD, NEW):
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(200):
        write_atomically(Files(), path, NEW if turn % 2 else OLD, 0o600)
    done.set()
    reader.join(120)
    assert not wrong


def test_lock_excludes_others_until_timeout(short_path: Path) -> None:
    path = short_path / "lock"
    with locked(path, timeout_s=120):
        with (
            pytest.raises(TimeoutError, match=r"locked by another process for more than 0\.1 s"),
            locked(path, timeout_s=0.1),
        ):
            pass
    with locked(path, timeout_s=0.1):
        pass


def _hold_and_die(path: str) -> None:
    with locked(Path(path), timeout_s=120):
        os._exit(9)


def test_lock_ends_with_its_process(short_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(str(short_path / "lock"),))
    child.start()
    child.join(120)
    assert child.exitcode == 9
    child.close()
    handle = os.open(short_path / "lock", os.O_RDWR)
    try:
        assert try_lock(handle)
    finally:
        os.close(handle)


def test_os_error_is_not_a_held_lock(short_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)), locked(short_path / "no" / "lock", timeout_s=1):
        pass


def test_held_change_waits_until_release(short_path: Path) -> None:
    files = FaultyFiles()
    files.hold(3)
    writer = threading.Thread(target=write_atomically, args=(files, short_path / "a", NEW, 0o600))
    writer.start()
    try:
        deadline = time.monotonic() + 120
        while not files.holding and time.monotonic() < deadline:
            time.sleep(0.01)
        assert files.changes == [*files.changes[:2], "rename a"]
        assert not (short_path / "a").exists()
    finally:
        files.release()
        writer.join(120)
    assert (short_path / "a").read_bytes() == NEW
    write_atomically(files, short_path / "a", OLD, 0o600)
    assert (short_path / "a").read_bytes() == OLD
