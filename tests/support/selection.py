"""Which tests run: with `--quick` quick ones, and a sample of those marked `sampled` unless NEURON_DRA_LONG is set."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from hack.slow_tests import LIST, read_list

NOT_QUICK: Final = ("testbed", "tool", "long")
"""Marks of tests that need more than Python, or minutes."""
ROOT: Final = Path(__file__).resolve().parents[2]


class QuickTests:
    """A plugin that leaves out the tests in tests/slow_tests.txt, and those that need more than Python."""

    def __init__(self) -> None:
        self.slow_names = frozenset(read_list(LIST))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.is_relative_to(ROOT):
            return None
        return True if collection_path.relative_to(ROOT).as_posix() in self.slow_names else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        _keep(config, items, [test for test in items if self._is_quick(test)])

    def _is_quick(self, test: pytest.Item) -> bool:
        is_listed = _function_id(test) in self.slow_names
        return not is_listed and not any(test.get_closest_marker(mark) for mark in NOT_QUICK)


class SampledTests:
    """A plugin that keeps one in N cases of each function marked `sampled(N)`: other cases for each commit.

    Workers of one run must choose the same cases, so the choice depends on nothing else.
    """

    def __init__(self, commit: str) -> None:
        self.commit = commit

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        ids_by_function: dict[str, list[str]] = defaultdict(list)
        one_in_by_function: dict[str, int] = {}
        for test in items:
            if mark := test.get_closest_marker("sampled"):
                ids_by_function[_function_id(test)].append(test.nodeid)
                one_in_by_function[_function_id(test)] = mark.args[0]
        left_out: set[str] = set()
        for function_id, test_ids in ids_by_function.items():
            left_out.update(set(test_ids) - sample(test_ids, one_in_by_function[function_id], self.commit))
        _keep(config, items, [test for test in items if test.nodeid not in left_out])


def sampled_tests(config: pytest.Config) -> SampledTests | None:
    """Return the plugin that samples, or None if NEURON_DRA_LONG asks for all cases or the command line names tests."""
    names_tests = any("::" in argument for argument in config.invocation_params.args)
    return None if os.environ.get("NEURON_DRA_LONG") or names_tests else SampledTests(_commit())


def sample(test_ids: Sequence[str], one_in: int, commit: str) -> set[str]:
    """Return one in N tests, at least one: those that come first in an order which depends on the commit."""
    in_order = sorted(test_ids, key=lambda test_id: hashlib.sha256(f"{commit} {test_id}".encode()).digest())
    return set(in_order[: math.ceil(len(in_order) / one_in)])


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # without git every run takes the same cases
        return ""


def _function_id(test: pytest.Item) -> str:
    return test.nodeid.partition("[")[0]


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    kept_ids = {id(test) for test in kept}
    left_out = [test for test in items if id(test) not in kept_ids]
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
