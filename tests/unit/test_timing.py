"""The plugin's timing: each value has a unit and a meaning, and the defaults fit those of the kubelet."""

from __future__ import annotations

import dataclasses

import pytest

from neuron_dra.core.timing import TimingField, rows, seconds
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.support.timings import quicker


def test_names_have_units_and_texts() -> None:
    shares = {"client.credentials.ahead_share"}
    assert [row.name for row in rows(DEFAULT_TIMING) if not row.name.endswith("_s") and row.name not in shares] == []
    assert [row.name for row in rows(DEFAULT_TIMING) if not row.text] == []


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    pause_s: tuple[float, float] = seconds((0.5, 30.0), "first and longest")


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = Inner()
    period_s: float = seconds(600.0, "between two")


def test_rows_have_groups_in_their_names() -> None:
    assert list(rows(Outer())) == [
        TimingField("inner.pause_s", "0.5 to 30", "first and longest"),
        TimingField("period_s", "600", "between two"),
    ]


def test_a_quicker_timing_keeps_the_other_values() -> None:
    assert quicker(Outer(), inner={"pause_s": (0.1, 0.2)}) == Outer(Inner((0.1, 0.2)), 600.0)
    with pytest.raises(TypeError, match="longer_s"):
        quicker(Outer(), longer_s=1.0)


def test_waits_end_before_the_kubelets_deadlines() -> None:
    """A prepare may take 45 s, a health list 60 s, and a pod's end 30 s."""
    prepare, kubelet = DEFAULT_TIMING.prepare, DEFAULT_TIMING.kubelet
    assert prepare.fetch_patience_s + prepare.get_s < 45
    assert prepare.lock_s < 45
    assert DEFAULT_TIMING.ultraserver.rejection_wait_s < 45
    assert kubelet.health_s < kubelet.health_timeout_s / 2
    assert kubelet.call_grace_s + kubelet.transaction_grace_s < 30
