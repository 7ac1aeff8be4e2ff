"""Laws of the memo, which keeps the decisions about jobs and queues. Issue 4.05."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_dra.planner.fleet.memo import EVERYTHING, Decision, Memo

NAMES = ("a1", "a2", "b1", "b2", "c1")
NAMESPACES = ("a", "b", "c")
ERROR = ValueError("too large")


def new_memo() -> Memo[str, int, str]:
    return Memo(lambda name: (name[0], name))


class Laws(RuleBasedStateMachine):
    """Objects with a value each. A decision is about the sum of the object's value, its namespace's and everybody's.

    It writes an even sum. A large one is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memo = new_memo()
        self.values: dict[str, int] = {}
        self.namespaces = dict.fromkeys(NAMESPACES, 0)
        self.common = 0

    def decision(self, name: str) -> Decision[int, str]:
        if name not in self.values:
            return Decision()
        total = self.values[name] + self.namespaces[name[0]] + self.common
        errors: dict[str, Exception] = {name: ERROR} if total > 7 else {}
        return Decision({name: total} if total % 2 == 0 else {}, [f"{total}"], errors=errors)

    @rule(name=st.sampled_from(NAMES), value=st.none() | st.integers(1, 3))
    def change(self, name: str, value: int | None) -> None:
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value
        self.memo.mark(name)

    @rule(namespace=st.sampled_from(NAMESPACES), value=st.integers(0, 3))
    def change_namespace(self, namespace: str, value: int) -> None:
        self.namespaces[namespace] = value
        for changed, _ in self.memo.differences("namespaces", self.namespaces.items()):
            self.memo.mark_with(changed)

    @rule(value=st.integers(0, 3))
    def change_everything(self, value: int) -> None:
        self.common = value
        self.memo.mark_with(EVERYTHING)

    @rule(at_most=st.integers(1, 3))
    def decide(self, at_most: int) -> None:
        before = self.memo.undecided
        for name in self.memo.take(at_most):
            decision = self.decision(name)
            inputs = [name[0]] if name in self.values else None
            moved = {*self.memo.of(name).writes, *decision.writes}
            self.memo.keep(name, decision, inputs)
            assert self.memo.take_moved() == moved
        assert self.memo.undecided == max(before - at_most, 0)

    @invariant()
    def kept_equals_decided_again(self) -> None:
        decided = {name for name in NAMES if name not in self.memo._marked}
        decisions = {name: self.decision(name) for name in decided}
        assert {name: self.memo.of(name) for name in decided} == decisions
        assert self.memo.writes == {name: total for each in decisions.values() for name, total in each.writes.items()}
        assert {name for name in decided if decisions[name].errors} == self.memo.errors.keys() & decided


Laws.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLaws = Laws.TestCase


def keep(memo: Memo[str, int, str], name: str, writes: int | None = None) -> None:
    memo.keep(name, Decision({} if writes is None else {"shared": writes}), [])


def test_namespaces_take_turns_each_in_its_order() -> None:
    memo = new_memo()
    for name in ("a2", "a1", "a3", "b2", "b1"):
        memo.mark(name)
    assert [*memo.take(4)] == ["a1", "b1", "a2", "b2"]
    assert memo.undecided == 1


def test_what_a_decision_marks_is_taken_with_it() -> None:
    memo = new_memo()
    for name in ("a1", "a2", "a3"):
        keep(memo, name)
    memo.mark("a2")
    taken = []
    for name in memo.take():
        taken.append(name)
        if len(taken) == 1:
            memo.mark_after(name, EVERYTHING)
    assert taken == ["a2", "a3"]


def test_write_passes_to_another_decision() -> None:
    """Two jobs of one name: the second one gets the name when the first one gives it back."""
    memo = new_memo()
    keep(memo, "a1", writes=1)
    memo.mark("a1")
    memo.mark("a2")
    assert memo.writes == {}
    taken = memo.take()
    next(taken)
    keep(memo, "a1")
    next(taken)
    keep(memo, "a2", writes=2)
    memo.mark("a1")
    assert memo.writes == {"shared": 2}


def test_input_without_differences_changes_nothing() -> None:
    memo = new_memo()
    assert memo.differences("unread", {"u1", "u2"}) == {"u1", "u2"}
    assert memo.differences("unread", ["u2", "u1"]) == set()
    assert memo.differences("unread", {"u2", "u3"}) == {"u1", "u3"}
    assert memo.differences("unsettled", {"u2"}) == {"u2"}
