"""The first causes that `why` names, judged by Kubernetes' own scheduler, as `make night ONLY=faults` does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.oracle.judge import CannotBuild, Scheduler, build_scheduler
from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.causes import study
from tests.support.causes.__main__ import GATES


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


def test_scheduler_decides_on_each_pod(scheduler: Scheduler) -> None:
    [found] = scheduler.ask([two_pods()])
    assert found.pods["default/p"] == {"node": "a"}
    assert found.pods["default/q"]["message"].startswith("0/1 nodes are available: 1 cannot allocate all claims.")


def test_pod_that_is_gated_is_not_tried(scheduler: Scheduler) -> None:
    items = two_pods()
    reported.pod(items)["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    [found] = scheduler.ask([items])
    assert found.pods["default/p"] == {"gate": "SchedulingGates"}


def test_first_causes_are_true(scheduler: Scheduler) -> None:
    found = [study.case(scheduler, seed) for seed in range(0, 140, 14)]
    assert [each for each in found if each.verdict != "true" or each.useless] == []
