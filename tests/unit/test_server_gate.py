"""Known-bad releases of Kubernetes, and the gate that an API server's answers open and close (32.1)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from neuron_dra.core import releases, server_gate
from neuron_dra.core.releases import OLDEST_FOR_SETS
from neuron_dra.core.server_gate import Gate, GateTiming

TIMING = GateTiming(ask_s=300.0, retry_s=60.0, closed_s=600.0)
GOOD, BAD = "v1.36.3", "v1.36.1-eks-4"


def walked(answers: Sequence[str | None], *, is_plain: bool) -> tuple[Gate, list[float]]:
    """Return the gate after these answers, each at the time for which it asks, and those times."""
    gate, times = Gate(), []
    for answer in answers:
        times.append(gate.ask_at)
        gate = server_gate.answered(gate, gate.ask_at, answer, OLDEST_FOR_SETS, is_plain=is_plain, timing=TIMING)
    return gate, times


@pytest.mark.parametrize(
    ("version", "issues"),
    [
        ("v1.36.0", [138882, 140436]),
        ("v1.36.1-eks-1234", [138882, 140436]),
        ("v1.36.2+k3s1", [140436]),
        ("v1.36.3-rc.0", [140436]),
    ],
)
def test_releases_that_go_wrong_are_named_with_upstreams_numbers(version: str, issues: list[int]) -> None:
    why = releases.why_no_sets(version)
    assert why.startswith(f"the API server is {version}; connected sets need 1.36.3 or later: ")
    assert [number for number in (138882, 140436, 140434) if f"kubernetes/kubernetes#{number}" in why] == issues


@pytest.mark.parametrize("version", ["v1.36.3", "v1.36.4-eks-1", "1.37.0", "v1.38.0-alpha.1"])
def test_later_releases_may_have_sets(version: str) -> None:
    assert releases.why_no_sets(version) == ""


def test_a_backport_is_good_where_the_setting_says_so() -> None:
    assert releases.why_no_sets("v1.36.1-vendor.2", (1, 36, 1)) == ""
    assert "1.36.1 or later" in releases.why_no_sets("v1.36.0", (1, 36, 1))


def test_releases_without_counters_and_texts_without_a_version_have_no_sets() -> None:
    assert "older ones keep no shared counters" in releases.why_no_sets("v1.35.9")
    assert "is not one of Kubernetes" in releases.why_no_sets("devel")


def test_three_good_answers_at_once_open_it_on_a_fresh_node() -> None:
    gate, times = walked([GOOD] * 3, is_plain=False)
    assert (gate.is_open, times) == (True, [0, 0, 0])
    assert gate.ask_at == 300


def test_a_node_with_plain_slices_waits_between_answers() -> None:
    gate, times = walked([GOOD] * 3, is_plain=True)
    assert (gate.is_open, times) == (True, [0, 300, 600])


def test_one_bad_answer_closes_it_for_ten_minutes() -> None:
    gate, times = walked([GOOD] * 3 + [BAD], is_plain=False)
    assert (gate.is_open, times[-1]) == (False, 300)
    assert "#138882" in gate.reason
    gate, times = walked([GOOD] * 3 + [BAD] + [GOOD] * 3, is_plain=False)
    assert (gate.is_open, times[-1]) == (True, 1200)  # 300 + 3 * 300: never three at once after a bad one
    assert not walked([GOOD] * 3 + [BAD] + [GOOD] * 2, is_plain=False)[0].is_open


@pytest.mark.parametrize("opened", [True, False])
def test_no_answer_changes_nothing(opened: bool) -> None:
    before, _ = walked([GOOD] * 3 if opened else [GOOD, BAD], is_plain=True)
    for answer in (None, "devel"):
        after = server_gate.answered(before, 1000, answer, OLDEST_FOR_SETS, is_plain=True, timing=TIMING)
        assert (after.is_open, after.reason, after.ask_at) == (before.is_open, before.reason, 1060)


@pytest.mark.parametrize("is_plain", [True, False])
def test_answers_that_alternate_for_ever_never_open_it(is_plain: bool) -> None:
    for first in ([GOOD, BAD], [BAD, GOOD], [GOOD, GOOD, BAD]):
        for number in range(1, 50):
            answers: list[str | None] = list(itertools.islice(itertools.cycle(first), number))
            assert not walked(answers, is_plain=is_plain)[0].is_open


def test_random_answers_open_it_only_after_three_good_ones_and_a_quiet_time() -> None:
    chance = random.Random(32)
    for _ in range(300):
        gate, good, closed_until = Gate(), 0, 0.0
        for _ in range(40):
            now, answer = gate.ask_at, chance.choice([GOOD, GOOD, GOOD, BAD, None])
            gate = server_gate.answered(gate, now, answer, OLDEST_FOR_SETS, is_plain=True, timing=TIMING)
            if answer == BAD:
                good, closed_until = 0, now + 600
            good += answer == GOOD
            assert gate.is_open is (good >= 3 and (now >= closed_until))
            assert gate.ask_at > now
