#!/usr/bin/env python3
"""Fuzz the targets of tests/fuzz with atheris: `make fuzz` gives each a million inputs and writes docs/reports/fuzz.md.

Each target runs in a separate process with instrumented imports. Inputs that reach new code are added to
tests/fuzz/corpus; one that fails is printed as a line for that file, and ends the target.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import logging
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hack.reports.reporting import commit_now

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "tests" / "fuzz"
REPORT = REPOSITORY / "docs" / "reports" / "fuzz.md"
TARGETS = ("limits", "sets", "slices", "watch", "sysfs", "checkpoint", "parameters", "answers")  # the slowest first
KEPT_INPUTS = 150
"""Of each target, in the repository."""
LONGEST_INPUT = 256  # bytes
SHA1_DIGITS = 40
FRESH_INPUTS = 200  # random inputs at the start, besides those in the corpus


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a target; `failed` is the input that failed, in hex, or empty."""

    target: str
    inputs: int
    seconds: float
    covered: int
    failed: str


def fuzz(target: str, inputs: int, seed: int) -> Run:
    """Run one target in a separate process."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        corpus, found = Path(name, "corpus"), Path(name, "found")
        for folder in (corpus, found):
            folder.mkdir()
        rng = random.Random(seed)
        beginnings = [bytes.fromhex(line) for line in _kept(target)]
        beginnings += [rng.randbytes(rng.randrange(8, LONGEST_INPUT)) for _ in range(FRESH_INPUTS)]
        for number, data in enumerate(beginnings):
            (corpus / f"{number:04d}").write_bytes(data)
        started = time.monotonic()
        output = _child(target, f"-runs={inputs}", f"-seed={seed}", f"-max_len={LONGEST_INPUT}", "-timeout=60", "-len_control=0",
                        f"-artifact_prefix={found}/", "-print_final_stats=1", str(corpus))  # fmt: skip
        seconds = time.monotonic() - started
        failures = [path.read_bytes().hex() for path in found.iterdir()]
        if failures:
            print(output[-4000:])
        else:
            _keep(target, corpus)
        done = re.findall(r"stat::number_of_executed_units:\s*(\d+)", output)
        covered = re.findall(r"cov: (\d+)", output)
        if not done and not failures:
            raise SystemExit(f"{target} did not run:\n{output[-4000:]}")
        return Run(target, int(done[-1]) if done else 0, seconds, int(covered[-1]) if covered else 0,
                   failures[0] if failures else "")  # fmt: skip


def _kept(target: str) -> list[str]:
    path = FOLDER / "corpus" / f"{target}.txt"
    return path.read_text().split() if path.exists() else []


def _keep(target: str, corpus: Path) -> None:
    """Keep the corpus, and some inputs of each size that reached new code, under libFuzzer's names."""
    old = _kept(target)
    new = {path.read_bytes().hex() for path in corpus.iterdir() if len(path.name) == SHA1_DIGITS} - {*old, ""}
    ranked = sorted(new, key=lambda line: (len(line), line))
    room = max(0, KEPT_INPUTS - len(old))
    chosen = ranked[:: max(1, -(-len(ranked) // room))] if room else []
    path = FOLDER / "corpus" / f"{target}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in (*old, *chosen)))


def _child(target: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "hack.chaos.fuzz", "--child", target, *arguments]
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


def child(target: str, arguments: Sequence[str]) -> None:
    """Instrument the imports and run libFuzzer; never returns."""
    atheris = importlib.import_module("atheris")  # installed for `make fuzz` only
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["neuron_dra", "controller", "tests.fuzz"]):
        fuzz_targets = importlib.import_module("tests.fuzz.fuzz_targets")  # the targets are tests
    atheris.Setup(["fuzz", *arguments], fuzz_targets.TARGETS[target])
    atheris.Fuzz()


def report(runs: Sequence[Run], seed: int, command: str) -> str:
    """Return docs/reports/fuzz.md."""
    rows = "".join(
        f"| {run.target} | {run.inputs:,} | {run.covered:,} | {run.seconds / 60:.1f} min | "
        f"{'FAILED: ' + run.failed if run.failed else 'no failure'} |\n"
        for run in runs
    )
    return f"""# Fuzzing

Commit {commit_now()}, {datetime.date.today().isoformat()}, `{command}`, seed {seed}, Python {platform.python_version()}, atheris.

| target | inputs | branches covered | duration | result |
| --- | --- | --- | --- | --- |
{rows}
The docstring of each target in `tests/fuzz` says what must hold. Inputs are bytes that choose a document
and change it, so most are nearly valid. Inputs that reached new code are kept in `tests/fuzz/corpus`; `make test` runs
them and some similar ones.
"""


def main(arguments: Sequence[str]) -> int:
    """Fuzz the requested targets; return 1 if one of them failed."""
    if arguments[:1] == ["--child"]:
        child(arguments[1], arguments[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; may be repeated")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each target (default: a million)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time (default: one per core)")
    parser.add_argument("--report", action="store_true", help="write docs/reports/fuzz.md")
    options = parser.parse_args(arguments)
    runs = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for run in pool.map(partial(fuzz, inputs=options.inputs, seed=options.seed), options.target or TARGETS):
            runs.append(run)
            print(
                f"{run.target}: {run.inputs:,} inputs in {run.seconds:.0f} s: {run.failed or 'no failure'}", flush=True
            )
    if options.report:
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(report(runs, options.seed, f"make fuzz INPUTS={options.inputs}"))
    return 1 if any(run.failed for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
