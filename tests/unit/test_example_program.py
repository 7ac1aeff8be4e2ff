"""18.2. The program of deploy/examples/programs/all-reduce.yaml, as processes on the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fast_yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy/examples/programs/all-reduce.yaml"
RANKS = 3
TIMEOUT_S = 120


class Job:
    """The processes of a job; each writes to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "all_reduce.py"
        self.program.write_text(fast_yaml.load(EXAMPLE.read_text())["data"][self.program.name])
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self, rank: int, name: str, rounds: int, pause: float = 0.05, address: str = "127.0.0.1"
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ROUNDS": str(rounds), "PAUSE": f"{pause}", "PORT": str(self.port)}
        with (self.folder / name).open("wb") as log:
            words = [sys.executable, str(self.program), str(rank), str(RANKS), address]
            self.running.append(subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return self.running[-1]

    def said(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()

    def ends(self) -> set[int]:
        return {process.wait(TIMEOUT_S) for process in self.running}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path)
    yield found
    for process in found.running:
        process.kill()
        process.wait()


def test_ranks_meet_and_check_the_sums(job: Job) -> None:
    """(18.2)"""
    for rank in range(RANKS):
        job.start(rank, f"{rank}", rounds=3)
    assert job.ends() == {0}
    assert job.said("0") == [
        "rank 0 of 3: all ranks are here, after 0 rounds",
        *(f"rank 0 of 3: round {number}: the sum is {6 * number}" for number in (1, 2, 3)),
        "rank 0 of 3: finished 3 rounds",
    ]
    assert [job.said(name)[-1] for name in ("1", "2")] == [f"rank {rank} of 3: finished 3 rounds" for rank in (1, 2)]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")
def test_ranks_meet_at_an_ipv6_address(job: Job) -> None:
    for rank in range(RANKS):
        job.start(rank, f"{rank}", rounds=3, address="::1")
    assert job.ends() == {0}
    assert "rank 1 of 3: connected to ::1, after 0 rounds" in job.said("1")


def restart_rank_0_after_a_round(job: Job, rounds: int) -> None:
    """Start the ranks, kill rank 0 in its pause after the first round, and start it again, as `second`."""
    first = job.start(0, "first", rounds=rounds, pause=3600)
    for rank in (1, 2):
        job.start(rank, f"{rank}", rounds=rounds)
    while not any(": round 1:" in line for line in job.said("first")):
        assert first.poll() is None, job.said("first")
        time.sleep(0.05)
    first.kill()
    first.wait()
    job.running.remove(first)
    job.start(0, "second", rounds=rounds)


def test_a_job_goes_on_where_it_was_when_rank_0_restarts(job: Job) -> None:
    """(18.2)"""
    restart_rank_0_after_a_round(job, rounds=12)
    assert job.ends() == {0}
    assert "rank 0 of 3: all ranks are here, after 1 rounds" in job.said("second")
    assert [job.said(name)[-1] for name in ("1", "2")] == [f"rank {rank} of 3: finished 12 rounds" for rank in (1, 2)]


def test_rank_0_may_restart_after_the_last_round(job: Job) -> None:
    """A rank that had ended by then would not come back, and rank 0 would wait for it for ever."""
    restart_rank_0_after_a_round(job, rounds=1)
    assert job.ends() == {0}
    assert job.said("second")[-1] == "rank 0 of 3: finished 1 rounds"


def test_a_wrong_sum_ends_the_job(job: Job) -> None:
    """(18.2)"""
    job.program.write_text(job.program.read_text().replace("(RANK + 1) * (number + 1)", "(RANK + 2) * (number + 1)"))
    job.start(0, "0", rounds=3)
    for rank in (1, 2):
        job.start(rank, f"{rank}", rounds=3)
    job.running[0].wait(TIMEOUT_S)
    assert job.running[0].returncode == 1
    assert job.said("0")[-1] == "rank 0: round 1: the sum is 9.0, not 6.0"
