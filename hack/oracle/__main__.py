"""Compare what the driver publishes and simulates with Kubernetes' own programs: `python -m hack.oracle STUDY`.

`make night` runs each study in full size; a smaller --number tries it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from hack.bed import build
from hack.oracle import allocator, packing, placements, queueing, quotas
from hack.oracle.study import Options

STUDIES = {
    "allocator": allocator.study,
    "kueue": queueing.study,
    "packing": packing.study,
    "placements": placements.study,
    "quotas": quotas.study,
}


def main(arguments: Sequence[str]) -> int:
    """Run a study; return 1 if it finds a difference or a violation."""
    parser = argparse.ArgumentParser(prog="python -m hack.oracle", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--number", type=int, default=0, help="steps or cases (default: all, as make night)")
    parser.add_argument("--first", type=int, default=1, help="the first seed or case")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after so long")
    parser.add_argument("--kubernetes", choices=build.KUBERNETES)
    parser.add_argument("--report", action="store_true", help="write the study's report, if it has one")
    parsed = vars(parser.parse_args(arguments))
    return STUDIES[parsed.pop("study")](Options(**parsed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
