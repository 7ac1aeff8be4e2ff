#!/usr/bin/env python3
"""Derive `tests/slow_tests.txt`, which `make quick` leaves out, from what tests cost in earlier runs.

`python -m hack.slow_tests build/results-*.xml` prints which tests became slow or quick; `--write` changes the list.

The list names functions, or files of which every function is slow, and no parametrised cases. A function that started
another process is slow. Otherwise its CPU time decides, because wall time depends on what else the machine does. It
becomes slow above `SLOW_ABOVE_MS` and quick again below `QUICK_BELOW_MS`; between them it stays what it was, so that the
list does not change from run to run.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = ROOT / "tests" / "slow_tests.txt"
FOLDERS: Final = ("tests/unit/", "tests/contract/", "tests/tools/")
"""The folders that `make quick` runs."""
CPU_PROPERTY: Final = "cpu_ms"
PROCESSES_PROPERTY: Final = "processes"
SLOW_ABOVE_MS: Final = 60.0
QUICK_BELOW_MS: Final = 40.0
HEAD: Final = """\
# Tests that `make quick` leaves out: functions, and files of which every function is slow. `make slow-tests` writes this list.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the cases of one test function cost."""

    cpu_ms: float
    starts_processes: bool = False

    @property
    def reason(self) -> str:
        return "process" if self.starts_processes else f"{self.cpu_ms:.0f} ms"


def read_list(path: Path) -> dict[str, str]:
    """Return the reasons by test function or file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def costs(results: Iterable[Path]) -> dict[str, Cost]:
    """Return the cost of each test function in junit files."""
    cases: dict[str, list[Cost]] = defaultdict(list)
    for path in results:
        for case in ET.parse(path).iter("testcase"):
            properties = {each.get("name"): each.get("value", "0") for each in case.iter("property")}
            if CPU_PROPERTY in properties and (function_id := _function_id(case)):
                cases[function_id].append(Cost(float(properties[CPU_PROPERTY]), PROCESSES_PROPERTY in properties))
    return {function_id: _cost_of_cases(measured) for function_id, measured in cases.items()}


def _function_id(case: ET.Element) -> str:
    """Return a test function as pytest names it, or nothing if it belongs to another folder."""
    parts = case.get("classname", "").split(".")
    name = case.get("name", "").partition("[")[0]
    for count in range(len(parts), 0, -1):
        file = "/".join(parts[:count]) + ".py"
        if file.startswith(FOLDERS) and (ROOT / file).exists():
            return "::".join([file, *parts[count:], name])
    return ""


def _cost_of_cases(cases: Sequence[Cost]) -> Cost:
    times = sorted(cost.cpu_ms for cost in cases)
    # The first case in a process also pays for imports and shared fixtures, which says nothing about the others.
    slowest = times[-1] if len(times) < 3 else times[-2]
    return Cost(slowest, any(cost.starts_processes for cost in cases))


def decide(measured: Mapping[str, Cost], before: Mapping[str, str]) -> dict[str, str]:
    """Return the new list: reasons by test function or file.

    A function that was not measured keeps its place, so that a run of a part of the tests does not change the rest. One
    that stays slow keeps its reason, so that the list only changes where a test does.
    """
    slow_files = {name for name in before if "::" not in name}
    was_slow = {name for name in measured if name in before or name.partition("::")[0] in slow_files}
    slow = {name: before.get(name, cost.reason) for name, cost in measured.items() if _is_slow(cost, name in was_slow)}
    measured_files = {name.partition("::")[0] for name in measured}
    unmeasured = {name: reason for name, reason in before.items() if not _is_measured(name, measured, measured_files)}
    return _with_whole_files(slow | unmeasured, measured)


def _is_slow(cost: Cost, was_slow: bool) -> bool:
    return cost.starts_processes or cost.cpu_ms > (QUICK_BELOW_MS if was_slow else SLOW_ABOVE_MS)


def _is_measured(name: str, measured: Mapping[str, Cost], measured_files: set[str]) -> bool:
    return name in (measured if "::" in name else measured_files)


def _with_whole_files(slow: Mapping[str, str], measured: Mapping[str, Cost]) -> dict[str, str]:
    functions_by_file: dict[str, list[str]] = defaultdict(list)
    for name in measured:
        functions_by_file[name.partition("::")[0]].append(name)
    whole = {
        file: "every function"
        for file, functions in functions_by_file.items()
        if len(functions) > 1 and all(name in slow for name in functions)
    }
    parts = {name: reason for name, reason in slow.items() if name.partition("::")[0] not in whole or name in whole}
    return dict(sorted((parts | whole).items()))


def is_a_test(name: str) -> bool:
    """Return True if the file is there and has the function, or the machine of a state machine test."""
    file, _, function = name.partition("::")
    if not (ROOT / file).exists():
        return False
    text = (ROOT / file).read_text()
    machine, is_machine, _ = function.partition("::runTest")
    return f"{machine} = " in text if is_machine else not function or f"def {function}(" in text


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each test that became slow or quick."""
    became_slow = [f"became slow: {name} ({after[name]})" for name in after if name not in before]
    became_quick = [f"became quick: {name}" for name in before if name not in after]
    return became_slow + became_quick


def main(arguments: Sequence[str]) -> int:
    """Print what changed, and write the list if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="junit files of earlier runs")
    parser.add_argument("--write", action="store_true", help="write tests/slow_tests.txt")
    parsed = parser.parse_args(arguments)
    before = {name: reason for name, reason in read_list(LIST).items() if is_a_test(name)}
    measured = costs(path for path in parsed.results if path.exists())
    after = {name: reason for name, reason in decide(measured, before).items() if is_a_test(name)}
    for line in changes(before, after):
        print(line)
    if parsed.write:
        LIST.write_text(HEAD + "".join(f"{name}  {reason}\n" for name, reason in after.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
