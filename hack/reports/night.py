#!/usr/bin/env python3
"""Everything that `make test` leaves out: `make night`, or `make night ONLY="seeds plan"`.

Each part writes its result and its commit to build/night/PART.json when it ends, and docs/reports/night.md and the
table of releases in docs/compatibility.md are made from all results there, so the parts can run at the same time or on different days.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence

from hack.reports.night_suites import PARTS, REPOSITORY, Options, Result
from hack.reports.reporting import commit_now

REPORT = REPOSITORY / "docs" / "reports" / "night.md"
COMPATIBILITY = REPOSITORY / "docs" / "compatibility.md"
RELEASES = re.compile(r"(?<=<!-- from reports/night.md -->\n).*?(?=\n\n)", re.DOTALL)
"""The table of the page that `of_releases` makes."""
RESULTS = REPOSITORY / "build" / "night"
HISTORY = "## History and what failed"
LINE = re.compile(r"^\| `([a-z0-9.-]+)` \|.*?\| ([^|]*\|[^|]*\|[^|]*)\|$", re.MULTILINE)
NOT_RUN = "not run yet | |"
FAILED = re.compile(r"\b[1-9]\d* (?:failed|errors?)\b|violate an invariant|\bError \d")
"""What pytest, the fleets and make write as the last line of a run that failed."""
HEAD = """\
# Night runs

The last result of each suite. `make night` runs them all, which takes hours, and `make night ONLY="seeds plan"` runs some of
them. `make test` runs none of them.

| suite | what | result | commit | date |
| --- | --- | --- | --- | --- |"""


def today() -> str:
    """Return the date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def stored() -> dict[str, Result]:
    """Return the results that parts have written so far."""
    found = {}
    for name in PARTS:
        path = RESULTS / f"{name}.json"
        if path.exists():
            each = json.loads(path.read_text())
            each.pop("what", None)  # of earlier releases
            found[name] = Result(**{**each, "details": tuple(each["details"])})
    return found


def report(results: Mapping[str, Result], before: str) -> str:
    """Return docs/reports/night.md: the present state, one line for each part, and below it the history of before.

    A part without a new result keeps the one in its line. A new result that failed also goes into the history.
    """
    state, _, history = before.partition(HISTORY)
    found = {match[1]: match[2].strip() for match in LINE.finditer(state)}
    found |= {name: f"{each.outcome} | {each.commit} | {each.date}" for name, each in results.items()}
    lines = [f"| `{name}` | {part.what} | {found.get(name, NOT_RUN)} |" for name, part in PARTS.items()]
    failed = [f"- `{name}` on {each.commit}: {text}" for name, each in results.items() for text in each.details]
    added = [text for text in failed if text not in history]
    return "\n".join(
        (HEAD, *lines, "", HISTORY, "", *(text for text in (*added, "") if added), history.strip("\n"), "")
    )


def verdict(result: str) -> str:
    """Return the column of a suite for the cells with its result, commit and date."""
    if result == NOT_RUN:
        return "not run yet"
    return "failed" if FAILED.search(result) else "passed"


def of_releases(night: str) -> str:
    """Return which suites passed on which release of Kubernetes, the newest first, from the text of docs/reports/night.md."""
    results = {match[1]: match[2].strip() for match in LINE.finditer(night.partition(HISTORY)[0])}
    columns = ("passed", "failed", "not run yet")
    suites: dict[str, dict[str, list[str]]] = {}
    for name, part in PARTS.items():
        if part.release:
            of_release = suites.setdefault(part.release, {column: [] for column in columns})
            of_release[verdict(results.get(name, NOT_RUN))].append(f"`{name}`")
    lines = [f"| Kubernetes | {' | '.join(columns)} |", "| --- | --- | --- | --- |"]
    for release in sorted(suites, key=lambda release: int(release.partition(".")[2]), reverse=True):
        cells = [", ".join(suites[release][column]) or "-" for column in columns]
        lines.append(f"| {release} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_releases(page: str, night: str) -> str:
    """Return docs/compatibility.md with the table of what ran on which release."""
    return RELEASES.sub(lambda _: of_releases(night), page)


def main(arguments: Sequence[str]) -> int:
    """Run the parts; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--fleets", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1, help="number of the first seed and sequence")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop seeds, or sequences, after so long")
    parser.add_argument("--report", action="store_true", help="write docs/reports/night.md")
    parsed = parser.parse_args(arguments)
    if unknown := sorted({*parsed.only} - PARTS.keys()):
        parser.error(f"unknown part {', '.join(unknown)}; use {', '.join(PARTS)}")
    options = Options(parsed.seeds, parsed.sequences, parsed.fleets, parsed.first, parsed.jobs, parsed.minutes)
    failed = False
    for name in parsed.only or PARTS:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        found = dataclasses.replace(
            PARTS[name].run(options), took_s=time.monotonic() - began, commit=commit_now(), date=today()
        )
        failed |= found.failed
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(dataclasses.asdict(found), indent=1))
        print(f"{PARTS[name].what}: {found.outcome}", flush=True)
    if parsed.report:
        REPORT.write_text(report(stored(), REPORT.read_text()))
        COMPATIBILITY.write_text(with_releases(COMPATIBILITY.read_text(), REPORT.read_text()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
