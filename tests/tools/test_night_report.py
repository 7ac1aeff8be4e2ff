"""docs/reports/night.md begins with the present state of each suite."""

from __future__ import annotations

import re

import pytest

from hack.reports import night, night_suites
from hack.reports.night import HISTORY
from hack.reports.night_suites import PARTS, Options, Result

FOUND = Result("seeds 1 to 9: 1 of 9 violate an invariant", True, 60.0, "0123abc", "2026-11-25", ("seed 4: a law",))


def lines(report: str) -> dict[str, str]:
    """Return the lines of the present state by suite."""
    return {found[1]: found[0] for found in night.LINE.finditer(report.partition(HISTORY)[0])}


def test_page_is_what_the_runner_writes() -> None:
    page = night.REPORT.read_text()
    assert list(lines(page)) == list(PARTS)
    assert night.report({}, page) == page


def test_page_without_results_is_written_again_as_it_is() -> None:
    once = night.report({}, HISTORY)
    assert night.report({}, once) == once


def test_new_result_replaces_its_line_and_keeps_the_others() -> None:
    before = night.REPORT.read_text()
    after = night.report({"seeds": FOUND}, before)
    result = "seeds 1 to 9: 1 of 9 violate an invariant | 0123abc | 2026-11-25"
    new = f"| `seeds` | {PARTS['seeds'].what} | {result} |"
    assert lines(after) == lines(before) | {"seeds": new}


def test_outcome_of_a_command_is_what_passed_and_not_its_progress() -> None:
    program = "import sys; print('passed, 3 cases'); print('3 cases in 1 s', file=sys.stderr)"
    result = night_suites._command("-c", program)(Options(1, 1, 1, 0, 1, 1.0))
    assert (result.outcome, result.failed) == ("passed, 3 cases", False)


def test_failure_goes_into_the_history_once() -> None:
    once = night.report({"seeds": FOUND}, night.REPORT.read_text())
    failed = "- `seeds` on 0123abc: seed 4: a law"
    assert once.partition(HISTORY)[2].startswith(f"\n\n{failed}\n\n")
    assert night.report({"seeds": FOUND}, once) == once


def test_suite_without_a_result_says_so() -> None:
    what = PARTS["seeds"].what
    assert lines(night.report({}, HISTORY))["seeds"] == f"| `seeds` | {what} | not run yet | | |"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (night.NOT_RUN, "not run yet"),
        ("15 passed | 900bb2f | 2026-11-23", "passed"),
        ("a quiet machine: no failed probe; 3 passed | 0357828 | 2026-11-25", "passed"),
        ("1 failed, 107 passed in 60 s | b131ca99 | 2026-11-26", "failed"),
        ("seeds 1 to 9: 1 of 9 violate an invariant | 0123abc | 2026-11-25", "failed"),
        ("make: *** [Makefile:9: chaos] Error 1 | 0123abc | 2026-11-25", "failed"),
    ],
)
def test_table_of_releases_has_a_verdict_for_each_suite(result: str, expected: str) -> None:
    assert night.verdict(result) == expected


def test_each_suite_on_a_release_is_in_the_table_once() -> None:
    table = night.of_releases(night.REPORT.read_text())
    named = re.findall(r"`([a-z0-9.-]+)`", table)
    assert sorted(named) == sorted(name for name, part in PARTS.items() if part.release)
    assert re.findall(r"^\| (1\.\d+) \|", table, re.MULTILINE) == ["1.37", "1.36", "1.35", "1.34"]
