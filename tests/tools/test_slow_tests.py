"""`make quick` leaves out what earlier runs measured as slow, and `make test` samples what is marked so."""

from __future__ import annotations

from pathlib import Path

from hack.slow_tests import LIST, Cost, changes, costs, decide, is_a_test, read_list
from tests.support.selection import sample

JUNIT = """<testsuites><testsuite>
{cases}
</testsuite></testsuites>"""
CASE = (
    """<testcase classname="tests.unit.test_backoff" name="{name}"><properties>{properties}</properties></testcase>"""
)
QUICK, BETWEEN, SLOW = Cost(5.0), Cost(50.0), Cost(80.0)


def junit(folder: Path, *cases: tuple[str, str]) -> Path:
    path = folder / "results.xml"
    path.write_text(JUNIT.format(cases="\n".join(CASE.format(name=name, properties=text) for name, text in cases)))
    return path


def cpu(milliseconds: float) -> str:
    return f'<property name="cpu_ms" value="{milliseconds}" />'


def test_cases_of_a_function_count_as_one(tmp_path: Path) -> None:
    path = junit(tmp_path, ("test_waits[1]", cpu(300)), ("test_waits[2]", cpu(7)), ("test_waits[3]", cpu(9)))
    assert costs([path]) == {"tests/unit/test_backoff.py::test_waits": Cost(9.0)}


def test_function_that_starts_a_process_is_slow(tmp_path: Path) -> None:
    path = junit(tmp_path, ("test_waits", cpu(1) + '<property name="processes" value="1" />'))
    assert decide(costs([path]), {}) == {"tests/unit/test_backoff.py::test_waits": "process"}


def test_function_stays_what_it_was_between_the_limits() -> None:
    measured = {"a.py::test_1": BETWEEN, "a.py::test_2": BETWEEN, "a.py::test_3": QUICK}
    assert decide(measured, {"a.py::test_1": "80 ms"}) == {"a.py::test_1": "80 ms"}


def test_slow_functions_become_their_file() -> None:
    assert decide({"a.py::test_1": SLOW, "a.py::test_2": SLOW}, {}) == {"a.py": "every function"}


def test_file_becomes_its_slow_functions() -> None:
    measured = {"a.py::test_1": SLOW, "a.py::test_2": QUICK}
    assert decide(measured, {"a.py": "every function"}) == {"a.py::test_1": "80 ms"}


def test_function_that_did_not_run_keeps_its_place() -> None:
    assert decide({"b.py::test_1": QUICK}, {"a.py::test_1": "80 ms", "c.py": "every function"}) == {
        "a.py::test_1": "80 ms",
        "c.py": "every function",
    }


def test_changes_name_what_became_slow_and_quick() -> None:
    assert changes({"a.py::test_1": "80 ms"}, {"b.py::test_1": "process"}) == [
        "became slow: b.py::test_1 (process)",
        "became quick: a.py::test_1",
    ]


def test_list_names_tests_that_exist() -> None:
    slow_names = read_list(LIST)
    assert len(slow_names) > 50
    assert [name for name in slow_names if not is_a_test(name)] == []


def test_sample_is_a_share_of_the_cases() -> None:
    cases = [f"test_finds[{number}]" for number in range(40)]
    assert len(sample(cases, 5, "c0ffee")) == 8
    assert len(sample(cases[:1], 5, "c0ffee")) == 1


def test_samples_of_some_commits_together_are_all_cases() -> None:
    cases = [f"test_finds[{number}]" for number in range(40)]
    assert set().union(*(sample(cases, 5, f"commit {number}") for number in range(60))) == set(cases)
