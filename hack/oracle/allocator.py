#!/usr/bin/env python3
"""Use connected sets at random on Kubernetes' own allocator: `make acceptance ONLY=allocator`.

Each type has a third of the steps on one node, in parts of 1,000 that each begin with an empty node. Fails if a step
violates a law of `hack/oracle/allocator_walk.py`. The program is hack/oracle, which needs Go; times are those of the
allocator for one claim on one node.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.bench.table import quantile
from hack.oracle import allocator_walk
from hack.oracle import judge as oracle

REPOSITORY = Path(__file__).resolve().parents[2]


TYPES: Final = ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")
PART: Final = 1000
SHOWN: Final = 20  # violations


def main(arguments: Sequence[str]) -> int:
    """Play all steps; return 1 if one violates a law."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="arrivals and departures on all types together")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first part of each type; each further one has the next"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--program", type=Path, help="the built oracle (default: build it)")
    parsed = parser.parse_args(arguments)
    program = parsed.program or oracle.build(REPOSITORY / "build" / "oracle")
    totals = {instance_type: allocator_walk.Walk() for instance_type in TYPES}
    share, seed, began = -(-parsed.steps // len(TYPES)), parsed.seed, time.monotonic()
    with oracle.Oracle(program) as answers:
        while (left := share - totals[TYPES[0]].steps) > 0 and time.monotonic() - began < parsed.minutes * 60:
            for instance_type, total in totals.items():
                total.add(allocator_walk.walk(answers, instance_type, steps=min(PART, left), seed=seed))
            done = sum(total.steps for total in totals.values())
            print(f"seed {seed}: {done:,} steps in {time.monotonic() - began:.0f} s", flush=True)
            seed += 1
    for instance_type, total in totals.items():
        print(f"{instance_type}: {total.steps:,} steps, {total.placed:,} placed, {total.refused:,} refused")
        for text in total.wrong[:SHOWN]:
            print(f"FAILED {instance_type}, {text}")
    is_wrong = any(total.wrong for total in totals.values())
    times = "; ".join(
        f"{name} {_ms(one.placed_s)} placed, {_ms(one.refused_s)} refused" for name, one in totals.items()
    )
    print(f"{'FAILED' if is_wrong else 'passed'}, {done:,} steps; ms for a node, p50/p99: {times}")
    return 1 if is_wrong else 0


def _ms(seconds: Sequence[float]) -> str:
    return f"{quantile(seconds, 0.5) * 1000:.1f}/{quantile(seconds, 0.99) * 1000:.1f}" if seconds else "none"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
