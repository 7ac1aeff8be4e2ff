"""Laws of the outbox. ADR 16, issue 4.05."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.apply.outbox import (
    AT_ONCE,
    MOST_IN_FLIGHT,
    MOST_OF_NAMESPACE,
    REMEMBERED_S,
    Answer,
    OpenRequest,
    Outbox,
    RequestWish,
)
from tests.support.sending import new_sender

SLOW_S = 1.0
RETRY_S = (0.5, 8.0)


async def unused(*_: int) -> Answer:
    raise AssertionError("the outbox sends nothing itself")


def wish(name: str, namespace: str = "ml", kind: str = "patch pods", *, is_read: bool = True) -> RequestWish:
    return RequestWish(name, "status", namespace, kind, unused, read=unused if is_read else None)


def outbox() -> Outbox:
    return Outbox(SLOW_S, RETRY_S, lambda: 0.0)


def all_of(box: Outbox, now_s: float) -> list[OpenRequest]:
    """Take all that may be sent now."""
    requests = []
    while (request := box.take(now_s)) is not None:
        requests.append(request)
    return requests


def names(requests: list[OpenRequest]) -> list[str]:
    return [request.wish.object for request in requests]


NAMESPACES = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["patch", "create"])


class Laws(RuleBasedStateMachine):
    """Drives an outbox with any decisions and answers, and keeps what the rules need to be checked."""

    def __init__(self) -> None:
        super().__init__()
        self.box = outbox()
        self.now_s = 100.0
        self.term = 1
        self.decided: dict[str, list[RequestWish]] = {}
        self.requests: list[OpenRequest] = []
        self.unsettled: set[str] = set()
        self.silent_since: dict[tuple[str, str], float] = {}
        self.closed_since: float | None = None
        self.refused_since: float | None = None

    @rule(
        decider=st.sampled_from(["plan", "queues"]),
        objects=st.lists(st.integers(0, 60), max_size=60, unique=True),
        kind=KINDS,
    )
    def decide(self, decider: str, objects: list[int], kind: str) -> None:
        wishes = [wish(f"o{number}", "abc"[number % 3], kind) for number in objects]
        self.box.decide(decider, self.term, wishes)
        self.decided[decider] = wishes

    @rule(number=st.integers(0, 60), kind=KINDS)
    def put(self, number: int, kind: str) -> None:
        added = wish(f"o{number}", "abc"[number % 3], kind)
        self.box.put("jobs", self.term, added)
        self.decided["jobs"] = [*self._others_of_jobs(added), added]

    @rule(number=st.integers(0, 60))
    def withdraw(self, number: int) -> None:
        removed = wish(f"o{number}", "abc"[number % 3])
        self.box.withdraw("jobs", removed)
        self.decided["jobs"] = self._others_of_jobs(removed)

    def _others_of_jobs(self, wished: RequestWish) -> list[RequestWish]:
        return [each for each in self.decided.get("jobs", ()) if each.object != wished.object]

    @rule(number=st.integers(1, 60))
    def take(self, number: int) -> None:
        for _ in range(number):
            busy = {each.wish.object for each in self.requests}
            request = self.box.take(self.now_s)
            if request is None:
                return
            lane = (request.wish.namespace, request.wish.kind)
            assert any(request.wish in wishes for wishes in self.decided.values()), "a decision that was replaced"
            assert request.wish.object not in busy, "two requests for one object"
            assert request.term == self.term
            assert request.reads == (request.wish.object in self.unsettled)
            if lane in self.silent_since:
                others = [each for each in self.requests if (each.wish.namespace, each.wish.kind) == lane]
                assert not others, "more than one probe"
                assert self.now_s >= self.silent_since[lane] + RETRY_S[0] / 2
            if self.closed_since is not None:
                young = [each for each in self.requests if self.now_s < each.sent_s + SLOW_S]
                assert not young, "more than one request to a server that takes none"
            if self.refused_since is not None:
                assert self.now_s >= self.refused_since + RETRY_S[0] / 2
            self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), answer=st.sampled_from(Answer))
    def answer(self, data: st.DataObject, answer: Answer) -> None:
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        lane = (request.wish.namespace, request.wish.kind)
        self.box.answered(request, answer, self.now_s)
        if answer in (Answer.DECIDED, Answer.NO_NEWS):
            if request.sent_s > self.silent_since.get(lane, 0.0):
                self.silent_since.pop(lane, None)
            if self._was_sent_to_a_closed_server(request):
                self.closed_since = self.refused_since = None
            if request.reads and request.term == self.term:
                self.unsettled.discard(request.wish.object)
        if answer in (Answer.NONE, Answer.OVERLOADED) and request.sent_s > self.silent_since.get(lane, 0.0):
            self.silent_since[lane] = self.now_s
        if answer is Answer.NONE and not request.reads:
            self.unsettled.add(request.wish.object)
        if answer is Answer.OVERLOADED and self.closed_since is None:
            self.closed_since = self.now_s
        if answer is Answer.UNAVAILABLE and request.sent_s > (self.closed_since or 0.0):
            self.closed_since = self.refused_since = self.now_s

    def _was_sent_to_a_closed_server(self, request: OpenRequest) -> bool:
        if self.closed_since is None:
            return False
        # The clock may show the same time for the answer that closed it and for the request after it.
        is_same_time = self.refused_since is None and request.sent_s == self.closed_since
        return is_same_time or request.sent_s > self.closed_since

    @rule(seconds=st.floats(0.1, 9.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def lose_the_lease(self) -> None:
        self.term += 1
        self.box.decide("plan", self.term, [])
        self.decided = {}
        self.unsettled |= {each.wish.object for each in self.requests}

    @invariant()
    def limits_hold(self) -> None:
        young = [each for each in self.requests if self.now_s < each.sent_s + SLOW_S]
        assert len(young) <= AT_ONCE
        assert len(self.requests) <= MOST_IN_FLIGHT
        by_namespace = Counter(each.wish.namespace for each in self.requests)
        assert all(number <= MOST_OF_NAMESPACE for number in by_namespace.values())

    def teardown(self) -> None:
        """Whatever has happened, all wishes are sent once requests are answered."""
        for request in self.requests:
            self.box.answered(request, Answer.DECIDED, self.now_s)
        last = [wish(f"last{number}", namespace) for number, namespace in enumerate("abcd" * 10)]
        self.box.decide("queues", self.term, [])
        self.box.decide("jobs", self.term, [])
        self.box.decide("plan", self.term, last)
        sent = []
        for _ in range(100):
            self.now_s += RETRY_S[1]
            for request in all_of(self.box, self.now_s):
                sent.append(request.wish.object)
                self.box.answered(request, Answer.DECIDED, self.now_s)
        assert sorted(sent) == sorted(each.object for each in last)
        assert self.box.is_idle


Laws.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLaws = Laws.TestCase


def test_new_decision_replaces_what_was_not_sent() -> None:
    box = outbox()
    box.decide("plan", 1, [wish(f"o{number}") for number in range(30)])
    sent = all_of(box, 0.0)
    assert len(sent) == MOST_OF_NAMESPACE
    box.decide("plan", 1, [])
    for request in sent:
        box.answered(request, Answer.DECIDED, 0.1)
    assert (all_of(box, 0.2), box.is_idle) == ([], True)


def test_deciders_do_not_replace_each_other() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1")])
    box.decide("queues", 1, [wish("o2")])
    assert names(all_of(box, 0.0)) == ["o1", "o2"]


def test_object_in_flight_is_not_decided_again() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1")])
    [request] = all_of(box, 0.0)
    box.decide("plan", 1, [wish("o1")])
    box.decide("queues", 1, [wish("o1", kind="create services")])
    assert all_of(box, 0.1) == []
    box.answered(request, Answer.DECIDED, 0.2)
    assert [request.decider for request in all_of(box, 0.3)] == ["queues"]


def test_wish_waits_while_another_decider_writes_its_object() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1")])
    box.decide("queues", 1, [wish("o1", kind="create services"), wish("o2", kind="create services")])
    first, *_ = requests = all_of(box, 0.0)
    assert names(requests) == ["o1", "o2"]
    box.answered(first, Answer.DECIDED, 0.1)
    assert names(all_of(box, 0.2)) == ["o1"]


@given(st.permutations(["a"] * 12 + ["b"] * 3 + ["c"]))
def test_namespaces_take_turns(order: list[str]) -> None:
    box = outbox()
    box.decide("plan", 1, [wish(f"{namespace}{number}", namespace) for number, namespace in enumerate(order)])
    first = [request.wish.namespace for request in all_of(box, 0.0)]
    assert Counter(first[:3]) == Counter("abc")
    assert Counter(first[3:5]) == Counter("ab")


def test_background_wishes_are_sent_after_all_others() -> None:
    box = outbox()
    waiting = [replace(wish(f"w{number}", f"n{number}"), is_background=True) for number in range(100)]
    box.decide("plan", 1, [*waiting, wish("forward", "n7")])
    assert names(all_of(box, 0.0))[0] == "forward"


def test_slow_requests_of_a_namespace_leave_places_to_others() -> None:
    """4.05: 48 writes of one namespace without an answer took all sixteen places."""
    box = outbox()
    bad = [wish(f"bad{number}", "bad") for number in range(48)]
    box.decide("plan", 1, [*bad, wish("good", "ml")])
    assert "good" in names(all_of(box, 0.0))


def test_slow_requests_of_many_namespaces_leave_their_places_after_a_second() -> None:
    """4.05: one object in each of 40 namespaces."""
    box = outbox()
    bad = [wish(f"bad{number}", f"n{number}") for number in range(40)]
    box.decide("plan", 1, [*bad, wish("good", "ml")])
    assert len(all_of(box, 0.0)) == AT_ONCE
    assert box.next_s(0.0) == SLOW_S
    assert "good" in names(all_of(box, SLOW_S))


def test_one_probe_after_a_request_without_an_answer() -> None:
    box = outbox()
    box.decide("plan", 1, [wish(f"o{number}", "bad") for number in range(40)])
    for request in all_of(box, 0.0):
        box.answered(request, Answer.NONE, 10.0)
    box.decide("pods", 1, [wish("other kind", "bad", "create pods"), wish("other namespace", "ml")])
    probe, *others = all_of(box, 20.0)
    assert (probe.wish.kind, sorted(names(others))) == ("patch pods", ["other kind", "other namespace"])
    box.answered(probe, Answer.DECIDED, 20.1)
    assert len(all_of(box, 20.2)) > 1


def test_server_that_takes_no_requests_gets_one_at_a_time() -> None:
    box = outbox()
    box.decide("plan", 1, [wish(f"o{number}", f"n{number}") for number in range(100)])
    for request in all_of(box, 0.0):
        box.answered(request, Answer.UNAVAILABLE, 0.1)
    assert all_of(box, 0.2) == []
    [probe] = all_of(box, 0.1 + RETRY_S[0])
    box.answered(probe, Answer.UNAVAILABLE, 1.0)
    assert all_of(box, 1.0 + RETRY_S[0] / 2) == []
    [probe] = all_of(box, 1.0 + 2 * RETRY_S[0])
    box.answered(probe, Answer.DECIDED, 3.0)
    assert len(all_of(box, 3.0)) == AT_ONCE


def test_overloaded_namespaces_delay_no_other_one() -> None:
    """A webhook answers 429 for one object in each of 40 namespaces, and does not answer for another one."""
    box = outbox()
    box.decide("plan", 1, [wish("hangs", "hangs"), *(wish(f"o{number}", f"n{number}") for number in range(40))])
    hanging, *requests = all_of(box, 0.0)
    assert hanging.wish.object == "hangs"
    for request in requests:
        box.answered(request, Answer.OVERLOADED, 0.1)
    box.decide("plan", 1, [*(wish(f"o{number}", f"n{number}") for number in range(40)), wish("good", "ml")])
    now_s = SLOW_S
    sent: list[str] = []
    while sent[-1:] != ["good"]:
        [request] = all_of(box, now_s)
        sent.append(request.wish.object)
        box.answered(request, Answer.DECIDED if request.wish.namespace == "ml" else Answer.OVERLOADED, now_s + 0.01)
        now_s += 0.02
    assert len(sent) <= 41


def test_object_is_read_after_a_request_without_an_answer() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1"), wish("read anyway", is_read=False)])
    for request in all_of(box, 0.0):
        box.answered(request, Answer.NONE, 10.0)
    answers = [Answer.NONE, Answer.NOT_SENT, Answer.DECIDED]
    reads = []
    for number, answer in enumerate([*answers, Answer.DECIDED]):
        box.decide("plan", 1, [wish("o1")])
        [request] = all_of(box, 100.0 * (number + 1))
        reads.append(request.reads)
        box.answered(request, answer, 100.0 * (number + 1))
    assert reads == [True, True, True, False]
    box.decide("plan", 1, [wish("read anyway", is_read=False)])
    [request] = all_of(box, 500.0)
    assert not request.reads


def test_read_that_began_in_an_earlier_term_settles_nothing() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1")])
    [request] = all_of(box, 0.0)
    box.answered(request, Answer.NONE, 10.0)
    box.decide("plan", 1, [wish("o1")])
    [read] = all_of(box, 20.0)
    box.decide("plan", 2, [])
    box.answered(read, Answer.DECIDED, 20.1)
    box.decide("plan", 2, [wish("o1")])
    [request] = all_of(box, 20.2)
    assert request.reads


def test_wishes_end_with_their_term() -> None:
    box = outbox()
    box.decide("plan", 1, [wish("o1")])
    box.decide("queues", 2, [wish("o2")])
    assert names(all_of(box, 0.0)) == ["o2"]


def test_kind_has_its_own_limit() -> None:
    box = outbox()
    lists = [replace(wish(f"l{number}", f"n{number}", "list pods"), at_once=2) for number in range(9)]
    box.decide("pods", 1, [*lists, wish("o1")])
    assert sorted(names(all_of(box, 0.0))) == ["l0", "l1", "o1"]
    assert names(all_of(box, SLOW_S)) == ["l2", "l3"]


def test_old_failures_are_forgotten() -> None:
    """4.02: names of namespaces and objects that are gone."""
    box = outbox()
    for number in range(50):
        now_s = number * REMEMBERED_S
        box.decide("plan", 1, [wish(f"o{number}", f"n{number}")])
        [request] = all_of(box, now_s)
        box.answered(request, Answer.NONE, now_s + 10.0)
    assert len(box._unsettled) <= 2
    assert len(box._silent) <= 2


async def test_unexpected_error_of_one_request_ends_nothing() -> None:
    sent = []

    async def fails(_: int) -> Answer:
        raise KeyError("metadata")

    async def works(_: int) -> Answer:
        sent.append("good")
        return Answer.DECIDED

    sender = new_sender(retry_s=(60.0, 60.0))
    bad = RequestWish("bad", "status", "hostile", "patch pods", fails)
    good = RequestWish("good", "status", "ml", "patch pods", works)
    sender.decide("plan", [bad, good])
    await sender.send_all()
    assert (sent, sender.is_idle) == (["good"], True)
