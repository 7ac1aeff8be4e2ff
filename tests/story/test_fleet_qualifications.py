"""Tests of free groups in the virtual fleet: real controllers, plugins and claims. Issue 36, number 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from controller.apply.write_backoff import Tries
from controller.qualify import decide, survey, verdict, yielding
from controller.qualify import qualifications as qualify
from controller.qualify.model import EXEMPT
from controller.qualify.pace import Pace
from controller.qualify.qualifications import Qualifications
from controller.timing import QualifyTiming
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.ultraserver import object_name
from neuron_dra.core.wire import Obj
from neuron_dra.kube.requests import NEURON_QUALIFICATIONS, NEURON_WORKLOADS, NODES
from neuron_dra.planner.fleet import suitable
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.results import GroupResult
from tests.support.fleet import programs, qualifications
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.nodes import BROKEN_MODES
from tests.support.fleet.run import run
from tests.support.fleet.schedule import Schedule
from tests.support.fleet.view import condition, state

Story = Callable[[Schedule], Coroutine[Any, Any, None]]


def told(story: Story, *, ultraservers: int = 2, seed: int = 1, beside: Collection[str] = ()) -> None:
    """Let a story happen in a fleet that has come up."""

    async def drive(fleet: Fleet, steps: int) -> None:
        schedule = Schedule(fleet)
        await schedule.begin()
        await story(schedule)

    outcome = run(seed, drive=drive, actors={"qualifications", *beside}, ultraservers=ultraservers)
    assert outcome.violation == ""


def found(fleet: Fleet) -> list[GroupResult]:
    """Return all results, by nodes."""
    each = [result for item in fleet.view.all("neuronultraservers") for result in results.read(item["status"])]
    return sorted(each, key=lambda result: result.nodes)


async def until(fleet: Fleet, holds: Callable[[], bool], within_s: float, *, every_s: float = 0.5) -> None:
    """Wait until something holds, and look `every_s`."""
    deadline = fleet.clock.elapsed + within_s
    while not holds():
        assert fleet.clock.elapsed < deadline, "\n".join(fleet.trace.lines[-40:])
        await fleet.sleep(every_s)


def left(fleet: Fleet) -> list[Any]:
    """Return what is left of tests."""
    pods = [each for each in fleet.view.all("pods") if each["metadata"]["namespace"] == NAMESPACE]
    return [*pods, *fleet.view.held(), *fleet.view.workloads()]


def placed(fleet: Fleet, made: Obj | None) -> set[str]:
    """Return the nodes of a workload."""
    assert made is not None
    return {node for held in fleet.view.of(made["metadata"]["uid"]) for node in held.allocation.nodes}


def test_free_groups_are_tested_and_given_back() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await qualifications.begin(schedule, topologySize=4, maxGroups=1)
        await until(fleet, lambda: len(found(fleet)) == 2, 120)
        await until(fleet, lambda: not left(fleet), 30)
        for each in found(fleet):
            assert (each.passed, each.failures, dict(each.figures)) == (True, 0, {"bandwidth": 150.0, "p99": 12.0})
        await fleet.sleep(40)  # numbers alone are written now and then
        asked = fleet.view.find("neuronultraserverqualifications", qualifications.NAME)
        assert asked is not None
        status = asked["status"]
        assert (status["fresh"], status["failed"], condition(asked, "Ready")["status"]) == (2, 0, "True")

    told(story)


def test_pod_of_a_test_has_no_token_and_the_rank_of_its_node() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (30.0, 30.0)
        await qualifications.begin(schedule, topologySize=2)
        await until(fleet, lambda: len(fleet.pods.running) == 2, 60)
        assert sorted(each.rank for each in fleet.pods.running.values() if each.rank is not None) == [0, 1]
        envs = [each.env for each in fleet.pods.running.values()]
        assert all(env["NEURON_DRA_WORLD_SIZE"] == "2" and env["NEURON_DRA_RANK0_ADDR"] for env in envs)
        pod = fleet.view.all("pods")[0]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["terminationGracePeriodSeconds"] == 5

    told(story)


def test_waiting_jobs_get_the_nodes_of_tests_within_ten_seconds() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (1000.0, 1000.0)
        await qualifications.begin(schedule, topologySize=1, maxGroups=12, timeout="1h")
        await until(fleet, lambda: len(fleet.pods.running) == 12, 120)
        await qualifications.yields(schedule)
        assert not qualifications.tests(schedule)

    told(story, ultraservers=3)


def test_no_test_begins_while_a_job_waits_for_the_nodes_of_tests() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (1000.0, 1000.0)
        await qualifications.begin(schedule, topologySize=1, maxGroups=12, timeout="1h")
        await until(fleet, lambda: len(fleet.pods.running) == 12, 120)
        before = reserved_for_tests(fleet)
        made = await fleet.submit("job", 4, 2)
        await until(fleet, lambda: len(placed(fleet, made)) == 8, 60)
        assert reserved_for_tests(fleet) == before

    told(story, ultraservers=3)


def test_job_gets_other_tested_nodes_if_one_dies_meanwhile() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (1000.0, 1000.0)
        await qualifications.begin(schedule, topologySize=4, maxGroups=2, timeout="1h")
        await until(fleet, lambda: len(fleet.pods.running) == 8, 60)
        made = await fleet.submit("job", 4, 1)
        # The node dies while the other test ends, which takes less than a second.
        await until(fleet, lambda: len(qualifications.tests(schedule)) == 1, 5, every_s=0.05)
        [going] = qualifications.tests(schedule)
        staying = {node for held in fleet.view.of(going["metadata"]["uid"]) for node in held.allocation.nodes}
        dead = next(node for name, node in fleet.nodes.items() if name not in staying)
        dead.alive = dead.kubelet_up = False
        await fleet.set_ready(dead, False)
        await until(fleet, lambda: placed(fleet, made) == staying, 10)

    told(story)


def test_job_that_does_not_fit_even_without_tests_ends_none() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (60.0, 60.0)
        await fleet.submit("holds", 4, 1)
        await fleet.sleep(5)
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await until(fleet, lambda: len(fleet.pods.running) == 4, 60)
        await fleet.submit("two", 4, 2)
        await until(fleet, lambda: len(found(fleet)) == 1, 80)
        assert found(fleet)[0].passed

    told(story)


def test_slow_node_is_unqualified_after_two_tests_and_again_good_after_repair() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        slow = sorted(fleet.nodes)[0]
        fleet.programs.on[slow] = programs.SLOW
        await qualifications.begin(schedule, topologySize=4, maxGroups=2, period="10m")
        await until(fleet, lambda: any(each.unqualified for each in found(fleet)), 180)
        [bad] = [each for each in found(fleet) if each.unqualified]
        assert (slow in bad.nodes, bad.failures) == (True, 2)
        assert bad.message == "bandwidth 129.5 is below 140"

        def degraded() -> list[str]:
            conditions = [condition(item, "Degraded") for item in fleet.view.all("neuronultraservers")]
            return [each["reason"] for each in conditions if each["status"] == "True"]

        await until(fleet, lambda: degraded() == ["Unqualified"], 60)

        first = await fleet.submit("first", 4, 1)
        second = await fleet.submit("second", 1, 1)
        await until(fleet, lambda: len(placed(fleet, first)) == 4, 30)
        assert placed(fleet, first).isdisjoint(bad.nodes)
        await fleet.sleep(20)
        assert placed(fleet, second) == set()
        waiting = fleet.view.find("neuronultraserverworkloads", "second", "fleet")
        assert waiting is not None
        assert condition(waiting, "Ready")["reason"] == "NotQualified"

        fleet.programs.on.clear()
        await until(fleet, lambda: bool(placed(fleet, second)), 800)

    told(story)


def test_administrator_may_exempt_an_ultraserver() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        bad = fleet.nodes[sorted(fleet.nodes)[0]]
        fleet.programs.on[bad.name] = programs.SLOW
        await qualifications.begin(schedule, topologySize=4, maxGroups=2, period="1h")
        await until(fleet, lambda: any(each.unqualified for each in found(fleet)), 180)
        patch = {"metadata": {"annotations": {EXEMPT: f"{object_name(bad.block)}, other"}}}
        await fleet.patch(NEURON_QUALIFICATIONS, "", qualifications.NAME, patch)
        await until(fleet, lambda: not any(each.unqualified for each in found(fleet)), 20)
        assert [each.failures for each in found(fleet)] == [2, 0]

    told(story)


def test_failures_of_most_groups_are_a_storm_and_no_fault() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.on = dict.fromkeys(fleet.nodes, programs.FAILS)
        await qualifications.begin(schedule, topologySize=4, maxGroups=1)

        await until(fleet, lambda: reason_of(fleet) == "FailureStorm", 400)
        await until(fleet, lambda: not left(fleet), 30)
        assert not [each for each in found(fleet) if each.unqualified]
        number = len(fleet.trace.lines)
        await fleet.sleep(300)
        assert not [line for line in fleet.trace.lines[number:] if "program of" in line]

        fleet.programs.on.clear()
        await fleet.patch(NEURON_QUALIFICATIONS, "", qualifications.NAME, {"spec": {"attempt": 1}})
        await until(fleet, lambda: all(each.passed for each in found(fleet)), 200)

    told(story)


def test_image_that_cannot_be_pulled_and_lies_are_no_verdict() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        first, *_, last = sorted(fleet.nodes)
        fleet.programs.on = {first: programs.NO_IMAGE, last: programs.LIES}
        await qualifications.begin(schedule, topologySize=1, maxGroups=8)
        await until(fleet, lambda: len(found(fleet)) == 6, 120)
        await fleet.sleep(60)
        assert all(each.passed and {first, last}.isdisjoint(each.nodes) for each in found(fleet))

    told(story)


def test_test_whose_pod_is_deleted_is_no_verdict() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (20.0, 20.0)
        await qualifications.begin(schedule, topologySize=4, maxGroups=1)
        await until(fleet, lambda: len(fleet.pods.running) == 4, 60)
        [test] = qualifications.tests(schedule)
        pod = fleet.view.find("pods", f"{test['metadata']['name']}-0", NAMESPACE)
        assert pod is not None
        await fleet.pods.delete(dict(pod), now=True)
        await until(fleet, lambda: test["metadata"]["uid"] not in fleet.view.workloads(), 40)
        assert found(fleet) == []
        await until(fleet, lambda: len(found(fleet)) == 2, 300)
        assert all(each.passed for each in found(fleet))

    told(story)


def test_workload_may_require_a_recent_test_and_its_candidates_go_first() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await qualifications.begin(schedule, topologySize=4, maxGroups=1, period="1h")
        await until(fleet, lambda: len(found(fleet)) == 2, 120)
        await fleet.sleep(700)
        made = await fleet.submit("sure", 4, 1, qualification={"maxAge": "10m"})
        await fleet.sleep(3)
        assert placed(fleet, made) == set()
        await until(fleet, lambda: len(placed(fleet, made)) == 4, 90)
        [fresh] = [each for each in found(fleet) if {*each.nodes} == placed(fleet, made)]
        assert fresh.passed_at is not None
        assert (fleet.clock.now() - fresh.passed_at).total_seconds() < 100

    told(story)


def test_results_go_with_their_qualification() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.on = {sorted(fleet.nodes)[0]: programs.FAILS}
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await until(fleet, lambda: any(each.unqualified for each in found(fleet)), 180)
        await fleet.remove(NEURON_QUALIFICATIONS, "", qualifications.NAME)
        await until(fleet, lambda: not left(fleet) and not found(fleet), 60)
        await fleet.settle("without qualifications")

    told(story)


def test_another_node_of_the_name_starts_anew() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        first = fleet.nodes[sorted(fleet.nodes)[0]]
        fleet.programs.on = {first.name: programs.FAILS}
        await qualifications.begin(schedule, topologySize=1, maxGroups=8)
        await until(fleet, lambda: any(each.unqualified for each in found(fleet)), 180)
        fleet.programs.on.clear()
        await fleet.remove(NODES, "", first.name)
        first.incarnation += 1
        await fleet.register(first)
        await until(fleet, lambda: all(each.passed for each in found(fleet)), 300)

    told(story)


def test_qualification_may_be_suspended() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await qualifications.begin(schedule, topologySize=4, maxGroups=2, suspend=True)
        await fleet.sleep(60)
        assert (found(fleet), left(fleet)) == ([], [])
        asked = fleet.view.find("neuronultraserverqualifications", qualifications.NAME)
        assert asked is not None
        assert condition(asked, "Ready")["reason"] == "Suspended"
        assert state(asked) == "None"

    told(story)


def reason_of(fleet: Fleet) -> Any:
    """Return the reason of the qualification's condition Ready."""
    asked = fleet.view.find("neuronultraserverqualifications", qualifications.NAME)
    return condition(asked or {}, "Ready").get("reason")


def started(fleet: Fleet) -> int:
    """Return how many pods of tests have started."""
    return len([line for line in fleet.trace.lines if f"container of {NAMESPACE}/" in line])


def reserved_for_tests(fleet: Fleet) -> int:
    """Return how often nodes were reserved for a test."""
    return len([line for line in fleet.trace.lines if f" {qualifications.NAME}-" in line and "reserved on" in line])


def test_tests_end_as_soon_as_a_plan_finds_that_somebody_waits() -> None:
    """4.02: the next look at tests came up to a second later, because only changes of objects began one."""

    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (300.0, 300.0)
        await qualifications.begin(schedule, topologySize=4, maxGroups=64, timeout="1h")
        await until(fleet, lambda: len(qualifications.tests(schedule)) == 2, 60)
        await fleet.sleep(30.0)
        waits_s = []
        for number in range(4):
            await fleet.submit(f"waits-{number}", 4, 1)
            began = fleet.clock.elapsed
            while len(qualifications.tests(schedule)) == 2:
                await fleet.sleep(0.05)
            waits_s.append(fleet.clock.elapsed - began)
            await fleet.remove(NEURON_WORKLOADS, USERS, f"waits-{number}")
            await until(fleet, lambda: len(qualifications.tests(schedule)) == 2, 200)
            await fleet.sleep(30.3)
        assert max(waits_s) < 0.5, waits_s

    told(story)


def test_job_without_a_claim_to_spares_ends_no_test_on_them() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await fleet.submit("holds", 4, 1)
        await fleet.sleep(5)
        fleet.programs.lasts_s = (50.0, 50.0)
        await qualifications.begin(schedule, topologySize=4)
        await until(fleet, lambda: len(fleet.pods.running) == 4, 60)
        await fleet.submit("waits", 4, 1)
        await until(fleet, lambda: len(found(fleet)) == 1, 70)
        assert found(fleet)[0].passed

    told(story, beside={"spares"})


def test_test_that_hangs_fails_after_its_time_out() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        slow = sorted(fleet.nodes)[0]
        fleet.programs.on = {slow: programs.HANGS}
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await until(fleet, lambda: len(found(fleet)) == 2, 120)
        [bad] = [each for each in found(fleet) if not each.passed]
        assert bad.message == f"has not ended within 60 s: {slow}"

    told(story)


def test_few_groups_have_no_median() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.on = {sorted(fleet.nodes)[-1]: programs.SLOW}
        bounds = [{"name": "bandwidth", "atLeast": 100, "percentOfMedian": 90}]
        await qualifications.begin(schedule, topologySize=4, maxGroups=1, thresholds=bounds)
        await until(fleet, lambda: len(found(fleet)) == 3, 200)
        assert sorted(each.figures["bandwidth"] for each in found(fleet)) == [129.5, 150, 150]
        assert all(each.passed for each in found(fleet))

    told(story, ultraservers=3)


def test_test_whose_node_gets_a_fault_is_no_verdict() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        node = fleet.nodes[sorted(fleet.nodes)[0]]
        fleet.programs.lasts_s = (30.0, 30.0)
        fleet.programs.on = {node.name: programs.FAILS}
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await until(fleet, lambda: len(fleet.pods.running) == 8, 60)
        node.set_modes(BROKEN_MODES[1])
        await until(fleet, lambda: len(found(fleet)) == 1, 60)
        await fleet.sleep(60)
        assert [each.passed for each in found(fleet)] == [True]

    told(story)


def test_suspended_qualification_ends_its_tests() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (50.0, 50.0)
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await until(fleet, lambda: len(fleet.pods.running) == 8, 60)
        await fleet.patch(NEURON_QUALIFICATIONS, "", qualifications.NAME, {"spec": {"suspend": True}})
        await until(fleet, lambda: not left(fleet), 20)
        assert found(fleet) == []

    told(story)


def test_no_test_begins_during_an_outage() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        gone = [node for node in fleet.nodes.values() if not node.block.endswith("-0")]
        for node in gone:
            node.kubelet_up = False
            await fleet.set_ready(node, False)
        await qualifications.begin(schedule, topologySize=4)
        await until(fleet, lambda: reason_of(fleet) == "Outage", 30)
        await fleet.sleep(60)
        assert started(fleet) == 0
        for node in gone:
            await schedule.bring_back(node)
        await until(fleet, lambda: len(found(fleet)) == 3, 200)

    told(story, ultraservers=3)


def test_group_without_a_verdict_is_not_tested_at_once() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.on = dict.fromkeys(fleet.nodes, programs.LIES)
        await qualifications.begin(schedule, topologySize=4, maxGroups=2)
        await fleet.sleep(170)
        assert 8 <= started(fleet) <= 24

    told(story)


def test_tests_begin_one_after_the_other_after_twenty() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        fleet.programs.lasts_s = (300.0, 300.0)
        await qualifications.begin(schedule, topologySize=1, maxGroups=64, timeout="1h")
        began = fleet.clock.elapsed
        await until(fleet, lambda: len(qualifications.tests(schedule)) >= 15, 10)
        await until(fleet, lambda: len(qualifications.tests(schedule)) == 24, 30)
        assert fleet.clock.elapsed - began >= 3 * QualifyTiming().begin_s

    told(story, ultraservers=6)


def test_results_of_a_deleted_qualification_go_slowly() -> None:
    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await qualifications.begin(schedule, topologySize=4, maxGroups=64)
        await until(fleet, lambda: len(found(fleet)) == 6, 120)
        await until(fleet, lambda: not left(fleet), 60)
        await fleet.remove(NEURON_QUALIFICATIONS, "", qualifications.NAME)
        await fleet.sleep(15)
        assert 0 < len(found(fleet)) < 6
        await until(fleet, lambda: not found(fleet), 60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qualify, "Pace", lambda at_once, every_s: Pace(1, 5.0))
        told(story, ultraservers=6)


@pytest.mark.parametrize("is_gone", [False, True])
def test_404_of_a_proxy_discards_no_results(*, is_gone: bool) -> None:
    """4.02. The control is a qualification that is deleted meanwhile, of which the API server says so afterwards."""

    async def story(schedule: Schedule) -> None:
        fleet = schedule.fleet
        await qualifications.begin(schedule, topologySize=4, maxGroups=64)
        await until(fleet, lambda: len(found(fleet)) == 2 and not left(fleet), 120)
        lines = [replica.line for replica in fleet.replicas if replica.line is not None]
        for line in lines:
            line.unserved = NEURON_QUALIFICATIONS.plural
            line.break_watches()
        if is_gone:
            await fleet.remove(NEURON_QUALIFICATIONS, "", qualifications.NAME)
        await fleet.sleep(200)
        assert len(found(fleet)) == 2
        for line in lines:
            line.unserved = ""
        await fleet.sleep(200)
        assert len(found(fleet)) == (0 if is_gone else 2)

    told(story)


# -- each rule is needed: without it, a story ends otherwise


def never_yields(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(yielding, "yields", lambda *_: yielding.Yields({}, frozenset()))


def yields_to_anybody(patch: pytest.MonkeyPatch) -> None:
    def yields(index: Any, workloads: Any, tests: Any, now: Any, limits: Any) -> yielding.Yields:
        return yielding.Yields({test.workload.uid: "x" for test in tests if workloads}, frozenset())

    patch.setattr(yielding, "yields", yields)


def counts_on_dead_nodes(patch: pytest.MonkeyPatch) -> None:
    """A test that already ends counts for those who wait, although a node of it has died."""
    serve = yielding._Pool.serve

    def once(self: Any, workload: Any) -> bool:
        stopping = any(test.stopping for test in self._test_of.values())
        return stopping or serve(self, workload)

    patch.setattr(yielding._Pool, "serve", once)


def fails_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survey, "FAILURES", 1)


def sees_no_storm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survey.ResultSurvey, "storm", property(lambda self: ""))


def takes_every_end_for_a_verdict(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_by_figures", lambda *_: verdict.Judgement(verdict.GroupVerdict.PASSED))


def makes_deleted_pods_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Qualifications, "_is_complete", lambda self, test: False)


def chooses_unqualified_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(suitable, "is_qualified", lambda workload, slot, now: True)


def in_any_order_of_tests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survey, "_wants", lambda *_: False)


def trusts_names_of_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupResult, "is_of", lambda self, uids: True)


def keeps_results_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(qualify, "forgotten", lambda index, names: [])


def gives_spares_to_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(yielding, "_spares", lambda *_: frozenset())


def begins_while_somebody_waits(patch: pytest.MonkeyPatch) -> None:
    right = yielding.yields
    patch.setattr(yielding, "yields", lambda *of: dataclasses.replace(right(*of), pausing=frozenset()))


def waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "_unfinished", lambda *_: None)


def trusts_the_median_of_two(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdict, "SAMPLES_AT_LEAST", 1)


def sees_no_other_faults(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "placement", SimpleNamespace(slots=lambda *_: (True,)))
    patch.setattr(decide, "_not_allocated", lambda *_: [])


def goes_on_when_suspended(patch: pytest.MonkeyPatch) -> None:
    right = decide._of_test

    def of_test(view: Any, test: Any) -> Any:
        asked = {name: dataclasses.replace(each, suspended=False) for name, each in view.asked.items()}
        generations = {name: dataclasses.replace(each, generation=1) for name, each in asked.items()}
        return right(dataclasses.replace(view, asked=generations), test)

    patch.setattr(decide, "_of_test", of_test)


def sees_no_outage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "outage", SimpleNamespace(judge=lambda *_, **__: None))


def repeats_tests_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tries, "once_more", lambda self, first_s, now, longest_s: Tries(1, now))


def hurries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pace, "room", lambda self, now: 64)


def keeps_faults_of_storms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survey, "withdrawn", lambda *_: {})


@pytest.mark.parametrize(
    ("sabotage", "story"),
    [
        (never_yields, test_waiting_jobs_get_the_nodes_of_tests_within_ten_seconds),
        (yields_to_anybody, test_job_that_does_not_fit_even_without_tests_ends_none),
        (counts_on_dead_nodes, test_job_gets_other_tested_nodes_if_one_dies_meanwhile),
        (fails_once, test_slow_node_is_unqualified_after_two_tests_and_again_good_after_repair),
        (chooses_unqualified_nodes, test_slow_node_is_unqualified_after_two_tests_and_again_good_after_repair),
        (sees_no_storm, test_failures_of_most_groups_are_a_storm_and_no_fault),
        (takes_every_end_for_a_verdict, test_image_that_cannot_be_pulled_and_lies_are_no_verdict),
        (makes_deleted_pods_again, test_test_whose_pod_is_deleted_is_no_verdict),
        (in_any_order_of_tests, test_workload_may_require_a_recent_test_and_its_candidates_go_first),
        (trusts_names_of_nodes, test_another_node_of_the_name_starts_anew),
        (keeps_results_for_ever, test_results_go_with_their_qualification),
        (gives_spares_to_everybody, test_job_without_a_claim_to_spares_ends_no_test_on_them),
        (begins_while_somebody_waits, test_no_test_begins_while_a_job_waits_for_the_nodes_of_tests),
        (waits_for_ever, test_test_that_hangs_fails_after_its_time_out),
        (trusts_the_median_of_two, test_few_groups_have_no_median),
        (sees_no_other_faults, test_test_whose_node_gets_a_fault_is_no_verdict),
        (goes_on_when_suspended, test_suspended_qualification_ends_its_tests),
        (sees_no_outage, test_no_test_begins_during_an_outage),
        (repeats_tests_at_once, test_group_without_a_verdict_is_not_tested_at_once),
        (hurries, test_tests_begin_one_after_the_other_after_twenty),
        (keeps_faults_of_storms, test_administrator_may_exempt_an_ultraserver),
    ],
)
def test_a_story_notices_a_rule_that_is_missing(
    sabotage: Callable[[pytest.MonkeyPatch], None], story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        story()
