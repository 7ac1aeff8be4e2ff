"""Withdrawn claims: a prepare that began before the unprepare never commits, even if the withdrawal was dropped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core.checkpoint import Checkpoint, decode, encode
from neuron_dra.core.withdrawals import KEPT, Mark, Withdrawals

uids = st.sampled_from([f"uid-{number}" for number in range(2 * KEPT)])


@given(st.lists(st.lists(uids, min_size=1, max_size=KEPT + 3), max_size=12), st.data())
def test_withdrawal_applies_to_earlier_prepares(batches: list[list[str]], data: st.DataObject) -> None:
    states = [Withdrawals()]
    for batch in batches:
        states.append(states[-1].adding(batch))
    now = states[-1]
    began = data.draw(st.integers(0, len(batches)))
    after = {uid for batch in batches[began:] for uid in batch}
    assert len(now.claims) <= KEPT
    certain = {uid for batch in batches for uid in batch if now.certainly_since(states[began].mark, uid)}
    assert certain == {uid for uid in after if uid in now.claims}
    assert all(now.since(states[began].mark, uid) for uid in after)
    if now.floor <= began:  # no later withdrawal was dropped
        assert {uid for batch in batches for uid in batch if now.since(states[began].mark, uid)} == after


def test_rebuild_withdraws_all_earlier_prepares() -> None:
    before = Withdrawals().adding(["a"]).adding(["b"])
    rebuilt = Withdrawals(era="1f")
    assert rebuilt.since(before.mark, "c")
    assert rebuilt.since(Mark(), "c")
    assert not rebuilt.since(rebuilt.mark, "c")
    assert not rebuilt.adding(["c"]).certainly_since(before.mark, "c")


def test_decreased_count_is_treated_as_withdrawn() -> None:
    assert Withdrawals().since(Mark(count=1), "a")


def test_checkpoint_keeps_withdrawals() -> None:
    before = Checkpoint("boot", extra={"newer": 1})
    after = decode(encode(before.withdrawing(["a", "b"])))
    assert json.loads(encode(after))["withdrawn"] == {"era": "", "count": 1, "floor": 0, "claims": {"a": 1, "b": 1}}
    assert (after.withdrawals, after.extra["newer"]) == (Withdrawals().adding(["a", "b"]), 1)
    assert after.with_withdrawals(Withdrawals()) == before


@pytest.mark.parametrize(
    "wire", [None, [], {"era": 1}, {"era": "", "count": True, "floor": 0, "claims": {}}, {"era": "", "count": 1}]
)
def test_invalid_withdrawals_are_empty(wire: object) -> None:
    assert Withdrawals.from_wire(wire) == Withdrawals()
