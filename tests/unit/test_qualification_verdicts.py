"""What the pods of a test say about their nodes, and what follows from many results. Issue 36, number 2."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.qualify import survey
from controller.qualify.model import PodOfTest, Qualification, Threshold, pod_of_test, qualification
from controller.qualify.survey import ResultSurvey
from controller.qualify.verdict import GroupVerdict, Judgement, judge, medians
from controller.timing import QualifyTiming
from neuron_dra.core.qualification import NAMESPACE, TESTS, Target, figures, target
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.results import GroupResult

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
TIMING = QualifyTiming(start_s=600.0, settle_s=90.0)
FAST = Threshold("bandwidth", at_least=140.0, percent=90.0)
SLOW = Threshold("p99", at_most=20.0)


def asked(*thresholds: Threshold, timeout_s: float = 300.0) -> Qualification:
    hour = datetime.timedelta(hours=1)
    timeout = datetime.timedelta(seconds=timeout_s)
    types = ("trn3.48xlarge",)
    return Qualification("nightly", "uid", "1", 1, types, 4, "image", 24 * hour, 48 * hour, 2, timeout, thresholds)


def pod(number: int = 0, **changes: Any) -> PodOfTest:
    created = NOW - datetime.timedelta(seconds=60)
    made = PodOfTest(NAMESPACE, f"t-{number}", f"uid-{number}", "t", None, f"n{number}", created, False)
    return replace(made, **changes)


def ended(number: int = 0, code: int = 0, **said: Any) -> PodOfTest:
    return pod(number, started=NOW, exit_code=code, message=json.dumps(said) if said else "")


def verdict(*pods: PodOfTest, of: Qualification, known: dict[str, float] | None = None, after_s: float = 0.0) -> Any:
    return judge(pods, of, known or {}, NOW + datetime.timedelta(seconds=after_s), TIMING)


def test_worst_figure_of_any_pod_counts() -> None:
    pods = [ended(0, bandwidth=150, p99=11.5), ended(1, bandwidth=141.5, p99=12)]
    assert verdict(*pods, of=asked(FAST, SLOW)) == Judgement(GroupVerdict.PASSED, "", {"bandwidth": 141.5, "p99": 12.0})


@pytest.mark.parametrize(
    ("bandwidth", "median", "text"),
    [
        (139.9, None, "bandwidth 139.9 is below 140"),
        (140.0, None, ""),
        (140.0, 155.0, ""),
        (150.0, 200.0, "bandwidth 150 is below 180 (90 % of the median 200)"),
        (139.0, 100.0, "bandwidth 139 is below 140"),  # the floor holds, however slow the others are
    ],
)
def test_relative_threshold_has_a_floor(bandwidth: float, median: float | None, text: str) -> None:
    known = {} if median is None else {"bandwidth": median}
    found = verdict(ended(bandwidth=bandwidth), of=asked(FAST), known=known)
    assert (found.outcome is GroupVerdict.PASSED, found.message) == (not text, text)


def test_median_needs_eight_samples() -> None:
    assert medians({"bandwidth": [1.0] * 7}) == {}
    assert medians({"bandwidth": [1.0, 9.0, *[5.0] * 6]}) == {"bandwidth": 5.0}


def test_exit_status_fails_when_all_have_ended() -> None:
    found = verdict(ended(0, 1), ended(1), of=asked())
    assert found == Judgement(GroupVerdict.FAILED, "ended on n0 with 1")


def test_partner_of_a_failed_pod_is_awaited_because_its_node_may_be_dead() -> None:
    pods = (ended(0, 1), pod(1, started=NOW))
    assert verdict(*pods, of=asked(), after_s=89) is None
    assert verdict(*pods, of=asked(), after_s=90).message == "ended on n0 with 1; has not ended: n1"


def test_test_that_hangs_fails_at_its_time_out() -> None:
    pods = (ended(0), pod(1, started=NOW))
    assert verdict(*pods, of=asked(), after_s=299) is None
    assert verdict(*pods, of=asked(), after_s=300) == Judgement(GroupVerdict.FAILED, "has not ended within 300 s: n1")


def test_pods_that_never_start_are_no_verdict_although_others_fail() -> None:
    pods = (ended(0, 1), pod(1))
    assert verdict(*pods, of=asked(), after_s=539) is None
    assert verdict(*pods, of=asked(), after_s=540) == Judgement(GroupVerdict.NONE, "pods that did not start: t-1")


@pytest.mark.parametrize("message", ["", "no JSON", "[1]", '{"bandwidth": "fast"}', '{"bandwidth": NaN}'])
def test_program_that_reports_nothing_is_no_verdict(message: str) -> None:
    found = verdict(pod(started=NOW, exit_code=0, message=message), of=asked(FAST))
    assert found == Judgement(GroupVerdict.NONE, "no pod reports: bandwidth")


@pytest.mark.parametrize(
    ("status", "lost"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"phase": "Failed"}, "it failed before its container started"),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "ImagePullBackOff",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 127}}}]},
            "exit code 127, no such command",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "OOMKilled",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}, ""),
    ],
)
def test_pod_that_says_nothing_about_its_node(status: dict[str, Any], lost: str) -> None:
    read = pod_of_test({"metadata": {"name": "t-0", "namespace": NAMESPACE}, "status": status})
    assert read.lost == lost
    if lost:
        assert verdict(read, ended(1), of=asked()).outcome is GroupVerdict.NONE


def test_deleted_pod_is_no_verdict() -> None:
    assert verdict(ended(0, 1), pod(1, deleting=True, started=NOW), of=asked()).outcome is GroupVerdict.NONE


@given(st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x)))
def test_no_message_breaks_the_reading(text: str, value: Any) -> None:
    for message in (text, json.dumps({"bandwidth": value}), json.dumps({f"f{n}": 1.5 for n in range(40)})):
        found = figures(message)
        assert len(found) <= 16
        assert all(abs(each) <= 1e15 for each in found.values())


def test_figures_are_in_the_last_line() -> None:
    assert figures('starting\n{"bandwidth": 150, "ok": true, "Bad name": 1}\n') == {"bandwidth": 150.0}


@pytest.mark.parametrize(
    ("namespace", "text", "found"),
    [
        (NAMESPACE, "nightly/uid/3/u0/2", Target("nightly", "uid", 3, "u0", 2)),
        ("ml", "nightly/uid/3/u0/2", None),
        (NAMESPACE, "nightly/uid/3/u0", None),
        (NAMESPACE, "nightly/uid/x/u0/2", None),
    ],
)
def test_only_the_namespace_of_tests_has_targets(namespace: str, text: str, found: Target | None) -> None:
    assert target(namespace, {TESTS: text}) == found


def test_spec_that_an_older_crd_let_pass_tests_nothing() -> None:
    spec = {"thresholds": [{"name": "bandwidth", "percentOfMedian": 90}], "topologySize": 3, "period": "soon"}
    read = qualification({"metadata": {"name": "q"}, "spec": spec})
    for text in ("spec.image", "threshold bandwidth", "topologySize is 3", "spec.period"):
        assert text in read.problem


# -- results of a fleet


def result(number: int = 0, *, passed: bool = True, minutes: float = 0, **changes: Any) -> GroupResult:
    names = tuple(f"u{number}-{node}" for node in range(4))
    moment = NOW + datetime.timedelta(minutes=minutes)
    made = GroupResult("nightly", 1, names, tuple(f"uid-{name}" for name in names), passed, 0 if passed else 1, moment)
    return replace(made, passed_at=moment if passed else None, **changes)


UIDS = {f"u{number}-{node}": f"uid-u{number}-{node}" for number in range(3) for node in range(4)}


def after(*tests: GroupResult, storm: str = "") -> GroupResult:
    have: tuple[GroupResult, ...] = ()
    for each in tests:
        have = survey.with_result(have, each, asked(), storm, UIDS)
    [found] = have
    return found


def test_failing_twice_is_a_fault_that_a_pass_clears() -> None:
    bad = [result(passed=False, minutes=minutes) for minutes in range(3)]
    assert not after(bad[0]).unqualified
    assert after(*bad[:2]).unqualified
    assert (after(*bad).failures, after(*bad).unqualified) == (3, True)
    passed = after(*bad, result(minutes=4))
    assert (passed.failures, passed.unqualified, passed.passed) == (0, False, True)


def test_pass_between_failures_starts_anew() -> None:
    assert not after(result(passed=False), result(minutes=1), result(passed=False, minutes=2)).unqualified


def test_failure_keeps_when_it_last_passed() -> None:
    assert after(result(), result(passed=False, minutes=5)).passed_at == NOW


def test_no_fault_is_raised_in_a_storm() -> None:
    bad = [result(passed=False, minutes=minutes) for minutes in range(3)]
    assert not after(*bad, storm="many failed").unqualified


def test_other_instance_of_a_node_starts_anew() -> None:
    bad = result(passed=False, unqualified=True, node_uids=("old", "uid-u0-1", "uid-u0-2", "uid-u0-3"))
    assert survey.with_result((bad,), result(passed=False), asked(), "", UIDS) == (result(passed=False),)


@pytest.mark.parametrize(
    ("failed", "of", "storm"),
    [
        (1, 1, False),
        (1, 2, False),
        (2, 2, True),
        (2, 9, True),
        (2, 10, False),
        (4, 20, False),
        (5, 20, True),
        (5, 40, False),
    ],
)
def test_storm_is_more_than_a_fifth_of_the_last_twenty(failed: int, of: int, storm: bool) -> None:
    found = [(f"u{number}", result(number, passed=number >= failed)) for number in range(of)]
    # The failures are the oldest: of 40 groups, 20 passed since.
    window = tuple(reversed(found))[: survey.WINDOW]
    assert bool(ResultSurvey(window=window).storm) == storm


def test_entries_that_cannot_be_read_do_not_count() -> None:
    good = results.written([result()])
    broken: list[Any] = [
        None,
        1,
        {},
        {**good[0], "nodes": []},
        {**good[0], "nodeUids": ["a"]},
        {**good[0], "testedAt": "x"},
    ]
    assert results.read({"qualifications": [*broken, *good]}) == (result(),)
    assert results.read({"qualifications": {"a": 1}}) == ()


@given(st.booleans(), st.floats(-1e12, 1e12), st.integers(0, 5))
def test_results_survive_the_api(passed: bool, value: float, failures: int) -> None:
    have = result(passed=passed, failures=failures, figures={"bandwidth": value}, message="m", test="t")
    assert results.read(json.loads(json.dumps({"qualifications": results.written([have])}))) == (have,)


def test_last_failure_on_any_node_ends_a_pass() -> None:
    pair = replace(result(passed=False), qualification="other", nodes=("u0-3",), node_uids=("uid-u0-3",))
    assert results.passed_at((result(),), ["u0-0", "u0-1"]) == NOW
    assert results.passed_at((result(), pair), ["u0-0", "u0-3"]) is None
    assert results.passed_at((pair,), ["u0-0"]) is None
