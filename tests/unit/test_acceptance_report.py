"""docs/reports/acceptance.md begins with the present state of each suite."""

from __future__ import annotations

from hack.reports import acceptance
from hack.reports.acceptance import HISTORY, Result

FOUND = Result(
    "virtual fleet, seeds 1 to 9",
    "1 of 9 violate an invariant",
    True,
    60.0,
    "0123abc",
    "2026-11-25",
    ("seed 4: a law",),
)


def lines(report: str) -> dict[str, str]:
    """Return the lines of the present state by suite."""
    return {found[1]: found[0] for found in acceptance.LINE.finditer(report.partition(HISTORY)[0])}


def test_report_has_one_line_for_each_suite() -> None:
    assert list(lines(acceptance.REPORT.read_text())) == list(acceptance.PARTS)


def test_new_result_replaces_its_line_and_keeps_the_others() -> None:
    before = acceptance.REPORT.read_text()
    after = acceptance.report({"seeds": FOUND}, before)
    new = "| `seeds` | virtual fleet, seeds 1 to 9 | 1 of 9 violate an invariant | 0123abc | 2026-11-25 |"
    assert lines(after) == lines(before) | {"seeds": new}


def test_failure_goes_into_the_history_once() -> None:
    once = acceptance.report({"seeds": FOUND}, acceptance.REPORT.read_text())
    failed = "- `seeds` on 0123abc: seed 4: a law"
    assert once.partition(HISTORY)[2].startswith(f"\n\n{failed}\n\n")
    assert acceptance.report({"seeds": FOUND}, once) == once


def test_suite_without_a_result_says_so() -> None:
    assert lines(acceptance.report({}, HISTORY))["seeds"] == "| `seeds` | | not run yet | | |"
