"""What `make acceptance ONLY=faults` makes of the outcomes of its cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hack.oracle.judge import CannotBuild, Scheduler, build_scheduler
from hack.reports import causes
from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.causes import study
from tests.support.causes.__main__ import GATES


def outcome(seed: int, *situations: str, verdict: str = "true", useless: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "seed": seed,
        "situations": list(situations),
        "true": list(situations),
        "verdict": verdict,
        "code": "Code",
        "text": "the cause",
        "changes": len(useless) + 1,
        "useless": list(useless),
    }


GOOD = [outcome(seed, "cordoned") for seed in range(199)]


def test_aims_are_reached() -> None:
    assert causes.missed([*GOOD, outcome(199, "quota")]) == []


def test_share_of_all_and_of_each_situation_are_aims() -> None:
    unknown = [outcome(200 + number, "quota", verdict="unknown") for number in range(10)]
    assert causes.missed([*GOOD, *unknown]) == [
        "a true cause first in 95.2% of all, less than 97%",
        "quota: a true cause first in 0.0%, less than 90%",
    ]


def test_false_cause_and_useless_change_are_named() -> None:
    false = outcome(199, "cordoned", "quota", verdict="false", useless=("kubectl uncordon a: it is full",))
    assert causes.missed([*GOOD[:150], false, outcome(200, "quota"), *(outcome(n, "quota") for n in range(9))]) == [
        "a false cause first in 0.6%, more than 0.5%",
        "seed 199: a change does not help: kubectl uncordon a: it is full",
    ]


def test_page_has_a_row_for_each_situation() -> None:
    page = causes.report([*GOOD, outcome(199, "cordoned", "quota", verdict="false")], {"cordoned": "A", "quota": "B"})
    assert "| cordoned | A | 200 | 99.5% | 0 | 1 | 200 | 0 |" in page
    assert "| quota | B | 1 | 0.0% | 0 | 1 | 1 | 0 |" in page
    assert "- seed 199, cordoned and quota: false, Code: the cause" in page


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    try:
        program = build_scheduler(tmp_path_factory.mktemp("scheduler") / "scheduler")
    except CannotBuild as err:
        pytest.skip(str(err))
    with Scheduler(program, GATES) as made:
        yield made


def two_pods() -> list[Obj]:
    """A pod that fits, and one that does not."""
    items = small.base("a")
    for name, count in (("p", 4), ("q", 17)):
        made = small.template(name, count)
        items += [made, *small.created(small.pod(name, name), made)]
    return items


@pytest.mark.long
def test_scheduler_decides_on_each_pod(scheduler: Scheduler) -> None:
    [found] = scheduler.ask([two_pods()])
    assert found.pods["default/p"] == {"node": "a"}
    assert found.pods["default/q"]["message"].startswith("0/1 nodes are available: 1 cannot allocate all claims.")


@pytest.mark.long
def test_pod_that_is_gated_is_not_tried(scheduler: Scheduler) -> None:
    items = two_pods()
    reported.pod(items)["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    [found] = scheduler.ask([items])
    assert found.pods["default/p"] == {"gate": "SchedulingGates"}


@pytest.mark.long
def test_first_causes_are_true(scheduler: Scheduler) -> None:
    found = [study.case(scheduler, seed) for seed in range(0, 140, 14)]
    assert [each for each in found if each.verdict != "true" or each.useless] == []
