"""Events are sent in the background, in turns between namespaces, bounded, and each once (4.05)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from neuron_dra.errors import Forbidden, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import AT_ONCE, MOST_OF_NAMESPACE, MOST_SENDING, MOST_WAITING, EventRecorder, reference
from neuron_dra.kube.timing import ClientTiming
from tests.support.fleet.clock import EPOCH, VirtualLoop

REQUEST_S = 10.0
"""What a request takes that gets no answer."""


class Server(KubeClient):
    """Answers after the time that a namespace takes; `sent` has time, namespace and name of each request."""

    def __init__(self, answer: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(KubeConfig("events:"))
        self._answer = answer
        self.sent: list[tuple[float, str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None, *_: Any
    ) -> bytes:
        namespace = path.split("/")[4]
        name = body["involvedObject"]["name"] if method == "POST" else path.split("/")[-1]
        self.sent.append((asyncio.get_running_loop().time(), namespace, name))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._answer(namespace)
        finally:
            self.in_flight -= 1
        stored = body["metadata"]["name"] if method == "POST" else path.split("/")[-1]
        return msgspec.json.encode({"kind": "Event", "metadata": {"name": stored}, "count": 2})

    def namespaces(self) -> Counter[str]:
        return Counter(namespace for _, namespace, _ in self.sent)

    def sent_at(self, namespace: str) -> float:
        """Return when the last Event of a namespace was sent."""
        return [time_s for time_s, sent_to, _ in self.sent if sent_to == namespace][-1]


async def quick(namespace: str) -> None:
    """Answer at once."""


async def silent_for_tenants(namespace: str) -> None:
    """Answer at once, but not at all to namespaces of tenants."""
    if namespace.startswith("tenant"):
        await asyncio.sleep(REQUEST_S)
        raise Unavailable("no answer")


def during(server: Server, seconds: float, post: Callable[[EventRecorder], None]) -> EventRecorder:
    """Post Events, and let the recorder run for so long in simulated time."""
    recorder = EventRecorder(server, "here")

    async def run() -> None:
        task = asyncio.create_task(recorder.run())
        post(recorder)
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    return recorder


def post(recorder: EventRecorder, namespace: str, number: int = 0) -> bool:
    about = reference("v1", "Pod", namespace, f"pod-{number}", f"{namespace}-{number}")
    return recorder.post(about, "Warning", "Tested", f"text {number}", EPOCH)


@pytest.mark.parametrize("tenants", [0, 1, AT_ONCE - 1, 40])
def test_namespaces_without_answer_delay_others_by_seconds(tenants: int) -> None:
    server = Server(silent_for_tenants)

    def posts(recorder: EventRecorder) -> None:
        for tenant in range(tenants):
            for number in range(20):
                post(recorder, f"tenant-{tenant}", number)
        post(recorder, "other")

    during(server, 3600.0, posts)
    slow_s = ClientTiming().events.slow_s
    assert server.sent_at("other") <= (tenants // AT_ONCE + 1) * slow_s
    assert server.most_in_flight <= max(AT_ONCE, tenants + 1)


def test_requests_in_flight_have_a_limit() -> None:
    server = Server(silent_for_tenants)

    def posts(recorder: EventRecorder) -> None:
        for tenant in range(MOST_SENDING * 3):
            post(recorder, f"tenant-{tenant}")

    during(server, 60.0, posts)
    # A request takes ten seconds, and leaves its place after one: the cap is above what these can reach.
    assert AT_ONCE < server.most_in_flight <= MOST_SENDING


def test_namespaces_take_turns() -> None:
    server = Server(quick)

    def posts(recorder: EventRecorder) -> None:
        for number in range(100):
            post(recorder, "loud", number)
        post(recorder, "other")

    during(server, 1.0, posts)
    order = [namespace for _, namespace, _ in server.sent]
    assert order.index("other") <= 1
    assert order.count("loud") == 100


def test_each_event_is_sent_once() -> None:
    server = Server(quick)

    def posts(recorder: EventRecorder) -> None:
        for _ in range(3):
            post(recorder, "ml")

    during(server, 60.0, posts)
    assert len(server.sent) == 1


def test_event_that_is_posted_again_while_it_is_sent_is_sent_once() -> None:
    async def slow(namespace: str) -> None:
        await asyncio.sleep(5.0)

    server = Server(slow)

    def posts(recorder: EventRecorder) -> None:
        post(recorder, "ml")
        asyncio.get_running_loop().call_later(2.0, post, recorder, "ml")

    during(server, 60.0, posts)
    assert len(server.sent) == 1


def test_rejected_event_holds_up_no_other_of_its_namespace_and_is_sent_again_for_an_hour() -> None:
    answers: list[str] = []

    async def rejects_the_first(namespace: str) -> None:
        answers.append(server.sent[-1][2])
        if answers[-1] == "pod-0":
            raise Forbidden("a policy rejects it")

    server = Server(rejects_the_first)

    def posts(recorder: EventRecorder) -> None:
        for number in range(3):
            post(recorder, "ml", number)

    recorder = during(server, 2 * 3600.0, posts)
    assert Counter(answers)["pod-1"] == Counter(answers)["pod-2"] == 1
    assert server.sent_at("ml") == pytest.approx(3600.0, abs=60.0)
    assert Counter(answers)["pod-0"] > 50
    assert (recorder.waiting, recorder._queues) == (0, {})


def test_what_waits_has_a_limit_for_each_namespace_and_for_all() -> None:
    server = Server(silent_for_tenants)
    accepted: Counter[str] = Counter()

    def posts(recorder: EventRecorder) -> None:
        for tenant in range(10):
            for number in range(MOST_OF_NAMESPACE + 10):
                accepted[f"tenant-{tenant}"] += post(recorder, f"tenant-{tenant}", number)
        assert post(recorder, "other")
        assert recorder.waiting == MOST_WAITING

    during(server, 60.0, posts)
    assert accepted["tenant-0"] == MOST_OF_NAMESPACE
    assert server.namespaces()["other"] == 1
