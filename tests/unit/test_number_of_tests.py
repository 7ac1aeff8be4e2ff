"""4.02: a period has at most one test for each group and qualification, whatever the number of results."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import replace

import pytest

from controller.qualify import model, survey
from controller.qualify.model import Qualification
from hack.bench.plan import NOW, fleet
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.fleet.placement import Slot
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.results import RESULTS_AT_MOST, GroupResult

HOUR = datetime.timedelta(hours=1)
NODES = 4


def asked(number: int, *, size: int = 1) -> Qualification:
    meta = {"name": f"q{number:02}", "uid": f"q{number}", "generation": 1}
    spec = {"instanceTypes": ["trn3.48xlarge"], "topologySize": size, "image": "i", "period": "24h"}
    return model.qualification({"metadata": meta, "spec": spec})


def store(index: FleetIndex, slot: Slot, of: Qualification, now: datetime.datetime) -> None:
    """Store that a group has passed, as the API server does."""
    stored = index.ultraserver_by_name[slot.ultraserver]
    uids = {name: index.node_by_name[name].uid for name in index.group_by_name[slot.ultraserver].node_names}
    node_uids = tuple(uids[name] for name in slot.nodes)
    passed = GroupResult(of.name, 1, slot.nodes, node_uids, True, 0, now, now)
    kept = survey.with_result(stored.results, passed, of, "", uids)
    assert len(kept) <= RESULTS_AT_MOST, "the CRD rejects more"
    index.put_ultraserver(stored.name, replace(stored, results=results.read({"qualifications": results.written(kept)})))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("qualifications", [1, 16, 17, 40])
def test_period_has_at_most_one_test_for_each_group_and_qualification(qualifications: int, together: bool) -> None:
    """`together`: all that are due begin before the first result is stored."""
    index = fleet(NODES)
    all_asked = [asked(number) for number in range(qualifications)]
    tests: Counter[tuple[str, str]] = Counter()
    for hour in range(24):
        now = NOW + hour * HOUR
        due = [(of, slot) for of in all_asked for slot, _ in survey.due(index, of, (), now, DEFAULT_LIMITS.block_lead)]
        for of, slot in due if together else due[:20]:
            tests[of.name, slot.nodes[0]] += 1
            store(index, slot, of, now)
        index.refresh()
    assert set(tests.values()) == {1}
    assert sum(tests.values()) >= min(qualifications * NODES, RESULTS_AT_MOST)


def test_groups_are_tested_again_after_the_period() -> None:
    """The control."""
    index, of = fleet(NODES), asked(0)
    for day in range(3):
        due = [slot for slot, _ in survey.due(index, of, (), NOW + day * 24 * HOUR, DEFAULT_LIMITS.block_lead)]
        assert len(due) == NODES
        for slot in due:
            store(index, slot, of, NOW + day * 24 * HOUR)
        index.refresh()
