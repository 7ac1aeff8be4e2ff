"""Laws of decided writes: what jobs, queues and tests of UltraServers have in common. ADR 16, issue 4.05."""

from __future__ import annotations

import datetime
import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.apply.decided_writes import Attempt, DecidedWrites, Rejection, WriteOutcome, WriteRow
from controller.apply.fence import EndedTerm, Fence
from controller.apply.leader import Alone
from controller.apply.outbox import Answer, OpenRequest
from controller.apply.sender import Sender
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.wire import Obj
from neuron_dra.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unavailable
from neuron_dra.kube.events import EventRecorder
from tests.support.sent_events import send_events
from tests.unit.test_kept_job_decisions import Server
from tests.unit.test_queue_decide import NOW

FIRST_S, LONGEST_S = 1.0, 90.0


@dataclass(frozen=True)
class Write:
    """A write of an object. The other fields are those of its row."""

    content: int = 1
    is_shown: bool = False
    takes: bool = False


@types.coroutine
def _answer() -> Generator[None, Exception | None, None]:
    """Wait until the test answers; raise the error of the answer."""
    error = yield
    if error is not None:
        raise error


class Objects:
    """Decides the writes of objects. The first letter of an object's key is its namespace."""

    def __init__(self) -> None:
        self.leadership = Alone()
        self.fence = Fence(self.leadership)
        self.fence.enter(self.leadership.term)
        sender = Sender(self.fence, DEFAULT_TIMING.outbox)
        self.outbox = sender._outbox
        self.server = Server()
        self.events = EventRecorder(self.server, "here")
        self.now = NOW
        self.decided: dict[str, Write] = {}
        self.barred: set[str] = set()
        self.outcomes: list[Attempt] = []
        self.changes = 0
        retry_s = FIRST_S, LONGEST_S
        self.writes = DecidedWrites("test", self, self.decided, sender, self.events, retry_s, self._note_change)
        self.writes.begin(self.fence.term)
        self.requests: dict[str, tuple[OpenRequest, Coroutine[Any, Any, Answer]]] = {}

    def row(self, key: str, write: Write) -> WriteRow | None:
        if key in self.barred:
            return None
        about = {"kind": "Pod", "namespace": key[0], "name": key}
        rejection = Rejection(about, "WriteRejected", "the label was rejected")
        return WriteRow(key, key[0], "patch pods", rejection, is_shown=write.is_shown, takes=write.takes)

    async def send(self, key: str, write: Write, term: int) -> None:
        await _answer()

    def follow_outcome(self, key: str, write: Write, attempt: Attempt) -> None:
        self.outcomes.append(attempt)

    def _note_change(self) -> None:
        self.changes += 1

    def decide(self, key: str, write: Write | None) -> None:
        """Decide what to write of an object; None: nothing."""
        if write is None:
            self.decided.pop(key, None)
        else:
            self.decided[key] = write
        self.writes.decided([key])

    def place(self) -> datetime.datetime | None:
        return self.writes.place(self.now)

    def take(self) -> OpenRequest | None:
        """Send the next request of the outbox, which gets no answer yet."""
        self.outbox.end_waits()
        request = self.outbox.take(0.0)
        while request is not None and request.term != self.fence.term:
            self.outbox.answered(request, Answer.NOT_SENT, 0.0)  # as the sender does
            request = self.outbox.take(0.0)
        if request is not None:
            self.begin(request)
        return request

    def begin(self, request: OpenRequest) -> None:
        """Send a request until it waits for its answer."""
        coroutine: Any = request.wish.send(request.term)
        coroutine.send(None)
        self.requests[request.wish.part] = request, coroutine

    def answer(self, key: str, error: Exception | None = None) -> Answer:
        """Answer the request for an object; return what the outbox learns."""
        request, coroutine = self.requests.pop(key)
        answer = Answer.NOT_SENT
        try:
            coroutine.send(error)
        except StopIteration as end:
            answer = end.value
        except EndedTerm:
            pass
        self.outbox.answered(request, answer, 0.0)
        return answer

    def send_now(self, error: Exception | None = None) -> list[str]:
        """Send and answer what is due; return the keys."""
        self.place()
        keys = []
        while (request := self.take()) is not None:
            keys.append(request.wish.part)
        for key in keys:
            self.answer(key, error)
        return keys


KEYS = st.sampled_from(["a1", "a2", "b1", "b2"])
WRITES = st.builds(Write, st.integers(1, 2), st.booleans(), st.booleans())
ERRORS = st.sampled_from([None, None, Conflict("x"), Invalid("x"), Unavailable("x"), EndedTerm("x")])


class Laws(RuleBasedStateMachine):
    """Any decisions, answers and terms, and what each write must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.there = Objects()
        self.tries: dict[str, tuple[int, datetime.datetime]] = {}  # by key, the number and the time of the next one
        self.placed_at = NOW
        self.sent: dict[str, Write] = {}
        self.answers = 0

    @rule(key=KEYS, write=st.none() | WRITES)
    def decide(self, key: str, write: Write | None) -> None:
        self.there.decide(key, write)
        if write is None:
            self.tries.pop(key, None)

    @rule(key=KEYS)
    def bar(self, key: str) -> None:
        self.there.barred ^= {key}
        self.there.writes.move([key])

    @rule(seconds=st.sampled_from([0.5, 3.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.there.now += datetime.timedelta(seconds=seconds)

    @rule()
    def end_waits(self) -> None:
        self.there.writes.end_waits()
        self.tries = {}

    @rule()
    def lose_the_lease(self) -> None:
        self.there.leadership.term += 1
        self.there.fence.enter(self.there.leadership.term)
        assert self.there.writes.begin(self.there.fence.term)
        assert not self.there.writes._wished

    @rule()
    def place(self) -> None:
        there, self.placed_at = self.there, self.there.now
        due = there.place()
        wished = set()
        waiting = set()
        for key in there.decided.keys() - self.sent.keys():
            _, next_at = self.tries.get(key, (0, there.now))
            if next_at > there.now:
                waiting.add(next_at)
            elif key not in there.barred:
                wished.add(key)
        assert there.writes._wished.keys() == wished
        assert due == min(waiting, default=None)

    @rule()
    def take(self) -> None:
        request = self.there.take()
        if request is None:
            return
        key = request.wish.part
        assert key not in self.sent, "two requests for one object"
        number, _ = self.tries.get(key, (0, NOW))
        wait = datetime.timedelta(seconds=min(FIRST_S * 3**number, LONGEST_S))
        self.tries[key] = number + 1, self.placed_at + wait
        self.sent[key] = self.there.writes.in_flight[key]

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), error=ERRORS)
    def answer(self, data: st.DataObject, error: Exception | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.sent)))
        self.there.answer(key, error)
        write = self.sent.pop(key)
        self.answers += 1
        assert self.there.changes == self.answers, "the decider looks again"
        if error is None and write.is_shown:
            self.tries.pop(key, None)

    @invariant()
    def what_is_in_flight_is_known(self) -> None:
        assert self.there.writes.in_flight == self.sent

    @invariant()
    def what_is_taken_is_taken_until_its_answer(self) -> None:
        writes = self.there.writes
        in_flight = {key for key, write in self.sent.items() if write.takes}
        assert in_flight <= writes.taking <= in_flight | writes._wished.keys()


Laws.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLaws = Laws.TestCase


def test_written_object_waits_for_its_watch() -> None:
    """A watch may lag: the same write is not sent again at once."""
    there = Objects()
    there.decide("a1", Write())
    assert there.send_now() == ["a1"]
    assert there.place() == NOW + datetime.timedelta(seconds=FIRST_S)
    assert there.send_now() == []
    there.now += datetime.timedelta(seconds=FIRST_S)
    assert there.send_now() == ["a1"]
    assert there.place() == there.now + datetime.timedelta(seconds=3 * FIRST_S)


def test_next_step_does_not_wait_for_a_watch_that_showed_the_last_one() -> None:
    there = Objects()
    there.decide("a1", Write(is_shown=True))
    assert there.send_now() == ["a1"]
    there.decide("a1", Write(2, is_shown=True))
    assert there.send_now() == ["a1"]


def test_rejected_write_waits_longer_each_time() -> None:
    there = Objects()
    there.decide("a1", Write(is_shown=True))
    waits_s = []
    for _ in range(6):
        assert there.send_now(Invalid("x")) == ["a1"]
        due = there.place()
        assert due is not None
        waits_s.append((due - there.now).total_seconds())
        there.now = due
    assert waits_s == [1.0, 3.0, 9.0, 27.0, 81.0, LONGEST_S]


def test_object_that_needs_nothing_forgets_its_tries() -> None:
    there = Objects()
    there.decide("a1", Write())
    there.send_now(Invalid("x"))
    there.decide("a1", None)
    there.decide("a1", Write())
    assert there.send_now() == ["a1"]


def test_write_that_goes_before_it_is_sent_leaves_no_tries() -> None:
    """The outbox has given it to a task, which has not begun."""
    there = Objects()
    there.decide("a1", Write())
    there.place()
    request = there.outbox.take(0.0)
    assert request is not None
    there.decide("a1", None)
    there.place()
    there.begin(request)
    there.answer("a1", Invalid("x"))
    assert there.writes._tries == {}


def test_decision_replaces_a_write_that_was_not_sent() -> None:
    there = Objects()
    there.decide("a1", Write())
    there.place()
    there.decide("a1", None)
    assert there.send_now() == []


def test_write_takes_from_its_decision_to_its_answer() -> None:
    there = Objects()
    taking = []
    for decision in (Write(takes=True), None, Write(takes=True)):
        there.decide("a1", decision)
        there.place()
        taking.append({*there.writes.taking})
    there.take()
    there.decide("a1", None)
    there.place()
    taking.append({*there.writes.taking})
    there.answer("a1")
    taking.append({*there.writes.taking})
    assert taking == [{"a1"}, set(), {"a1"}, {"a1"}, set()]


def test_answer_of_an_earlier_term_wishes_nothing() -> None:
    """The new term decides what it wishes."""
    there = Objects()
    there.decide("a1", Write())
    there.place()
    there.take()
    there.leadership.term += 1
    there.fence.enter(there.leadership.term)
    there.writes.begin(there.fence.term)
    there.decide("a1", None)
    there.answer("a1", EndedTerm("x"))
    assert there.send_now() == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, WriteOutcome.WRITTEN),
        (AlreadyExists("x"), WriteOutcome.CHANGED),
        (Conflict("x"), WriteOutcome.CHANGED),
        (NotFound("x"), WriteOutcome.CHANGED),
        (Forbidden("x"), WriteOutcome.REJECTED),
        (Invalid("x"), WriteOutcome.REJECTED),
        (Unavailable("x"), WriteOutcome.FAILED),
        (ValueError("x"), WriteOutcome.FAILED),
    ],
)
def test_outcome_of_each_answer(error: Exception | None, outcome: WriteOutcome) -> None:
    there = Objects()
    there.decide("a1", Write())
    there.send_now(error)
    assert there.outcomes == [Attempt(outcome, "" if error is None else "x", there.outcomes[0].answer)]


def test_only_a_request_without_an_answer_is_news_for_the_outbox() -> None:
    answers = {}
    for error in (None, Conflict("x"), Invalid("x"), Unavailable("no answer")):
        there = Objects()
        there.decide("a1", Write())
        there.place()
        there.take()
        answers[type(error).__name__] = there.answer("a1", error)
    decided = dict.fromkeys(["NoneType", "Conflict", "Invalid"], Answer.NO_NEWS)
    assert answers == {**decided, "Unavailable": Answer.NONE}


async def test_rejection_is_an_event_about_what_its_row_names() -> None:
    there = Objects()
    there.decide("a1", Write())
    there.send_now(Conflict("has changed"))
    there.now += datetime.timedelta(seconds=LONGEST_S)
    there.send_now(Forbidden("a policy"))
    await send_events(there.events)
    assert [_text(event) for event in there.server.told] == ["WriteRejected a1: the label was rejected: a policy"]


def _text(event: Obj) -> str:
    about = event.get("involvedObject") or event["regarding"]
    return f"{event['reason']} {about['name']}: {event.get('message') or event['note']}"
