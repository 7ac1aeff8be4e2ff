"""Seeds of the virtual fleet: no actions of users and no faults violate an invariant."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.fleet.__main__ import STEPS, ULTRASERVERS, summary
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.mishaps import BEFORE_START
from tests.support.fleet.run import replay_command, run
from tests.support.fleet.safety import Violation

AT_ONCE = 10


def violated(seeds: range, ultraservers: int = ULTRASERVERS) -> list[str]:
    """Run the seeds; return a report on each failure, with the end of its trace."""
    found = []
    for seed in seeds:
        outcome = run(seed, ultraservers=ultraservers, steps=STEPS)
        if outcome.violation:
            found.append("\n".join((*outcome.trace[-40:], summary(outcome, ultraservers, STEPS))))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1, 21, AT_ONCE))
def test_no_invariant_is_violated(first: int) -> None:
    assert violated(range(first, first + AT_ONCE)) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1001, 2001, 50))
def test_invariants_hold_in_a_thousand_runs(first: int) -> None:
    assert violated(range(first, first + 50), ultraservers=2 + first // 50 % 3) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pods_that_are_deleted_before_their_volumes_attach_leave_nothing() -> None:
    """(4.04) Two hundred of them; nodes are replaced, and plugins end, meanwhile."""
    number, deleted = 0, 0
    while deleted < 200:
        number += 1
        outcome = run(number, ultraservers=ULTRASERVERS, steps=STEPS, actors=frozenset({"late-volumes"}))
        assert not outcome.violation, summary(outcome, ULTRASERVERS, STEPS, {"late-volumes"})
        deleted += sum(BEFORE_START in line for line in outcome.trace)
        assert number < 400


def test_seed_repeats_its_run() -> None:
    one, two = (run(5, ultraservers=ULTRASERVERS, steps=8) for _ in range(2))
    assert one.trace == two.trace


def test_violation_prints_the_replay_command() -> None:
    async def fail(fleet: Fleet, steps: int) -> None:
        raise Violation("a pig flew by")

    outcome = run(3, steps=4, drive=fail)
    assert outcome.violation == "a pig flew by"
    assert summary(outcome, 2, 4).splitlines()[-1] == (
        "replay: python -m tests.support.fleet --seed 3 --ultraservers 2 --steps 4"
    )


def test_printed_command_replays_the_run() -> None:
    outcome = run(3, ultraservers=2, steps=4)
    command = replay_command(3, 2, 4).split()
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    shown = subprocess.run(
        [sys.executable, *command[1:]], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.splitlines()[:-1] == list(outcome.trace)
