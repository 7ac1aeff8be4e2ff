"""The benchmarks on a real API server leave no process behind (16, acceptance 3)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack" / "testbed"))

from bed import processes

HACK = Path(__file__).resolve().parents[2] / "hack"
PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import bench_api
from bed import layout, processes, state

folder = Path(sys.argv[2])
where = layout.Layout(folder.name, False, folder, folder)
with bench_api.nothing_left(where):
    processes.Processes(where, state.load(where)).start("sleeper", ["sleep", "1000"])
    print("started", flush=True)
    if sys.argv[3] == "an error":
        raise RuntimeError("the benchmark failed")
    asyncio.run(asyncio.sleep(1000))
"""


@pytest.mark.parametrize(("how", "code"), [("an error", 1), ("SIGTERM", 143)])
def test_nothing_of_a_benchmark_is_left(how: str, code: int, tmp_path: Path) -> None:
    """(16, acceptance 3): a benchmark that failed, or was ended, left etcd and the API server behind."""
    folder = tmp_path / "neuron-dra-bench-of-a-test"
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(HACK), str(folder), how]
    benchmark = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
