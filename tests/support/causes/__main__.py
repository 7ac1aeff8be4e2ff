"""Print the outcome of each seed as a line of JSON; hack/reports/causes.py makes a report of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hack.oracle.judge import Scheduler, build_scheduler
from tests.support.causes import study
from tests.support.causes.situations import SITUATIONS

GATES = ("GenericWorkload=true",)
"""Off by default: PodGroups."""
PROGRAM = Path(__file__).resolve().parents[3] / "build" / "scheduler"


def main(arguments: Sequence[str]) -> int:
    """Run the seeds; the exit code is 0 whatever they show."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.causes", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--step", type=int, default=1, help="run every so many seeds only")
    parser.add_argument("--only", default="", help="only seeds with a situation of this name, or part of it")
    parser.add_argument("--list", action="store_true", help="only print the situations, with their judges")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        print(json.dumps({each.name: each.judge for each in SITUATIONS}))
        return 0
    PROGRAM.parent.mkdir(exist_ok=True)
    with Scheduler(build_scheduler(PROGRAM), GATES) as scheduler:
        for seed in range(parsed.first, parsed.first + parsed.seeds, parsed.step):
            if not any(parsed.only in each.name for each in study.situations_of(seed)):
                continue
            print(study.case(scheduler, seed).line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
