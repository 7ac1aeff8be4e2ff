"""python -m tests.support.fleet --seed N: run one seed, or several, and print the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection

from tests.support.fleet.actors import ACTORS
from tests.support.fleet.interference import beside_a_victim
from tests.support.fleet.run import Outcome, replay_command, run

STEPS = 20
ULTRASERVERS = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fleet", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the first seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--ultraservers", type=int, default=ULTRASERVERS, metavar="K", help="(default %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="S", help="steps of a seed (default %(default)s)")
    parser.add_argument(
        "--actors",
        metavar="NAMES",
        help="who takes part besides those that always do, separated by commas, or all, or none (default: the seed "
        f"chooses); {', '.join(ACTORS)}",
    )
    parser.add_argument(
        "--beside-a-victim",
        action="store_true",
        help="a tenant makes any requests beside a workload that must be allocated in time",
    )
    parser.add_argument("--quiet", action="store_true", help="no trace of a seed that violates nothing")
    parsed = parser.parse_args(arguments)
    actors = None if parsed.actors is None else named(parsed.actors)
    if actors is not None and (unknown := sorted(actors - ACTORS.keys())):
        parser.error(f"--actors: there is no {', '.join(unknown)}; write of {', '.join(ACTORS)}, or all, or none")
    failed = 0
    for seed in range(parsed.seed, parsed.seed + parsed.seeds):
        if parsed.beside_a_victim:
            outcome = beside_a_victim(seed, ultraservers=parsed.ultraservers)
        else:
            outcome = run(seed, ultraservers=parsed.ultraservers, steps=parsed.steps, actors=actors)
        failed += bool(outcome.violation)
        if outcome.violation or not parsed.quiet:
            print("\n".join(outcome.trace))
        print(summary(outcome, parsed.ultraservers, parsed.steps, actors), flush=True)
    return 1 if failed else 0


def named(text: str) -> frozenset[str]:
    """Return the actors in the text of --actors."""
    if text in ("all", "none"):
        return frozenset(ACTORS if text == "all" else ())
    return frozenset(name.strip() for name in text.split(","))


def summary(outcome: Outcome, ultraservers: int, steps: int, actors: Collection[str] | None = None) -> str:
    """Return the result of a run in a line or two."""
    text = f"seed {outcome.seed}: {outcome.simulated_s:.0f} s simulated in {outcome.took_s:.2f} s"
    if not outcome.violation:
        return f"{text}, no violation"
    return f"{text}, VIOLATED: {outcome.violation}\nreplay: {replay_command(outcome.seed, ultraservers, steps, actors)}"


if __name__ == "__main__":
    sys.exit(main())
