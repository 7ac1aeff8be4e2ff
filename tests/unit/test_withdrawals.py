"""Withdrawn claims: a prepare that began before the unprepare never commits, even if the withdrawal was dropped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core.checkpoint import Checkpoint, decode, encode
from neuron_dra.core.withdrawals import KEPT_S, Mark, Withdrawals

uids = st.sampled_from([f"uid-{number}" for number in range(130)])
batches_of_uids = st.lists(st.tuples(st.lists(uids, min_size=1, max_size=70), st.integers(0, 2 * KEPT_S)), max_size=12)


@given(batches_of_uids, st.data())
def test_withdrawal_applies_to_earlier_prepares(batches: list[tuple[list[str], int]], data: st.DataObject) -> None:
    """Each batch comes a number of seconds after the one before."""
    states, moments = [Withdrawals()], [0]
    for batch, pause in batches:
        moments.append(moments[-1] + pause)
        states.append(states[-1].adding(batch, moments[-1]))
    now = states[-1]
    assert Checkpoint("boot").with_withdrawals(now).mark == now.mark
    began = data.draw(st.integers(0, len(batches)))
    after = {uid for batch, _ in batches[began:] for uid in batch}
    everything = {uid for batch, _ in batches for uid in batch}
    certain = {uid for uid in everything if now.certainly_since(states[began].mark, uid)}
    assert certain == {uid for uid in after if uid in now.claims}
    assert all(now.since(states[began].mark, uid) for uid in after)
    kept = {
        uid for (batch, _), at in zip(batches, moments[1:], strict=True) for uid in batch if at >= moments[-1] - KEPT_S
    }
    assert set(now.claims) == kept
    if now.floor <= began:  # no later withdrawal was dropped
        assert {uid for uid in everything if now.since(states[began].mark, uid)} == after


def test_many_withdrawals_do_not_reject_a_prepare_of_another_claim() -> None:
    before = Withdrawals()
    after = before
    for number in range(1000):
        after = after.adding([f"uid-{number}"], 7 + number % 60)
    assert not after.since(before.mark, "another")
    assert len(after.seconds) <= 60


def test_withdrawals_without_seconds_are_kept_from_now_on() -> None:
    """The release before has no seconds."""
    theirs = Withdrawals("", 2, 0, {"a": 1, "b": 2})
    after = theirs.adding(["c"], 1000)
    assert after == Withdrawals("", 3, 0, {"a": 1, "b": 2, "c": 3}, {1000: 3})
    assert after.adding(["d"], 1001 + KEPT_S) == Withdrawals("", 4, 3, {"d": 4}, {1001 + KEPT_S: 4})


def test_rebuild_withdraws_all_earlier_prepares() -> None:
    before = Withdrawals().adding(["a"], 1).adding(["b"], 2)
    rebuilt = Withdrawals(era="1f")
    assert rebuilt.since(before.mark, "c")
    assert rebuilt.since(Mark(), "c")
    assert not rebuilt.since(rebuilt.mark, "c")
    assert not rebuilt.adding(["c"], 3).certainly_since(before.mark, "c")


def test_decreased_count_is_treated_as_withdrawn() -> None:
    assert Withdrawals().since(Mark(count=1), "a")


def test_checkpoint_keeps_withdrawals() -> None:
    before = Checkpoint("boot", extra={"newer": 1})
    after = decode(encode(before.withdrawing(["a", "b"], 5)))
    wire = {"era": "", "count": 1, "floor": 0, "claims": {"a": 1, "b": 1}, "seconds": {"5": 1}}
    assert json.loads(encode(after))["withdrawn"] == wire
    assert (after.withdrawals, after.extra["newer"]) == (Withdrawals().adding(["a", "b"], 5), 1)
    assert after.with_withdrawals(Withdrawals()) == before


@pytest.mark.parametrize(
    "wire", [None, [], {"era": 1}, {"era": "", "count": True, "floor": 0, "claims": {}}, {"era": "", "count": 1}]
)
def test_invalid_withdrawals_are_empty(wire: object) -> None:
    assert Withdrawals.from_wire(wire) == Withdrawals()
    assert Mark.from_wire(wire) == Mark()
