"""What `make night ONLY=faults` makes of the outcomes of its cases."""

from __future__ import annotations

from typing import Any

from hack.reports import causes


def outcome(seed: int, *situations: str, verdict: str = "true", useless: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "seed": seed,
        "situations": list(situations),
        "true": list(situations),
        "verdict": verdict,
        "code": "Code",
        "text": "the cause",
        "changes": len(useless) + 1,
        "useless": list(useless),
    }


GOOD = [outcome(seed, "cordoned") for seed in range(199)]


def test_aims_are_reached() -> None:
    assert causes.missed([*GOOD, outcome(199, "quota")]) == []


def test_share_of_all_and_of_each_situation_are_aims() -> None:
    unknown = [outcome(200 + number, "quota", verdict="unknown") for number in range(10)]
    assert causes.missed([*GOOD, *unknown]) == [
        "a true cause first in 95.2% of all, less than 97%",
        "quota: a true cause first in 0.0%, less than 90%",
    ]


def test_false_cause_and_useless_change_are_named() -> None:
    false = outcome(199, "cordoned", "quota", verdict="false", useless=("kubectl uncordon a: it is full",))
    assert causes.missed([*GOOD[:150], false, outcome(200, "quota"), *(outcome(n, "quota") for n in range(9))]) == [
        "a false cause first in 0.6%, more than 0.5%",
        "seed 199: a change does not help: kubectl uncordon a: it is full",
    ]


def test_page_has_a_row_for_each_situation() -> None:
    page = causes.report([*GOOD, outcome(199, "cordoned", "quota", verdict="false")], {"cordoned": "A", "quota": "B"})
    assert "| cordoned | A | 200 | 99.5% | 0 | 1 | 200 | 0 |" in page
    assert "| quota | B | 1 | 0.0% | 0 | 1 | 1 | 0 |" in page
    assert "- seed 199, cordoned and quota: false, Code: the cause" in page
