#!/usr/bin/env python3
"""Crash everything at every point: `make crash` runs the harness in full and writes docs/reports/crash.md."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from hack.reports.reporting import commit_now

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs/reports/crash.md"
SUITES = (
    "tests/story/test_crash_plugin.py",
    "tests/contract/test_power_cut.py",
    "tests/contract/test_one_owner.py",
    "tests/story/test_crash_controller.py",
)
MOST_S = 3600
COUNT = re.compile(r"^(?P<what>.+): (?P<count>(\d+) of (\d+) points|(\d+) states .*|(\d+) random walks .*)$")


def run() -> tuple[int, str]:
    """Run every point of the suites; return the exit code and pytest's output."""
    # All states of a power cut are ten times those of `make test`, and a busy machine takes ten times as long.
    limit = f"--timeout={MOST_S}"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", limit, *SUITES]
    environment = {**os.environ, "NEURON_DRA_LONG": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def report(output: str, commit: str, seconds: float) -> str:
    """Return docs/reports/crash.md."""
    found = [match for line in output.splitlines() if (match := COUNT.match(line))]
    points = sum(int(match[3]) for match in found if match[3])
    states = sum(int(match[5]) for match in found if match[5])
    verdict = output.strip().splitlines()[-1]
    rows = "\n".join(f"| {match['what']} | {match['count']} |" for match in found)
    return f"""# Crashes, failing disks and power cuts

The tests say what happens and what must hold: {", ".join(f"`{suite}`" for suite in SUITES)}. There is no list of points: an undisturbed run records them, so a new write is a new point. `make test` runs every eleventh point of the plugin
and every fifth of the controller, and checks every eleventh state after a power cut; this is a run of all of them.

| | |
|---|---|
| commit | `{commit}` |
| command | `make crash` |
| date | {datetime.datetime.now(datetime.UTC):%Y-%m-%d} |
| duration | {seconds:.0f} s |
| points | {points} |
| states after a power cut | {states} |
| result | {verdict} |

| what | how many |
|---|---|
{rows}

## Sabotages that the harness finds

Each is a test: no flush of folders or of files; no record of the boot; the checkpoint written before the CDI file; CDI
files without a claim ignored; the boot id ignored; a plugin that does not check which claim holds a device. Each makes the
harness fail, with the reason.

## What it found

- A power cut could remove a folder that the plugin had just created, with the checkpoint in it: the folder above it was
  not flushed.
- A plugin that was killed while it wrote its name for the publisher lock left a temporary file for ever.
- So did one that was killed while it recorded that it publishes connected sets.
"""


def main() -> int:
    """Run the suites, print the results, and write the report with --report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="write docs/reports/crash.md")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), commit_now()
    code, output = run()
    print(output)
    if arguments.report:
        REPORT.write_text(report(output, commit, time.monotonic() - started))
    return code


if __name__ == "__main__":
    sys.exit(main())
