"""The program of deploy/examples/programs/checkpoint.yaml, as a process beside a real notice file (36, number 4)."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dra.core.notice import Notice, NoticeReason
from tests.support import fast_yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy/examples/programs/checkpoint.yaml"
TIMEOUT_S = 120
SAVED = 75


class Rank:
    """The processes of one rank, one after the other. Nobody sends them a signal."""

    def __init__(self, folder: Path) -> None:
        self.program, self.notice = folder / "checkpoint.py", folder / "notice.json"
        self.state, self.log = folder / "rank-0.json", folder / "log"
        self.program.write_text(fast_yaml.load(EXAMPLE.read_text())["data"][self.program.name])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, steps: int = 100_000) -> None:
        """Start the program."""
        more = {"NEURON_DRA_NOTICE_FILE": str(self.notice), "STATE": str(self.notice.parent), "STEPS": str(steps)}
        words = [sys.executable, str(self.program), "0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, env={**os.environ, **more, "PAUSE": "0.01"}, stdout=log, stderr=log)

    def tell(self, reason: NoticeReason, moment: datetime.datetime) -> None:
        """Write a notice as a node's plugin does: a rename over what was there."""
        new = self.notice.with_suffix(".new")
        new.write_bytes(Notice(reason.value, f"{moment:%Y-%m-%dT%H:%M:%SZ}").encode())
        new.replace(self.notice)

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def until(self, number: int) -> None:
        """Wait until the processes have written so many lines."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.said()) < number:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ends(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    found = Rank(tmp_path)
    yield found
    if found.process is not None:
        found.process.kill()
        found.process.wait()


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def test_program_that_must_move_saves_and_exits_and_goes_on_elsewhere(rank: Rank) -> None:
    rank.start()
    rank.until(1)
    rank.tell(NoticeReason.MIGRATING, now())
    assert rank.ends() == SAVED
    saved = int(fast_yaml.load(rank.state.read_text())["step"])
    assert rank.said() == ["rank 0: begins after step 0", f"rank 0: Migrating: step {saved} is saved"]

    rank.notice.unlink()
    rank.start(steps=saved + 3)
    assert rank.ends() == 0
    assert rank.said()[2:] == [f"rank 0: begins after step {saved}", f"rank 0: finished {saved + 3} steps"]


def test_program_goes_on_until_its_block_ends_and_saves_each_step(rank: Rank) -> None:
    rank.start()
    rank.until(1)
    rank.tell(NoticeReason.BLOCK_ENDS, now() + datetime.timedelta(minutes=30))
    deadline = time.monotonic() + TIMEOUT_S
    while not rank.state.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert rank.process is not None
    assert rank.process.poll() is None
    rank.tell(NoticeReason.BLOCK_ENDS, now() - datetime.timedelta(seconds=2))
    assert rank.ends() == SAVED
    assert "CapacityBlockEnds" in rank.said()[-1]


def test_program_on_nodes_that_are_to_be_left_waits(rank: Rank) -> None:
    rank.tell(NoticeReason.MIGRATING, now())
    rank.start(steps=2)
    rank.until(1)
    assert rank.process is not None
    assert rank.process.poll() is None
    assert not rank.state.exists()
    rank.notice.unlink()
    assert rank.ends() == 0
    assert rank.said() == [
        "rank 0: Migrating: waits until this notice goes away",
        "rank 0: begins after step 0",
        "rank 0: finished 2 steps",
    ]
