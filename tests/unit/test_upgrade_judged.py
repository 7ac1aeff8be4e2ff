"""`doctor --upgrade-to` against Kubernetes' own allocators of both releases, on random clusters (4.06)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hack.oracle import judge, upgrades
from hack.oracle.judge import CannotBuild, Oracle
from hack.oracle.upgrades import Judged

IS_LONG = bool(os.environ.get("NEURON_DRA_LONG"))
CASES = 500 if IS_LONG else 6


@pytest.fixture(params=upgrades.PAIRS, ids=lambda pair: f"{pair[0]}-to-{pair[1]}")
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    before, after = request.param
    return before, after


@pytest.fixture
def oracles(pair: tuple[str, str]) -> Iterator[dict[str, Oracle]]:
    """The allocators of both releases. NEURON_DRA_LONG=1 builds those that are not there, in minutes."""
    with ExitStack() as programs:
        running = {}
        for release in pair:
            try:
                running[release] = programs.enter_context(Oracle(judge.built(release, build_it=IS_LONG)))
            except CannotBuild as err:
                pytest.skip(str(err))
        yield running


@pytest.mark.timeout(1800, func_only=True)
def test_allocators_of_both_releases_agree(pair: tuple[str, str], oracles: dict[str, Oracle]) -> None:
    total = Judged()
    for number in range(1, CASES + 1):
        total.add(upgrades.judge(number, pair, oracles))
    assert total.wrong == []
    assert total.pods > total.skipped * 2
    assert total.placed > CASES
    assert total.changed or not IS_LONG or pair[0] == "1.36.3"
