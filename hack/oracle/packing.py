#!/usr/bin/env python3
"""Measure how well the published order of connected sets packs, and write docs/reports/packing.md.

100,000 random arrivals and departures on a node of each type, and on a fleet of 100 nodes; `hack/oracle/packing_walk.py`
plays them. Fails if a step violates a law, or a node places less than 95 % of what full knowledge places of the big
requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.oracle import packing_walk as packing
from hack.reports.reporting import commit_now

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = REPOSITORY / "docs" / "reports" / "packing.md"


TYPES: Final = ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")
FLEET: Final = ("inf2.48xlarge", 100)
SEEDS: Final = range(1, 6)
AT_LEAST: Final = 0.95

ORDERS: Final = {
    "published order": packing.in_published_order,
    "naive order": packing.in_naive_order,
    "full knowledge": packing.with_full_knowledge,
}


def played(instance_type: str, choose: packing.Choice, steps: int, nodes: int, *, best_node: bool) -> packing.Outcome:
    """Return the sum of the runs of all seeds."""
    total, offered = packing.Outcome(), packing.offer(instance_type)
    for seed in SEEDS:
        one = packing.run(offered, choose, nodes=nodes, best_node=best_node, steps=steps // len(SEEDS), seed=seed)
        total.requested += one.requested
        total.placed += one.placed
        total.wrong += one.wrong
    return total


def rows(instance_type: str, steps: int, nodes: int) -> tuple[list[str], float, list[str]]:
    """Return the rows of the table, the published order's share of full knowledge's big requests, the violations."""
    offered, found, wrong = packing.offer(instance_type), [], []
    shares: dict[tuple[str, bool], float] = {}
    for best_node in (False, True) if nodes > 1 else (False,):
        for name, choose in ORDERS.items():
            began = time.monotonic()
            outcome = played(instance_type, choose, steps, nodes, best_node=best_node)
            shares[name, best_node] = outcome.share(offered.big)
            wrong += [f"{instance_type}, {name}: {text}" for text in outcome.wrong[:3]]
            where = (
                instance_type if nodes == 1 else f"{nodes} × {instance_type}, {'fullest' if best_node else 'any'} node"
            )
            big = sum(outcome.requested[size] for size in offered.big)
            found.append(
                f"| {where} | {name} | {big:,} | {shares[name, best_node]:.1%} | "
                f"{outcome.share(list(offered.places)):.1%} |"
            )
            print(f"{found[-1]} {time.monotonic() - began:.0f} s", flush=True)
    return found, shares["published order", False] / shares["full knowledge", False], wrong


def main(arguments: Sequence[str]) -> int:
    """Run everything, write the report; return 1 if a law is violated or the order packs too badly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="arrivals and departures on each type")
    parser.add_argument("--report", action="store_true", help=f"write {REPORT.relative_to(REPOSITORY)}")
    parsed = parser.parse_args(arguments)
    table, ratios, wrong = [], [], []
    for instance_type, nodes in (*((each, 1) for each in TYPES), FLEET):
        found, ratio, violations = rows(instance_type, parsed.steps, nodes)
        table += found
        wrong += violations
        ratios.append(f"{nodes} × {instance_type} {ratio:.1%}")
        if nodes == 1 and ratio < AT_LEAST:
            wrong.append(f"{instance_type}: the published order places {ratio:.1%} of what full knowledge does")
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"published order as a share of full knowledge: {', '.join(ratios)}")
    if parsed.report:
        REPORT.write_text(report(parsed.steps, table, ratios, wrong))
    return 1 if wrong else 0


def report(steps: int, table: list[str], ratios: list[str], wrong: list[str]) -> str:
    """Return docs/reports/packing.md."""
    return "\n".join(
        (
            "# Packing of connected sets",
            "",
            f"Commit {commit_now()}, `python -m hack.oracle.packing --report`: {steps:,} random arrivals and departures on each "
            f"type, seeds {SEEDS.start} to {SEEDS[-1]}.",
            "Requests are for every published size of devices and cores; small sizes are more frequent, so that each size",
            "requests about the same number of cores. A big request is one for a third of the node or more. More arrives",
            "than ends, so the nodes are always full, and much is refused.",
            "",
            "- *Published order* is what the driver publishes: the scheduler takes the first free place of the size.",
            "- *Naive order* publishes the places of a size in a random order.",
            "- *Full knowledge* takes the place that leaves the most published devices available.",
            "- In the fleet, *any node* is a random one that has a free place, as the scheduler does not rank nodes by their",
            "  devices; *fullest node* is the one with the fewest free cores.",
            "",
            "| nodes | choice | big requests | placed of these | placed of all |",
            "| --- | --- | --- | --- | --- |",
            *table,
            "",
            f"Big requests placed, as a share of full knowledge on the same nodes: {', '.join(ratios)}.",
            "",
            "Every step was checked: each place was contiguous and free, and no request was refused while a place of its size",
            "was free on some node." if not wrong else "Violations:\n\n" + "\n".join(f"- {text}" for text in wrong),
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
