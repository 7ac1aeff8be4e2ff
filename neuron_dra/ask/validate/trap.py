"""The allocator of Kubernetes 1.34 and 1.35 tries permutations: how many, at worst, for the requests of a claim. Pure.

Later versions try combinations. The search ends after 10 s for each node, which is then skipped, so a claim that is
close to fitting on busy nodes can delay every pod.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MANY: Final = 1_000_000
"""Steps above which 10 s may not suffice. A claim for 16 of 16 devices has 10^12 of them."""


@dataclass(frozen=True, slots=True)
class WantedCount:
    """A request for `count` devices, any of `choices` that match it together, such as a node's or a group's."""

    count: int
    choices: int


def worst_steps(requests: Sequence[WantedCount]) -> int:
    """Return the devices that are tried at most until a node is found not to fit, because one device is missing.

    The worst node has all devices for all requests but the last, and one too few for that. Then every order of every
    choice for the others is tried with every order of what there is for the last one.
    """
    if not requests:
        return 0
    *other_counts, last = requests
    before = math.prod(
        math.perm(max(wanted_count.choices, wanted_count.count), wanted_count.count) for wanted_count in other_counts
    )
    remaining = last.count - 1
    return before * sum(math.perm(remaining, taken) for taken in range(remaining + 1))
