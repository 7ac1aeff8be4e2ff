"""The test bed's `down` waits for processes that it has ended: until then their mounts are busy (14.16)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed import lifecycle
from hack.bed.errors import BedError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may mount a file system"
)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "memory"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


def test_briefly_busy_mount_is_retried(mounted: Path) -> None:
    with subprocess.Popen(["sh", "-c", "echo; sleep 0.7"], cwd=mounted, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        lifecycle.unmount(str(mounted))
        assert not mounted.is_mount()
        assert holder.wait(120) == 0


def test_busy_mount_error_names_its_users(mounted: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], cwd=mounted) as holder:
        try:
            with pytest.raises(BedError, match=rf"target is busy.*; held by: .*sleep \({holder.pid}\)"):
                lifecycle.unmount(str(mounted), timeout_s=0.3)
        finally:
            holder.kill()


def test_unmounted_path_is_done(mounted: Path) -> None:
    lifecycle.unmount(str(mounted))
    lifecycle.unmount(str(mounted))
