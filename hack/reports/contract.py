#!/usr/bin/env python3
"""Write docs/contract.md: each behavior of the DRA contract, the tests that show it, and their results.

The rows are in docs/contract.toml, the tests are those marked `@pytest.mark.contract(row)`, and the results are the
JUnit files that `make test` and `make night` leave in build/. With --check, only list differences between page and marks; that needs no
results.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.reports.reporting import commit_now

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS = REPOSITORY / "docs" / "contract.toml"
PAGE = REPOSITORY / "docs" / "contract.md"
TESTS = REPOSITORY / "tests"
RESULTS = "results-*.xml"

HEAD = """<!-- Written by `make contract` from docs/contract.toml and the results of `make test` and `make night ONLY=bed-1.37`. -->

# The contract, row by row

What the kubelet, the scheduler and the API server require of a DRA driver, and the tests that show it. Tests in
`tests/bed` run on real kubelets; those in `tests/story` and `tests/contract` on real sockets and processes.

"""


@dataclass(frozen=True, slots=True)
class Row:
    """A behavior; `not_applicable` is why it does not apply to this driver, or empty."""

    section: str
    id: str
    behaviour: str
    not_applicable: str


def rows(path: Path = ROWS) -> list[Row]:
    """Return all rows, in order."""
    found = []
    for section, entries in tomllib.loads(path.read_text()).items():
        for name, value in entries.items():
            fields = {"behaviour": value} if isinstance(value, str) else value
            found.append(Row(section, name, fields["behaviour"], fields.get("not_applicable", "")))
    return found


def marked(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return the tests of each row, as `bed/test_x.py::test_y`, from the marks in the source."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        for row in _marks(tree):
            found.setdefault(row[0], []).append(f"{path.relative_to(folder)}::{row[1]}")
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.contract":
                    for argument in decorator.args:
                        yield ast.literal_eval(argument), node.name


def outcomes(files: Sequence[Path]) -> dict[str, Counter[str]]:
    """Return how often each test passed, failed or was skipped, over all parameters and runs."""
    found: dict[str, Counter[str]] = {}
    for path in files:
        for case in ET.parse(path).getroot().iter("testcase"):
            module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            name = f"{module}.py::{case.get('name', '').split('[')[0]}"
            ended = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
            found.setdefault(name, Counter())[ended] += 1
    return found


def result(tests: Sequence[str], ended: Mapping[str, Counter[str]]) -> str:
    """Return the result of a row in one word: the worst of its tests."""
    counts = sum((ended.get(test, Counter({"not run": 1})) for test in tests), Counter())
    if counts["failure"] or counts["error"]:
        return "FAILED"
    if not counts["passed"]:
        return "not run" if counts["not run"] else "skipped"
    runs = counts["passed"]
    rest = [f"{counts[kind]} {kind}" for kind in ("skipped", "not run") if counts[kind]]
    return ", ".join([f"passed ({runs})" if runs > 1 else "passed", *rest])


def page(ended: Mapping[str, Counter[str]], commit: str) -> str:
    """Return docs/contract.md."""
    by_row, all_rows = marked(), rows()
    missing = [row.id for row in all_rows if not row.not_applicable and row.id not in by_row]
    applicable = [row for row in all_rows if not row.not_applicable]
    lines = [
        HEAD,
        f"{len(all_rows)} rows: {len(applicable) - len(missing)} have tests, {len(missing)} are missing"
        f"{' (' + ', '.join(missing) + ')' if missing else ''}, {len(all_rows) - len(applicable)} are not applicable. "
        f"Results of commit {commit}.\n",
    ]
    section = ""
    for row in all_rows:
        if row.section != section:
            section = row.section
            lines.append(f"\n## {section}\n\n| id | behaviour | tests | result |\n| --- | --- | --- | --- |\n")
        tests = by_row.get(row.id, [])
        if row.not_applicable:
            cells = (f"not applicable: {row.not_applicable}", "-")
        elif not tests:
            cells = ("missing", "-")
        else:
            cells = ("<br>".join(f"`{test}`" for test in tests), result(tests, ended))
        lines.append(f"| {row.id} | {row.behaviour} | {cells[0]} | {cells[1]} |\n")
    return "".join(lines)


def disagreements() -> list[str]:
    """Return the contradictions between marks, rows and page."""
    known, by_row = {row.id: row for row in rows()}, marked()
    found = [f"{tests[0]} is marked for row {row}, which is not in {ROWS.name}" for row, tests in by_row.items()
             if row not in known]  # fmt: skip
    found += [f"row {row} has tests but is not applicable" for row in by_row if known[row].not_applicable]
    text = PAGE.read_text() if PAGE.exists() else ""
    stated = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    for row in known.values():
        line = stated.get(row.id, "")
        shown = [part.strip("`") for part in line.split(" | ")[2].split("<br>")] if line else []
        wanted = [f"not applicable: {row.not_applicable}"] if row.not_applicable else by_row.get(row.id, ["missing"])
        if not line or line.split(" | ")[1] != row.behaviour or shown != wanted:
            found.append(f"row {row.id} of {PAGE.name} differs from the marks: run make test contract")
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build", help="folder of the JUnit files")
    options = parser.parse_args(arguments)
    if options.check:
        found = disagreements()
        print("\n".join(found) or "docs/contract.md agrees with the marks")
        return 1 if found else 0
    files = sorted(options.results.glob(RESULTS))
    if not files:
        print(f"no results in {options.results}: run make test first")
        return 1
    PAGE.write_text(page(outcomes(files), commit_now()))
    print(f"wrote {PAGE.relative_to(REPOSITORY)} of {', '.join(path.name for path in files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
