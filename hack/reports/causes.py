#!/usr/bin/env python3
"""Does `why` name the true cause? Write docs/reports/causes.md: `make night ONLY=faults`.

The cases are those of `python -m tests.support.causes`; this starts some of these and adds up what they print. The exit
code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from hack.bed.build import KUBERNETES
from hack.reports.reporting import ROOT, commit_now

REPORT: Final = ROOT / "docs" / "reports" / "causes.md"
PYTHON: Final = ROOT / ".venv" / "bin" / "python"
SEEDS: Final = 2000
LEAST_OF_ALL, LEAST_OF_EACH, MOST_FALSE = 0.97, 0.90, 0.005
SHOWN: Final = 20
VERDICTS: Final = ("true", "unknown", "false")
HEAD: Final = """\
<!-- Written by `make night ONLY=faults`. -->

# Does `why` name the true cause?

Seeded fleets with one or two faults, in which the pod `default/p` would run without them: two to six nodes, half of them
fragmented, with kubelets of the API server's release and of one and two releases before. `why` reads each from an API
server (the embedded one, which answers as Kubernetes {version}) and does not know the faults.

A fault is a true cause if the pod runs once this fault alone is removed; if no single one is enough, both are. Whether
the pod runs is judged by code that `why` does not use:

- **Kubernetes' scheduler** {version}, the whole of it as a Go program (`hack/oracle/scheduler`): gates, node and device
  taints, selectors, resources, claims, and the allocator. What it says is also what the pod's status shows to `why`.
- **The rule of quotas**, and that a controller creates claims from templates: written again for this report
  (`tests/support/causes/judge.py`), from Kubernetes' documentation.
- **The driver's decoder**, the code that prepares claims, for their configuration.
- **The kubelet's rules**, for claims that are not allocated or not reserved, for names of resources that it does not know,
  and for nodes that are gone or not ready: written again too (`tests/support/causes/after.py`).
- **The component's own message**: an Event or a condition with the words of kubelet, runtime, driver or scheduler, where
  only these show the fault. The pod is taken not to run while it is there.

A change that `why` proposes is applied as a person would: objects are edited or deleted, the pod is created again if its
template changes, and claims of deleted pods are released. It helps if the pod then runs.
"""


def outcomes(first: int, seeds: int, jobs: int) -> list[dict[str, Any]]:
    """Run the seeds in several processes, and return what they print, in order."""
    with ThreadPoolExecutor(jobs) as threads:
        shares = threads.map(lambda job: _share_of(first + job, seeds - job, jobs), range(min(jobs, seeds)))
        found = [each for share in shares for each in share]
    return sorted(found, key=lambda each: int(each["seed"]))


def _share_of(first: int, seeds: int, step: int) -> list[dict[str, Any]]:
    """Run every so many seeds in a process, and return what it prints."""
    options = {"first": first, "seeds": seeds, "step": step}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(PYTHON), "-m", "tests.support.causes", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"python -m tests.support.causes {' '.join(words)}: {ran.stderr[-2000:]}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def by_situation(found: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return the numbers of each situation: a case with two faults counts for both."""
    numbers: dict[str, Counter[str]] = defaultdict(Counter)
    for each in found:
        for name in each["situations"]:
            numbers[name][each["verdict"]] += 1
            numbers[name]["changes"] += each["changes"]
            numbers[name]["useless"] += len(each["useless"])
    return numbers


def missed(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the aims that are missed."""
    all_of_them = Counter(each["verdict"] for each in found)
    cases = sum(all_of_them[each] for each in VERDICTS)
    texts = []
    if all_of_them["true"] < cases * LEAST_OF_ALL:
        texts.append(f"a true cause first in {_share(all_of_them['true'], cases)} of all, less than {LEAST_OF_ALL:.0%}")
    if all_of_them["false"] > cases * MOST_FALSE:
        texts.append(f"a false cause first in {_share(all_of_them['false'], cases)}, more than {MOST_FALSE:.1%}")
    for name, numbers in by_situation(found).items():
        own = sum(numbers[each] for each in VERDICTS)
        if numbers["true"] < own * LEAST_OF_EACH:
            texts.append(f"{name}: a true cause first in {_share(numbers['true'], own)}, less than {LEAST_OF_EACH:.0%}")
    texts += [f"seed {each['seed']}: a change does not help: {text}" for each in found for text in each["useless"]]
    return texts


def _share(number: int, of: int) -> str:
    return f"{number / of:.1%}" if of else "none"


def report(found: Sequence[Mapping[str, Any]], judges: Mapping[str, str]) -> str:
    """Return the page."""
    judged = [each for each in found if each["verdict"] in VERDICTS]
    numbers = Counter(each["verdict"] for each in judged)
    changes = sum(each["changes"] for each in judged)
    useless = sum(len(each["useless"]) for each in judged)
    double = sum(len(each["situations"]) > 1 for each in judged)
    lines = [
        HEAD.format(version=KUBERNETES["1.37"]),
        f"{len(judged):,} cases of the seeds {found[0]['seed']} to {found[-1]['seed']}, {double:,} of them with two faults, on "
        f"commit {commit_now()}: a true cause first in {_share(numbers['true'], len(judged))}, none named "
        f"in {_share(numbers['unknown'], len(judged))}, a false one first in {_share(numbers['false'], len(judged))}. Of "
        f"{changes:,} proposed changes, {useless or 'none'} did not help. Aims: {LEAST_OF_ALL:.0%} over all and "
        f"{LEAST_OF_EACH:.0%} in each situation, at most {MOST_FALSE:.1%} false, no change that does not help.",
        "",
        "A case with two faults is in the rows of both.",
        "",
        "| situation | judge | cases | true cause first | unknown | false | changes | that do not help |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = by_situation(judged)
    for name in judges:
        own = rows.get(name, Counter())
        cases = sum(own[each] for each in VERDICTS)
        cells = (name, judges[name], cases, _share(own["true"], cases), own["unknown"], own["false"])
        lines.append(f"| {' | '.join(map(str, cells))} | {own['changes']} | {own['useless']} |")
    lines += ["", "## What was not true", ""]
    wrong = [each for each in judged if each["verdict"] != "true" or each["useless"]]
    lines += [_line(each) for each in wrong[:SHOWN]] or ["Nothing."]
    return "\n".join([*lines, ""])


def _line(case: Mapping[str, Any]) -> str:
    text = (
        f"- seed {case['seed']}, {' and '.join(case['situations'])}: {case['verdict']}, {case['code']}: {case['text']}"
    )
    return "; ".join([text, *(f"a change that does not help: {each}" for each in case["useless"])])


def judges() -> dict[str, str]:
    """Return the situations, with who judges each."""
    listed = subprocess.run(
        [str(PYTHON), "-m", "tests.support.causes", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(listed.stdout)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the seeds; return 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--report", action="store_true", help="write docs/reports/causes.md")
    parsed = parser.parse_args(arguments)
    found = outcomes(parsed.first, parsed.seeds, parsed.jobs)
    texts = missed(found)
    for text in texts:
        print(f"FAILED {text}")
    if parsed.report:
        REPORT.write_text(report(found, judges()))
    numbers = Counter(each["verdict"] for each in found)
    changes = sum(each["changes"] for each in found)
    harmless = f", {numbers['harmless']} harmless" if numbers["harmless"] else ""
    print(
        f"{'FAILED' if texts else 'passed'}, {len(found)} cases: {numbers['true']} true, {numbers['unknown']} unknown, "
        f"{numbers['false']} false{harmless}; {changes} changes, "
        f"{sum(len(each['useless']) for each in found) or 'each'} {'do not help' if texts else 'of which helps'}"
    )
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
