"""30.3: a pass makes a limited number of writes for workloads that only wait."""

from __future__ import annotations

import pytest

from controller.apply import budget
from controller.apply.budget import WAITING_WRITES
from controller.decisions.actions import (
    Action,
    CreateTemplate,
    Evict,
    SetFinalizers,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)

MANY = WAITING_WRITES + 50


def finalizer(owner: str, namespace: str = "ml") -> Action:
    return SetFinalizers(namespace, owner, "1", ("ours",), owners=frozenset({owner}))


def status(owner: str, state: str = "Pending", before: str = "Pending") -> Action:
    return WriteWorkloadStatus(
        "ml", owner, owner, "1", {"state": before}, {"state": state}, False, owners=frozenset({owner})
    )


def test_writes_of_waiting_workloads_are_limited_oldest_first() -> None:
    new = [finalizer(f"w{number}") for number in range(MANY)]
    assert budget.within(new, lambda action: False) == ((*new[:WAITING_WRITES],), True)
    old = [status(f"w{number}") for number in range(WAITING_WRITES)]
    assert budget.within(old, lambda action: False) == ((*old,), False)


def test_writes_that_move_a_workload_forward_are_all_made_in_order() -> None:
    owners = [f"v{number}" for number in range(MANY)]
    forward = [
        *(finalizer(owner) for owner in owners),
        *(WriteUltraServerStatus(f"us-{owner}", "1", {}, {}, owners=frozenset({owner})) for owner in owners),
        *(CreateTemplate({}, owners=frozenset({owner})) for owner in owners),
        Evict("ml", "pod", "p"),
        *(status(owner, "Allocating") for owner in owners),
        *(status(f"lost-{owner}", "Pending", "Allocated") for owner in owners),
    ]
    waiting = [status(f"w{number}") for number in range(MANY)]
    assert budget.within([*forward, *waiting], lambda action: False) == ((*forward, *waiting[:WAITING_WRITES]), True)


def test_rejected_writes_do_not_use_up_the_budget() -> None:
    rejected = [status(f"r{number}") for number in range(MANY)]
    waiting = [status(f"w{number}") for number in range(10)]
    assert budget.within([*rejected, *waiting], rejected.__contains__) == ((*rejected, *waiting), False)


@pytest.mark.parametrize("number", [100, 1000, 10_000])
def test_namespace_with_many_writes_delays_no_other(number: int) -> None:
    """4.02: a workload gets nodes only after its finalizer is stored."""
    many = [finalizer(f"a{each}", "a") for each in range(number)]
    others = [finalizer(f"b{each}", "b") for each in range(10)]
    kept, left = budget.within([*many, *others], lambda action: False)
    room = WAITING_WRITES - len(others)
    assert (kept, left) == ((*many[:room], *others), number > room)
