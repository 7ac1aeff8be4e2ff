"""`why` on seeded single and double faults, with every object read from an API server (17, acceptance 2).

`make night ONLY=faults` lets Kubernetes' scheduler judge 2,000 others (tests/support/causes).
"""

from __future__ import annotations

import random

import pytest

from tests.support.causes.study import through_a_server
from tests.support.cluster_faults import FAULTS, LAST, Fault
from tests.unit.test_why_faults import broken, check_changes, report

SEEDS = 60
AT_ONCE = 20


def faults_of(seed: int) -> list[Fault]:
    """Return one fault, or two of which at most one places pods of its own."""
    rng = random.Random(seed)
    while True:
        found = rng.sample(list(FAULTS), rng.choice((1, 2)))
        if len(set(found) & set(LAST)) < 2:
            return found


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
async def test_cause_is_true_and_changes_work(first: int) -> None:
    wrong = []
    for seed in range(first, min(first + AT_ONCE, SEEDS)):
        faults = faults_of(seed)
        seen = await through_a_server(broken(seed, faults))
        items = [dict(item) for item in seen.objects.values()]
        found = report(items)
        check_changes(items, found)
        if found.findings[0].code not in {"Unknown", *(code for fault in faults for code in FAULTS[fault])}:
            wrong.append((seed, [fault.__name__ for fault in faults], found.findings[0]))
    assert len(wrong) <= AT_ONCE * 0.05, wrong
