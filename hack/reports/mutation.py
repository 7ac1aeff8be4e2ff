#!/usr/bin/env python3
"""Write docs/reports/mutation.md from the results of the last `mutmut run`."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter

from hack.reports.reporting import ROOT, commit_now

REPORT = ROOT / "docs" / "reports" / "mutation.md"
MUTANTS = ROOT / "mutants"
SURVIVED, NO_TESTS = 0, 33  # exit codes of mutmut; None: not run; all others: a test failed, or the mutant did not end


def results() -> dict[str, dict[str, int | None]]:
    """Return the exit code of each mutant by module path and mutant name."""
    return {
        str(path.relative_to(MUTANTS)).removesuffix(".meta"): json.loads(path.read_text())["exit_code_by_key"]
        for path in sorted(MUTANTS.rglob("*.meta"))
    }


def report(found: dict[str, dict[str, int | None]], commit: str) -> str:
    """Return the page."""
    rows, survivors, total = [], [], Counter[str]()
    for module, codes in found.items():
        count = Counter(
            "not run" if code is None else {SURVIVED: "survived", NO_TESTS: "no tests"}.get(code, "killed")
            for code in codes.values()
        )
        run = count["killed"] + count["survived"] + count["no tests"]
        if run:
            total += count
            rows.append(f"| {module} | {run} | {count['killed']} | {count['survived']} | {count['no tests']} |")
            survivors += [f"- `{name}`" for name, code in codes.items() if code in (SURVIVED, NO_TESTS)]
    run = total["killed"] + total["survived"] + total["no tests"]
    lines = [
        "# Mutation testing",
        "",
        "[mutmut](https://mutmut.readthedocs.io) changes one expression or statement of a function at a time and runs the",
        "tests of `tests/unit`, `tests/oracle` and `tests/tools` that call the function. A mutant is killed when a test fails",
        "or does not end. `mutmut show NAME` prints a mutant; messages are changed too, and most of those mutants survive.",
        "",
        f"Commit {commit}, {datetime.date.today()}, Python {platform.python_version()}: {run} mutants,",
        f"{100 * total['killed'] / max(run, 1):.1f} % killed.",
        "",
        "| module | mutants | killed | survived | without a test |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        "## Survivors",
        "",
        *survivors,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    REPORT.write_text(report(results(), commit_now()))
    print(f"wrote {REPORT.relative_to(ROOT)}")
