"""The contract's rows and the tests' marks match, so that docs/contract.md has no missing row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hack.reports import contract

ROOT = Path(__file__).resolve().parents[2]


def test_marks_name_applicable_rows() -> None:
    applicable = {row.id for row in contract.rows() if not row.not_applicable}
    assert {row: tests for row, tests in contract.marked().items() if row not in applicable} == {}


def test_applicable_rows_have_tests() -> None:
    marked = contract.marked()
    assert [row.id for row in contract.rows() if not row.not_applicable and row.id not in marked] == []


def test_inapplicable_row_cites_the_design() -> None:
    reasons = [row.not_applicable for row in contract.rows() if row.not_applicable]
    assert [reason for reason in reasons if not reason.startswith("design ")] == []


def test_row_result_is_the_worst_of_its_tests() -> None:
    ended = {
        "a": Counter(passed=2),
        "b": Counter(failure=1),
        "c": Counter(skipped=1),
        "d": Counter(passed=1, skipped=1),
    }
    words = [
        contract.result(tests, ended) for tests in (["a"], ["a", "b"], ["c"], ["d"], ["nobody ran it"], ["a", "e"])
    ]
    assert words == ["passed (2)", "FAILED", "skipped", "passed, 1 skipped", "not run", "passed (2), 1 not run"]
