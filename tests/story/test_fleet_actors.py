"""The virtual fleet's actors: each acts as documented, a seed chooses the same ones again, and users can name them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.errors import ApiError
from tests.support.fleet.__main__ import main, named, summary
from tests.support.fleet.actors import ACTORS, chosen, table
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.mix import Mix, loudness
from tests.support.fleet.network import Ledger
from tests.support.fleet.run import run
from tests.support.fleet.safety import Violation
from tests.support.fleet.schedule import STEPS, Schedule

DOCS = Path(__file__).resolve().parents[2] / "docs" / "virtual-fleet.md"
TRIES = 8


def performing(name: str) -> Callable[[Fleet, int], Coroutine[Any, Any, None]]:
    """Return a run in which an actor makes each of its steps; violations do not matter."""

    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        for workload, size in (("a", 2), ("b", 1)):
            made = await fleet.submit(workload, size, 1)
            assert made is not None
            fleet.start_job(made)
        await fleet.settle("two workloads")
        await fleet.submit("waits", 4, 2)
        await fleet.sleep(5.0)
        for step in ACTORS[name].steps:
            did = None
            for _ in range(TRIES):
                with contextlib.suppress(ApiError):  # its target has changed
                    did = did or await step(schedule)
                if did is None:
                    await fleet.sleep(1.0)  # what it needs may come about
            fleet.trace(f"DID {step.__name__}: {did}")
        await schedule.heal()

    return drive


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name, actor in ACTORS.items() if actor.steps])
def test_an_actor_does_each_of_its_steps(name: str) -> None:
    """13, "first widen the net"."""
    outcome = run(1, drive=performing(name), actors={name})
    did = [line.split("DID ")[1] for line in outcome.trace if "DID " in line]
    if not outcome.violation:
        assert len(did) == len(ACTORS[name].steps)
    assert did
    assert not [text for text in did if text.endswith(": None")]


def test_seed_chooses_the_same_actors() -> None:
    found = [chosen(seed) for seed in range(200)]
    assert found == [chosen(seed) for seed in range(200)]
    assert frozenset.union(*found) == ACTORS.keys()
    assert len(set(found)) > 4


def test_named_actor_always_takes_part() -> None:
    quiet = next(seed for seed in range(100) if loudness(seed, "cordons") == 0)
    mix = Mix.of(quiet, {"cordons": ACTORS["cordons"]}, STEPS)
    assert dict(zip(mix.steps, mix.weights, strict=True)) == {**STEPS, **ACTORS["cordons"].steps}


def test_actors_can_be_named() -> None:
    assert named("all") == frozenset(ACTORS)
    assert named("none") == frozenset()
    assert named("outages, back-off") == {"outages", "back-off"}


def test_unknown_actor_is_named_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--actors", "outages,gremlins"])
    assert "there is no gremlins" in capsys.readouterr().err


def test_a_replay_of_named_actors_names_them() -> None:
    async def fail(fleet: Fleet, steps: int) -> None:
        raise Violation(f"seen by {', '.join(sorted(fleet.actors))}")

    outcome = run(3, steps=4, drive=fail, actors={"outages", "tenants"})
    assert summary(outcome, 2, 4, {"outages", "tenants"}).splitlines() == [
        f"seed 3: 0 s simulated in {outcome.took_s:.2f} s, VIOLATED: seen by outages, tenants",
        "replay: python -m tests.support.fleet --seed 3 --ultraservers 2 --steps 4 --actors outages,tenants",
    ]


def test_ledger_finds_thirteenth_ineffective_write() -> None:
    ledger = Ledger()
    for number in range(12):
        ledger.refused(1, "controller-0", "PATCH /x", "no", number * 50.0)
        ledger.refused(1, "controller-0", "PATCH /y", "no", number * 60.0)
    ledger.refused(1, "controller-0", "PATCH /y", "no", 720.0)
    assert ledger.found == []
    ledger.refused(1, "controller-0", "PATCH /x", "no", 599.0)
    assert ledger.found == ["controller-0 tried 13 times in 599 s to PATCH /x: no"]


def test_the_documentation_lists_every_actor() -> None:
    assert "\n".join(table()) in DOCS.read_text()
