"""The plugin's timing: each value has a unit, and the defaults fit those of the kubelet."""

from __future__ import annotations

import dataclasses

import pytest

from neuron_dra.node.timing import DEFAULT_TIMING
from tests.support.timings import names, quicker


def test_names_have_units() -> None:
    shares = {"client.credentials.ahead_share"}
    assert [name for name in names(DEFAULT_TIMING) if not name.endswith("_s") and name not in shares] == []


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    pause_s: tuple[float, float] = (0.5, 30.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = Inner()
    period_s: float = 600.0


def test_names_have_their_groups() -> None:
    assert list(names(Outer())) == ["inner.pause_s", "period_s"]


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
