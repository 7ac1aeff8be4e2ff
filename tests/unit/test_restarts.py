"""The limit and the back-off of RestartAll. Issue 13, number 4."""

from __future__ import annotations

import copy
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.planner.decisions.actions import Evict
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Workload
from neuron_dra.planner.plan import restart_limit
from tests.unit.failing_world import LIMITS, attribute, degraded, evicted, held, running, start_pods
from tests.unit.ultraserver_world import World

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


def break_it(world: World) -> None:
    """Make a device of the group's first node unhealthy for longer than the grace; earlier ones recover."""
    for item in world.all("ResourceSlice"):
        attribute(world, item["spec"]["nodeName"], "unhealthy", None)
    attribute(world, held(world)[0][2], "unhealthy", {"string": "hbm_ecc"})
    world.settle(LIMITS)
    world.later(30)


def restarted(world: World) -> int:
    return int(world.workload("job")["status"].get("restarts", 0))


def test_fourth_restart_in_a_row_is_denied() -> None:
    """13.4: a workload with repeatedly failing nodes was restarted without end."""
    world = running("RestartAll", servers=2, count=1)
    for number in (1, 2, 3):
        break_it(world)
        world.later(600)
        world.settle(LIMITS)
        start_pods(world)
        world.settle(LIMITS)
        assert (restarted(world), world.state("job")[0]) == (number, "Allocated")
    world.log.clear()
    break_it(world)
    for _ in range(10):
        world.later(600)
        world.settle(LIMITS)
    assert (evicted(world), restarted(world)) == ([], 3)
    reason, message = degraded(world)
    assert reason == "RestartLimitExceeded"
    assert "RestartAll has restarted the workload 3 times in a row and stops" in message
    assert "nodes with unhealthy or missing devices" in message


def test_restart_counts_although_its_status_is_stored_late() -> None:
    """Found by a crash: the new group was Bound before the status was sent, and the restart counted as withdrawn."""
    world = running("RestartAll", servers=2, count=1)
    before = copy.deepcopy(world.workload("job")["status"])
    break_it(world)
    world.settle(LIMITS)
    after = world.workload("job")["status"]
    again = held(world)
    counted = {key: after[key] for key in ("restarts", "restartedAt")}
    marker = {"since": after["restartedAt"][0], "reason": "DeviceUnhealthy", "message": ""}
    late = {**before, **counted, "state": "Deallocating", "restarting": marker}
    world.put({**world.workload("job"), "status": late})
    world.settle(LIMITS)
    status = world.workload("job")["status"]
    assert (held(world), {key: status.get(key) for key in counted}) == (again, counted)
    assert "restarting" not in status


def test_restart_count_resets_after_an_hour() -> None:
    """13.4."""
    world = running("RestartAll", servers=2, count=1)
    break_it(world)
    world.settle(LIMITS)
    start_pods(world)
    world.settle(LIMITS)
    assert len(world.workload("job")["status"]["restartedAt"]) == 1
    world.later(3599)
    world.settle(LIMITS)
    assert len(world.workload("job")["status"]["restartedAt"]) == 1
    assert world.plan(LIMITS).recheck == world.now + datetime.timedelta(seconds=1)
    world.later(1)
    world.settle(LIMITS)
    assert "restartedAt" not in world.workload("job")["status"]
    assert restarted(world) == 1


def test_second_restart_waits_ten_seconds() -> None:
    """13.4."""
    world = running("RestartAll", servers=3, count=1)
    break_it(world)
    world.settle(LIMITS)
    start_pods(world)
    world.settle(LIMITS)
    world.log.clear()
    was = held(world)
    world.remove("Node", was[0][2])
    world.settle(LIMITS)
    assert (held(world), [a for a in world.log if isinstance(a, Evict)]) == (was, [])
    assert degraded(world)[0] == "NodeGone"
    assert degraded(world)[1].endswith("RestartAll begins restart 2 in a row at 2026-03-01T12:00:40Z")
    assert world.plan(LIMITS).recheck == world.now + datetime.timedelta(seconds=10)
    world.later(10)
    world.step(LIMITS)
    assert world.state("job") == ("Deallocating", "Restarting")


def workload(begun: list[float], ready_for: float | None, degraded_for: float | None) -> Workload:
    """A workload with restarts at these ages, in seconds. None: not Ready, Degraded."""

    def ago(seconds: float) -> str:
        return (NOW - datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    conditions = [
        {
            "type": "Ready",
            "status": "False" if ready_for is None else "True",
            "lastTransitionTime": ago(ready_for or 0),
        },
        {
            "type": "Degraded",
            "status": "True" if degraded_for is None else "False",
            "lastTransitionTime": ago(degraded_for or 0),
        },
    ]
    status = {"restartedAt": [ago(each) for each in begun], "conditions": conditions}
    return decode.workload({"metadata": {"name": "job"}, "spec": {}, "status": status})


@pytest.mark.parametrize(
    ("begun", "waits"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 600), (8, 600)]
)
def test_restart_delay_doubles_to_ten_minutes(begun: int, waits: int) -> None:
    """13.4."""
    found = restart_limit.next_restart(workload([100.0] * begun, None, None), NOW, 16)
    assert found == restart_limit.NextRestart(begun + 1, NOW + datetime.timedelta(seconds=waits - 100))


def test_restart_limit_0_prevents_restarts() -> None:
    assert restart_limit.next_restart(workload([], None, None), NOW, 0) == restart_limit.NextRestart(1, None)


def test_a_first_restart_begins_at_once() -> None:
    assert restart_limit.next_restart(workload([], 5.0, 5.0), NOW, 3) == restart_limit.NextRestart(1, NOW)


@given(
    st.lists(st.integers(0, 8000), max_size=6).map(lambda found: sorted(map(float, found), reverse=True)),
    st.none() | st.integers(0, 8000).map(float),
    st.none() | st.integers(0, 8000).map(float),
    st.integers(1, 5),
)
def test_restart_limit_holds_in_any_state(
    begun: list[float], ready: float | None, degraded_for: float | None, limit: int
) -> None:
    """13.4."""
    found = workload(begun, ready, degraded_for)
    healthy_for = min(ready, degraded_for) if ready is not None and degraded_for is not None else 0.0
    turn = restart_limit.next_restart(found, NOW, limit)
    may = turn.begins_at is not None
    assert may == (len(begun) < limit or healthy_for >= 3600)
    if may and begun and healthy_for < 3600:
        assert turn.begins_at is not None
        assert turn.begins_at >= NOW + datetime.timedelta(seconds=10 - begun[-1])
