"""Reconciles objects outside the plans: the outbox sends each decided write, and repeats it until it takes effect.

Jobs, queues and tests of UltraServers have one `DecidedWrites` each. To reconcile another kind takes a function that
decides its writes, and a `WriteRow` for each kind of write.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

from controller.apply.fence import EndedTerm
from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.apply.write_backoff import Tries
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.planner.fleet.due_times import DueTimes

log = logging.getLogger(__name__)

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    CHANGED = "changed"  # the object is not as it was decided about
    REJECTED = "rejected"  # by a policy, a quota, or the schema
    FAILED = "failed"  # without an answer, it may have been written


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a write: its outcome, the error as a text, and the answer for the outbox.

    Each decider looks again after its own writes, so an answer of the API server is no news for the plan.
    """

    outcome: WriteOutcome
    error: str = ""
    answer: Answer = Answer.NO_NEWS


@dataclass(frozen=True, slots=True)
class Rejection:
    """The Event when a write is rejected: about which object, its reason, and the text before the error."""

    about: dict[str, str]
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class WriteRow:
    """What the outbox and users learn about a write.

    - `object`, `namespace`, `kind`, `is_background`: see `RequestWish`.
    - `is_shown`: the answer is in the cache, so that the next write does not wait for a watch.
    - `takes`: from its decision to its answer, nobody may use what the write takes away.
    """

    object: str
    namespace: str
    kind: str
    rejection: Rejection | None = None
    is_shown: bool = False
    takes: bool = False
    is_background: bool = False


class Decider(Protocol[W_contra]):
    """What decides the writes, each with a key."""

    def row(self, key: str, write: W_contra) -> WriteRow | None:
        """Return the row of a write that is due; None if it must not be sent until its key is moved again."""

    async def send(self, key: str, write: W_contra, term: int) -> None:
        """Send the requests of a write that was decided in `term`. Raises ApiError, MALFORMED, EndedTerm."""

    def follow_outcome(self, key: str, write: W_contra, attempt: Attempt) -> None:
        """Follow the end of a request."""


class DecidedWrites(Generic[W]):
    """Keeps the outbox in step with the decided `writes`, which others change: one for each key.

    - `in_flight`: the writes that were sent and have no answer yet, by key.
    - `taking`: the keys of those writes in the outbox or in flight that take something away.
    """

    def __init__(
        self,
        name: str,
        decider: Decider[W],
        writes: Mapping[str, W],
        sender: Sender,
        events: EventRecorder,
        retry_s: tuple[float, float],
        on_change: Callable[[], None],
    ) -> None:
        """`retry_s`: how long a write waits after its first try, and at most.

        `on_change` is called after each request.
        """
        self.in_flight: dict[str, W] = {}
        self.taking: set[str] = set()
        self._name = name
        self._decider = decider
        self._writes = writes
        self._sender = sender
        self._events = events
        self._first_s, self._longest_s = retry_s
        self._on_change = on_change
        self._term = 0
        self._now = datetime.datetime.min.replace(tzinfo=datetime.UTC)  # of the last `place`
        self._wished: dict[str, RequestWish] = {}  # what is in the outbox
        self._tries: dict[str, Tries] = {}
        self._times = DueTimes()  # of the writes that wait
        self._moved: dict[str, None] = {}  # the keys for the next `place`, in their order

    def begin(self, term: int) -> bool:
        """Return True if a term begins: nothing is in the outbox then."""
        if term == self._term:
            return False
        self._term, self._wished = term, {}
        self.taking &= self.in_flight.keys()
        self.move(self._writes)
        return True

    def end_waits(self) -> None:
        """Do at once what waits for a time."""
        self._tries = {}
        self.move(self._writes)

    def decided(self, keys: Iterable[str]) -> None:
        """Follow a decision: these keys have another write, or none."""
        for key in keys:
            if key not in self._writes:
                self.forget_tries(key)
            self._moved[key] = None

    def move(self, keys: Iterable[str]) -> None:
        """Look at these writes with the next `place`."""
        self._moved |= dict.fromkeys(keys)

    def forget_tries(self, key: str) -> None:
        """Do not let the next write wait: it is another one."""
        self._tries.pop(key, None)

    def is_due(self, key: str, now: datetime.datetime) -> bool:
        """Return True if a write does not wait to be repeated."""
        return key not in self._tries or self._tries[key].next_at <= now

    def place(self, now: datetime.datetime) -> datetime.datetime | None:
        """Put what is due into the outbox, and take out what is not decided any more; return when others are due."""
        self._now = now
        moved, self._moved = self._moved | dict.fromkeys(self._times.take(now)), {}
        for key in moved:
            self._withdraw(key)
            write = self._writes.get(key)
            if write is not None and key not in self.in_flight:
                self._put(key, write)
        return self._times.next()

    def _withdraw(self, key: str) -> None:
        self._times.set(key, None)
        wish = self._wished.pop(key, None)
        if wish is not None:
            self._sender.withdraw(self._name, wish)
            self.taking.discard(key)

    def _put(self, key: str, write: W) -> None:
        """Put a write into the outbox, or let it wait for its time."""
        if not self.is_due(key, self._now):
            self._times.set(key, self._tries[key].next_at)
            return
        row = self._decider.row(key, write)
        if row is None:
            return
        send = partial(self._send, key, write, row)
        wish = RequestWish(row.object, key, row.namespace, row.kind, send, is_background=row.is_background)
        self._wished[key] = wish
        if row.takes:
            self.taking.add(key)
        self._sender.put(self._name, self._term, wish)

    async def _send(self, key: str, write: W, row: WriteRow, term: int) -> Answer:
        """Send a write that was decided in `term`. Raises EndedTerm.

        Also one that was written is decided again, and waits to be repeated, until a watch shows its effect.
        """
        self._wished.pop(key, None)
        self.in_flight[key] = write
        tries = self._tries.get(key, Tries(0, self._now))
        self._tries[key] = tries.once_more(self._first_s, self._now, self._longest_s)
        try:
            attempt = await attempted(self._decider.send(key, write, term))
        finally:
            del self.in_flight[key]
            self.taking.discard(key)
            self.move([key])
            self._on_change()
        # It may not be decided any more since before it was sent.
        if key not in self._writes or (attempt.outcome is WriteOutcome.WRITTEN and row.is_shown):
            self.forget_tries(key)
        if attempt.outcome in (WriteOutcome.REJECTED, WriteOutcome.FAILED):
            facts = {"decider": self._name, "request": row.kind, "object": row.object, "error": attempt.error}
            log.warning("a write was rejected or failed", extra=facts)
        if attempt.outcome is WriteOutcome.REJECTED and row.rejection is not None:
            rejection = row.rejection
            text = f"{rejection.text}: {attempt.error}"
            self._events.post(rejection.about, "Warning", rejection.reason, text, self._now)
        self._decider.follow_outcome(key, write, attempt)
        return attempt.answer


async def attempted(requests: Awaitable[None]) -> Attempt:
    """Return what becomes of requests. Raises EndedTerm."""
    try:
        await requests
    except EndedTerm:
        raise
    except (AlreadyExists, Conflict, NotFound) as err:
        return Attempt(WriteOutcome.CHANGED, str(err))
    except (Forbidden, Invalid) as err:
        return Attempt(WriteOutcome.REJECTED, str(err))
    except ApiError as err:
        answer = answer_of(err)
        return Attempt(WriteOutcome.FAILED, str(err), Answer.NO_NEWS if answer is Answer.DECIDED else answer)
    except MALFORMED as err:
        return Attempt(WriteOutcome.FAILED, str(err) or repr(err))
    return Attempt(WriteOutcome.WRITTEN)
