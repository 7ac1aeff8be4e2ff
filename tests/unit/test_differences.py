"""Nothing is switched off in the shared fixtures without a reason (4.01)."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from neuron_dra.node.timing import DEFAULT_TIMING
from tests.support.difference_finder import DOUBLES, REAL, computed, defaults, of_timings, unequal
from tests.support.differences import ROWS
from tests.support.timings import quicker


def test_each_difference_has_a_row_with_its_reason() -> None:
    assert sorted(computed() - ROWS.keys()) == []


def test_each_row_is_a_difference() -> None:
    assert sorted(ROWS.keys() - computed()) == []


def test_each_default_of_a_double_has_the_value_of_the_real_part() -> None:
    named = {f"{double}.{name}" for double, name, _ in defaults()}
    assert named == REAL.keys()
    assert {name.rpartition(".")[0] for name in named} == DOUBLES.keys()


def test_new_difference_is_found() -> None:
    module = ModuleType("tests.support.timings")
    module.HASTY = quicker(DEFAULT_TIMING, orphans={"absent_s": 0.0})  # type: ignore[attr-defined]
    assert of_timings(module) == {"timings.HASTY: orphans.absent_s"}


def test_unequal_fields_are_named_with_their_path() -> None:
    changed = quicker(DEFAULT_TIMING, publish={"leaving": {"shape_s": 0.0}}, port_retry_s=1.0)
    assert list(unequal(changed, DEFAULT_TIMING)) == ["publish.leaving.shape_s", "port_retry_s"]
    assert list(unequal(dataclasses.replace(changed), changed)) == []
