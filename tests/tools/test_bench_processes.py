"""The benchmarks on a real API server leave no process behind (16, acceptance 3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.bed import processes

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, sys
from pathlib import Path
from hack.bench import api as bench_api
from hack.bed import layout, processes, state

folder = Path(sys.argv[1])
where = layout.Layout(folder.name, False, folder, folder)
with bench_api.nothing_left(where):
    processes.Processes(where, state.load(where)).start("sleeper", ["sleep", "1000"])
    print("started", flush=True)
    if sys.argv[2] == "an error":
        raise RuntimeError("the benchmark failed")
    asyncio.run(asyncio.sleep(1000))
"""


@pytest.mark.parametrize(("how", "code"), [("an error", 1), ("SIGTERM", 143)])
def test_nothing_of_a_benchmark_is_left(how: str, code: int, tmp_path: Path) -> None:
    """(16, acceptance 3): a benchmark that failed, or was ended, left etcd and the API server behind."""
    # The name marks the processes, and another worker may run the other case now.
    folder = tmp_path / f"neuron-dra-bench-of-{os.getpid()}"
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(folder), how]
    benchmark = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert benchmark.stdout is not None
    try:
        assert benchmark.stdout.readline() == "started\n"
        if how == "SIGTERM":
            assert len(processes.marked(folder.name)) == 1
            benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(60) == code
        assert processes.marked(folder.name) == []
        assert not folder.exists()
    finally:
        benchmark.kill()
        benchmark.stdout.close()
        processes.end(processes.marked(folder.name), signal.SIGKILL, 10)
