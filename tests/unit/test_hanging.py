"""Simulated hangs: files that block their readers, and stopped processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

from neuron_dra.emulation import fake_node_command, simulated_node
from neuron_dra.emulation.hanging import (
    children,
    hang,
    release,
    stopped,
)

LONG_S = 30


def test_blocked_read_ends_on_release(tmp_path: Path) -> None:
    node = simulated_node.write(tmp_path, "trn1.2xlarge")
    path = tmp_path / simulated_node.CLASS / "neuron0" / "core_count"
    mode, text = stat.S_IMODE(path.stat().st_mode), path.read_text()
    hang(node.folder(0) / "core_count")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()), daemon=True)
    reader.start()
    reader.join(0.3)
    assert (reader.is_alive(), stat.S_IMODE(path.stat().st_mode)) == (True, mode)
    release(node.folder(0) / "core_count")
    reader.join(LONG_S)
    assert (read, path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ([""], text, mode)
    release(node.folder(0) / "core_count")
    assert path.read_text() == text


def test_file_is_never_absent_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "reset"
    path.write_text("1")
    absent, done = threading.Event(), threading.Event()

    def look() -> None:
        while not done.is_set():
            if not path.exists():
                absent.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(2000):
        hang(path)
        hang(path)
        release(path)
    done.set()
    watcher.join(LONG_S)
    assert (absent.is_set(), path.read_text(), os.listdir(tmp_path)) == (False, "1", ["reset"])


def test_command_hangs_and_releases_a_file(tmp_path: Path) -> None:
    node = simulated_node.write(tmp_path, "trn1.2xlarge")
    fake_node_command.apply(node, "hang:0", up=False)
    fake_node_command.apply(node, "hang:0,reset", up=False)
    names = ("core_count", "reset", "dev")
    assert [stat.S_ISFIFO(os.stat(node.folder(0) / name).st_mode) for name in names] == [True, True, False]
    fake_node_command.apply(node, "hang:0", up=True)
    fake_node_command.apply(node, "hang:0,reset", up=True)
    assert [(node.folder(0) / name).read_text() for name in names] == ["2", "1\n", "243:0\n"]


def test_stopped_process_resumes_after_the_block() -> None:
    code = "import sys; print(input(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.pid in children(os.getpid())
        with stopped(process.pid):
            process.stdin.write("hello\n")
            process.stdin.flush()
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert (state, process.poll()) == ("T", None)
        assert process.stdout.readline() == "hello\n"
    assert process.pid not in children(os.getpid())
