"""Sends what is in the outbox, in the background: a request that gets no answer delays no plan."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable

import aiohttp

from controller.apply.fence import EndedTerm, Fence
from controller.apply.outbox import Answer, OpenRequest, Outbox, RequestWish
from controller.timing import OutboxTiming
from neuron_dra.errors import TooLarge, TooManyRequests, Unavailable

log = logging.getLogger(__name__)


class Sender:
    """Sends wishes. `decide` returns at once, and `run` sends them."""

    def __init__(self, fence: Fence, timing: OutboxTiming) -> None:
        self.fence = fence
        """A wish of several requests has it checked before each of them."""
        self._outbox = Outbox(timing.slow_s, timing.retry_s, random.random)
        self._changed = asyncio.Event()
        self.on_answer: Callable[[bool], None] = lambda at_once: None
        """Called when the decider may decide again; True if an answer has news, and no other is about to follow."""

    def decide(self, decider: str, wishes: Iterable[RequestWish]) -> None:
        """Replace what a decider wished and what was not sent, in the term of the pass."""
        self._outbox.decide(decider, self.fence.term, wishes)
        self._changed.set()

    def put(self, decider: str, term: int, wish: RequestWish) -> None:
        """Add or replace one wish that was decided in a term; that of an ended term is dropped."""
        if term == self.fence.term:
            self._outbox.put(decider, term, wish)
            self._changed.set()

    def withdraw(self, decider: str, wish: RequestWish) -> None:
        """Remove a wish that was not sent."""
        self._outbox.withdraw(decider, wish)

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing is in flight."""
        return self._outbox.is_idle

    def in_flight(self) -> frozenset[str]:
        """Return the objects that have a request in flight."""
        return self._outbox.in_flight()

    def end_waits(self) -> None:
        """Send at once what waits for a time."""
        self._outbox.end_waits()
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as requests:
            while True:
                self._changed.clear()
                while (request := self._outbox.take(loop.time())) is not None:
                    requests.create_task(self._make(request), name=f"send {request.wish.kind}")
                next_s = self._outbox.next_s(loop.time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_s):
                        await self._changed.wait()

    async def send_all(self) -> None:
        """Send until nothing is left; for programs without `run`."""
        while not self._outbox.is_idle:
            loop = asyncio.get_running_loop()
            async with asyncio.TaskGroup() as requests:
                while (request := self._outbox.take(loop.time())) is not None:
                    requests.create_task(self._make(request))
            next_s = self._outbox.next_s(loop.time())
            if next_s is not None:
                await asyncio.sleep(next_s - loop.time())

    async def _make(self, request: OpenRequest) -> None:
        """Send one request. An unexpected error is logged, and counts as no answer: it may be due to one object."""
        answer = Answer.NOT_SENT
        try:
            self.fence.check(request.term)
            if request.reads and request.wish.read is not None:
                answer = await request.wish.read()
            else:
                answer = await request.wish.send(request.term)
        except EndedTerm:
            answer = Answer.NOT_SENT
        except Exception:
            log.exception("a request failed unexpectedly", extra={"object": request.wish.object})
            answer = Answer.NONE
        finally:
            now_s = asyncio.get_running_loop().time()
            self._outbox.answered(request, answer, now_s)
            self._changed.set()
            if answer is not Answer.NO_NEWS:
                is_news = answer in (Answer.DECIDED, Answer.NOT_SENT)
                self.on_answer(is_news and not self._outbox.has_young(request.decider, now_s))


def answer_of(err: Exception) -> Answer:
    """Return how a request ended that raised an error."""
    if isinstance(err, TooManyRequests):
        return Answer.OVERLOADED
    if not isinstance(err, Unavailable) or isinstance(err, TooLarge):
        return Answer.DECIDED
    if isinstance(err.__cause__, aiohttp.ClientConnectorError):
        return Answer.UNAVAILABLE
    if err.status == 503:
        return Answer.OVERLOADED  # like a 429, it may be the answer of a webhook for one namespace (ADR 16, rule 10)
    if err.status and err.status != 504:
        return Answer.DECIDED
    return Answer.NONE  # after a timeout or a 504, the API server may still carry the request out
