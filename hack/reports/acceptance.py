#!/usr/bin/env python3
"""The suites that take hours, in one place: `make acceptance`, or `make acceptance ONLY="seeds plan"`.

Each part writes its result and its commit to build/acceptance/PART.json when it ends, and docs/reports/acceptance.md is
made from all results there, so the parts can run at the same time or on different days.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from hack.reports.reporting import commit_now

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = REPOSITORY / "docs" / "reports" / "acceptance.md"
RESULTS = REPOSITORY / "build" / "acceptance"
PYTHON = str(REPOSITORY / ".venv" / "bin" / "python")


SHOWN = 20  # violations in the report
HISTORY = "## History and what failed"
LINE = re.compile(r"^\| `([a-z0-9.-]+)` \|.*$", re.MULTILINE)
HEAD = """\
# Long runs

The last result of each suite. `make acceptance` runs them, `make acceptance ONLY="seeds plan"` some of them; none is
part of `make test`.

| suite | what | result | commit | date |
| --- | --- | --- | --- | --- |"""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a part."""

    what: str
    outcome: str
    failed: bool
    took_s: float = 0.0
    commit: str = ""
    date: str = ""
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The size of each part."""

    seeds: int
    sequences: int
    fleets: int
    first: int
    jobs: int
    minutes: float
    faults: int = 1_000
    cases: int = 100_000


def _seed(seed: int) -> str:
    return _fleet("--seed", str(seed), "--ultraservers", str(2 + seed % 3), "--steps", "20")


def _sequence(seed: int) -> str:
    return _fleet("--seed", str(seed), "--beside-a-victim")


def _fleet(*options: str) -> str:
    """Run one seed of the virtual fleet, and return its violation and the command that repeats it."""
    words = ("-m", "tests.support.fleet", *options)
    ran = subprocess.run([PYTHON, *words, "--quiet"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return ""
    _, violated, text = ran.stdout.partition("VIOLATED: ")
    reason = (
        text.partition("\nreplay: ")[0] if violated else f"ended with {ran.returncode}: {ran.stderr.strip()[-500:]}"
    )
    return f"{reason}; python {' '.join(words)}"


def _many(what: str, one: Callable[[int], str], numbers: range, options: Options) -> Result:
    """Call a function with each number in several processes, until the time is over, and print the progress."""
    found, began, done = [], time.monotonic(), 0
    with ProcessPoolExecutor(options.jobs, initializer=partial(os.nice, 10)) as pool:
        for done, text in enumerate(pool.map(one, numbers, chunksize=5), start=1):
            if text:
                found.append(f"seed {numbers[done - 1]}: {text}")
                print(found[-1], flush=True)
            if done % 100 == 0:
                print(
                    f"{done} of {len(numbers)}: {len(found)} violations, {time.monotonic() - began:.0f} s", flush=True
                )
            if time.monotonic() - began > options.minutes * 60:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    shown = f"{len(found)} of {done} violate an invariant" if found else f"{done}, no violation"
    return Result(f"{what} {numbers.start} to {numbers[done - 1]}", shown, bool(found), details=tuple(found[:SHOWN]))


def seeds(options: Options) -> Result:
    """The virtual fleet, with two to four UltraServers and the actors that each seed chooses."""
    return _many("virtual fleet, seeds", _seed, range(options.first, options.first + options.seeds), options)


def interference(options: Options) -> Result:
    """Requests of one tenant beside a victim's workload."""
    numbers = range(options.first, options.first + options.sequences)
    return _many("non-interference, sequences", _sequence, numbers, options)


def plan(options: Options) -> Result:
    """The result of Plan equals what the controller then does."""
    words = ("tests/unit/test_plan_matches_controller.py",)
    what = f"Plan equals the controller's actions, {options.fleets} fleets"
    return _tests(what, words, {"NEURON_DRA_PLAN_FLEETS": str(options.fleets)})


def kubernetes(options: Options) -> Result:
    """The deployed driver and controller on Kubernetes 1.34, its policies, and manifests migrated for it."""
    names = ("daemonset", "contract_updates", "takeover", "ultraservers", "forged_writes", "migrated_limits")
    return _on_the_bed("1.34", [f"tests/bed/test_{name}.py" for name in names])


def jobs(options: Options) -> Result:
    """Jobs and inference groups of the examples on eight kubelets, with CoreDNS, also when rank 0's node fails."""
    return _on_the_bed("1.37", ("-m", "long", "tests/bed/test_jobs.py", "tests/bed/test_ultraserver_groups.py"))


def installs(options: Options) -> Result:
    """A release in a registry, the README's commands on an empty cluster up to a pod, an upgrade and an uninstall."""
    return _on_the_bed("1.37", ("-m", "long", "tests/bed/test_release_installs.py"))


def chain(options: Options) -> Result:
    """A release from a registry on two UltraServers: each kind of job, an alert, an upgrade beside a job, an uninstall."""
    return _on_the_bed("1.37", ("-m", "long", "tests/bed/test_release_runs_jobs.py"))


def chain_oldest(options: Options) -> Result:
    """A release from a registry on two UltraServers with Kubernetes 1.34: an upgrade beside a job, an uninstall."""
    return _on_the_bed("1.34", ("-m", "long", "tests/bed/test_release_runs_jobs.py"))


def gitops(options: Options) -> Result:
    """Flux and Argo CD install, upgrade and remove a release beside a job, and show the health of workloads."""
    names = ("unit/test_gitops_health", "bed/test_flux", "bed/test_argocd")
    return _on_the_bed("1.37", ("-m", "long", *(f"tests/{name}.py" for name in names)))


def monitoring(options: Options) -> Result:
    """The chart's alerts and dashboards on promtool and Prometheus, and on a fleet that it scrapes."""
    names = ("alert_rules", "panels", "monitoring_on_nodes")
    return _on_the_bed("1.37", ("-m", "long", *(f"tests/bed/test_{name}.py" for name in names)))


def sets(options: Options) -> Result:
    """Connected sets and limits of the device plugin on the oldest Kubernetes that has them."""
    return _on_the_bed("1.36", ("tests/bed/test_connected_set_pods.py", "tests/bed/test_limits_on_nodes.py"))


def manifests(options: Options) -> Result:
    """Public manifests (docs/reports/public-manifests.md) on kubelets."""
    return _on_the_bed("1.37", ("-m", "long", "tests/bed/test_public_manifests_on_nodes.py"))


def _on_the_bed(version: str, words: Sequence[str]) -> Result:
    """Run tests on a test bed with a version of Kubernetes, which is built first."""
    subprocess.run(["hack/testbed/testbed", "build", "--kubernetes", version], cwd=REPOSITORY, check=True)
    try:
        return _tests(f"test bed with Kubernetes {version}", words, {"NEURON_DRA_KUBERNETES": version})
    finally:
        subprocess.run(["hack/testbed/testbed", "down"], cwd=REPOSITORY, check=False)


def scale(options: Options) -> Result:
    """The controller's benchmark; its figures are in docs/reports/scale.md."""
    return _command("controller at scale (docs/reports/scale.md)", [PYTHON, "-m", "hack.bench.controller"], {})


def packing(options: Options) -> Result:
    """How well connected sets pack; the figures are in docs/reports/packing.md."""
    return _command("packing (docs/reports/packing.md)", [PYTHON, "-m", "hack.oracle.packing", "--report"], {})


def allocator(options: Options) -> Result:
    """Random use of connected sets on Kubernetes' own allocator."""
    return _command("connected sets on Kubernetes' allocator", [PYTHON, "-m", "hack.oracle.allocator"], {})


def scheduler(options: Options) -> Result:
    """What connected sets cost the scheduler; the figures are in docs/reports/sets.md."""
    return _command("connected sets (docs/reports/sets.md)", [PYTHON, "-m", "hack.bench.sets", "--report"], {})


def quotas(options: Options) -> Result:
    """What counts against which quota, on the real API server and scheduler (docs/limits.md)."""
    return _command("quotas on connected sets (docs/limits.md)", [PYTHON, "-m", "hack.oracle.quotas"], {})


def faults(options: Options) -> Result:
    """`why` on seeded single and double faults, read from an API server."""
    words = ("tests/unit/test_why_faults_on_a_server.py",)
    what = f"`why` on {options.faults} seeded single and double faults"
    return _tests(what, words, {"NEURON_DRA_FAULTS": str(options.faults)})


def differential(options: Options) -> Result:
    """The simulator against the modules of Kubernetes 1.34 and 1.37."""
    words = ("-m", "long", "tests/unit/test_allocator_oracle.py")
    what = f"simulator against Kubernetes' modules of 1.34 and 1.37, {options.cases:,} cases each"
    return _tests(what, words, {"NEURON_DRA_ORACLE_CASES": str(options.cases)})


def placements(options: Options) -> Result:
    """The simulator against kube-scheduler, on whole random clusters."""
    return _command(
        "simulator against kube-scheduler, 500 random clusters", [PYTHON, "-m", "hack.oracle.placements"], {}
    )


def kueue(options: Options) -> Result:
    """Kueue with connected sets, on the real API server and scheduler (docs/kueue.md)."""
    return _command("Kueue with connected sets (docs/kueue.md)", [PYTHON, "-m", "hack.oracle.queueing"], {})


def release(options: Options) -> Result:
    """Two builds of a release (docs/release.md), the same bytes; SBOMs, and the commands of the amd64 image.

    Then the release workflow: its commands in clean clones, with signatures that are verified.
    """
    names = ("build", "publish", "workflow", "signed")
    words = ("-m", "long", *(f"tests/unit/test_release_{name}.py" for name in names))
    return _tests(
        "two builds of a release on a base of Debian's packages; the workflow, a registry, signatures", words, {}
    )


def _tests(what: str, words: Sequence[str], environment: dict[str, str]) -> Result:
    return _command(what, [PYTHON, "-m", "pytest", "-q", *words], environment)


def _command(what: str, words: Sequence[str], environment: dict[str, str]) -> Result:
    found = subprocess.run(
        words, cwd=REPOSITORY, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    lines = [line for line in (found.stdout + found.stderr).splitlines() if line.strip()]
    print("\n".join(lines[-20:]), flush=True)
    last = re.sub(r"^=+ | =+$", "", lines[-1]) if lines else "no output"
    failed = found.returncode != 0
    details = tuple(line for line in lines if line.startswith(("FAILED", "ERROR")))[:SHOWN]
    return Result(what, last if "passed" in last or failed else "done", failed, details=details)


PARTS: dict[str, Callable[[Options], Result]] = {
    "seeds": seeds,
    "interference": interference,
    "plan": plan,
    "kubernetes": kubernetes,
    "jobs": jobs,
    "installs": installs,
    "chain": chain,
    "chain-1.34": chain_oldest,
    "gitops": gitops,
    "monitoring": monitoring,
    "sets": sets,
    "manifests": manifests,
    "scale": scale,
    "packing": packing,
    "allocator": allocator,
    "scheduler": scheduler,
    "quotas": quotas,
    "faults": faults,
    "differential": differential,
    "kueue": kueue,
    "placements": placements,
    "release": release,
}


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
            found[name] = Result(**{**each, "details": tuple(each["details"])})
    return found


def report(results: Mapping[str, Result], before: str) -> str:
    """Return docs/reports/acceptance.md: the present state, one line for each part, and below it the history of before.

    A part without a new result keeps its line. A new result that failed also goes into the history.
    """
    state, _, history = before.partition(HISTORY)
    kept = {match[1]: match[0] for match in LINE.finditer(state)}
    new = {name: line(name, each) for name, each in results.items()}
    lines = [(kept | new).get(name, f"| `{name}` | | not run yet | | |") for name in PARTS]
    failed = [f"- `{name}` on {each.commit}: {text}" for name, each in results.items() for text in each.details]
    added = [text for text in failed if text not in history]
    return "\n".join(
        (HEAD, *lines, "", HISTORY, "", *(text for text in (*added, "") if added), history.strip("\n"), "")
    )


def line(name: str, found: Result) -> str:
    """Return the line of a part."""
    return f"| `{name}` | {found.what} | {found.outcome} | {found.commit} | {found.date} |"


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
    parser.add_argument("--report", action="store_true", help="write docs/reports/acceptance.md")
    parsed = parser.parse_args(arguments)
    if unknown := sorted({*parsed.only} - PARTS.keys()):
        parser.error(f"unknown part {', '.join(unknown)}; use {', '.join(PARTS)}")
    options = Options(parsed.seeds, parsed.sequences, parsed.fleets, parsed.first, parsed.jobs, parsed.minutes)
    failed = False
    for name in parsed.only or PARTS:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        found = dataclasses.replace(
            PARTS[name](options), took_s=time.monotonic() - began, commit=commit_now(), date=today()
        )
        failed |= found.failed
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(dataclasses.asdict(found), indent=1))
        print(f"{found.what}: {found.outcome}", flush=True)
    if parsed.report:
        REPORT.write_text(report(stored(), REPORT.read_text()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
