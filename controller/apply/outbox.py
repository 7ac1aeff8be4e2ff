"""The requests that were decided and not sent yet, and those in flight: which one may be sent next. Pure.

`controller.apply.sender` sends them. ADR 16 has the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from neuron_dra.core import backoff

AT_ONCE: Final = 32
"""The shared places: requests in flight that are not slow."""
MOST_OF_NAMESPACE: Final = 16
"""A workload of 256 nodes evicts as many pods; more at once would queue at the server."""
MOST_IN_FLIGHT: Final = 128
"""With those that are slow."""
REMEMBERED_S: Final = 600.0
"""A failure counts for so long: no API server carries out a request later, and the watches have shown what it did."""


class Answer(Enum):
    """How a request ended."""

    DECIDED = "the API server carried it out, or rejected it"
    NO_NEWS = "the same, and no decision depends on it"
    NOT_SENT = "its object had changed, or its term has ended"
    NONE = "it may have been carried out, or be carried out later"
    OVERLOADED = "the server, or what it asks for this namespace and kind, takes no more requests now"
    UNAVAILABLE = "the connection was refused"


@dataclass(frozen=True, slots=True)
class RequestWish:
    """A request that was decided.

    - `object`: the UID of the object, or the identity of one that does not exist yet; `part`: what is written of it.
    - `kind`: the verb and the resource: what a webhook or a policy is for.
    - `send`: sends it, given the term in which it was decided.
    - `read`: reads the object again after a request without an answer. None: `send` reads it anyway, or may be
      repeated.
    - `is_background`: nobody gets or loses anything by it, so all others are sent before it.
    - `at_once`: the limit of requests of this kind that are in flight and not slow.
    """

    object: str
    part: str
    namespace: str
    kind: str
    send: Callable[[int], Awaitable[Answer]] = field(compare=False)
    read: Callable[[], Awaitable[Answer]] | None = field(default=None, compare=False)
    is_background: bool = False
    at_once: int = AT_ONCE


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What is in flight: a wish, or the read of its object, if `reads`."""

    decider: str
    wish: RequestWish
    term: int
    sent_s: float
    reads: bool


Key: TypeAlias = tuple[str, str, str]
"""Decider, object and part."""
Lane: TypeAlias = tuple[str, str]
"""Namespace and kind."""


class _Waits:
    """Since a failure: the delay before one probe may be sent, longer after each failure in a row."""

    def __init__(self, retry_s: tuple[float, float], jitter: Callable[[], float]) -> None:
        self._delays: Iterator[float] = backoff.delays(*retry_s, jitter)
        self.until_s = 0.0

    def failed(self, now_s: float) -> None:
        self.until_s = now_s + next(self._delays)


def _counts(waits: _Waits | None, request: OpenRequest) -> bool:
    """Return True if a request was sent after the last failure: others say nothing new."""
    return waits is not None and waits.until_s <= request.sent_s


class Outbox:
    """Wishes and requests. Times are seconds of a monotonic clock."""

    def __init__(self, slow_s: float, retry_s: tuple[float, float], jitter: Callable[[], float]) -> None:
        """After `slow_s` a request leaves its place; `retry_s`: first and longest delay after a failure."""
        self._slow_s = slow_s
        self._retry_s = retry_s
        self._jitter = jitter
        self._term = 0
        # By is_background, namespace and kind. Each level: the one that has the next turn comes first.
        self._waiting: tuple[dict[str, dict[str, dict[Key, RequestWish]]], ...] = ({}, {})
        self._lanes: dict[str, dict[Key, tuple[bool, Lane]]] = {}  # by decider: where its wishes are
        self._in_flight: dict[str, OpenRequest] = {}  # by object
        self._unsettled: dict[str, float] = {}  # by object, when the request was sent
        self._silent: dict[Lane, _Waits] = {}
        self._client: _Waits | None = None

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, decider: str, term: int, wishes: Iterable[RequestWish]) -> None:
        """Replace all that a decider wished and that was not sent. In a new term, all other wishes end."""
        self._enter(term)
        self._forget(decider)
        for wish in wishes:
            self.put(decider, term, wish)

    def put(self, decider: str, term: int, wish: RequestWish) -> None:
        """Add one wish, or replace the one for the same part of the same object.

        If a request of this decider for the object is in flight, the wish is left out: the answer wakes the decider.
        """
        self._enter(term)
        self.withdraw(decider, wish)
        request = self._in_flight.get(wish.object)
        if request is not None and request.decider == decider:
            return
        key = (decider, wish.object, wish.part)
        self._waiting[wish.is_background].setdefault(wish.namespace, {}).setdefault(wish.kind, {})[key] = wish
        self._lanes.setdefault(decider, {})[key] = (wish.is_background, (wish.namespace, wish.kind))

    def withdraw(self, decider: str, wish: RequestWish) -> None:
        """Remove a wish if it was not sent."""
        key = (decider, wish.object, wish.part)
        place = self._lanes.get(decider, {}).pop(key, None)
        if place is not None:
            is_background, lane = place
            self._discard(is_background, lane, key)

    def _enter(self, term: int) -> None:
        if term != self._term:
            self._begin_term(term)

    def _begin_term(self, term: int) -> None:
        """Forget all wishes, and doubt what is in flight: another replica may have written meanwhile."""
        for decider in list(self._lanes):
            self._forget(decider)
        self._lanes = {}
        self._term = term
        for name, request in self._in_flight.items():
            self._doubt(name, request)

    def _doubt(self, name: str, request: OpenRequest) -> None:
        if request.wish.read is not None:
            self._unsettled.pop(name, None)
            self._unsettled[name] = request.sent_s

    def _forget(self, decider: str) -> None:
        for key, (is_background, lane) in self._lanes.pop(decider, {}).items():
            self._discard(is_background, lane, key)

    def _discard(self, is_background: bool, lane: Lane, key: Key) -> None:
        namespace, kind = lane
        namespaces = self._waiting[is_background]
        wishes = namespaces[namespace][kind]
        del wishes[key]
        if not wishes:
            del namespaces[namespace][kind]
        if not namespaces[namespace]:
            del namespaces[namespace]

    # -- requests ------------------------------------------------------------------------------------------------------

    def take(self, now_s: float) -> OpenRequest | None:
        """Move the next wish that may be sent to those in flight, and return its request; None if none may be."""
        if not self._may_send(now_s):
            return None
        for is_background in (False, True):
            namespaces = self._waiting[is_background]
            for namespace in list(namespaces):
                if self._number_in(namespace) >= MOST_OF_NAMESPACE:
                    continue
                for kind in list(namespaces.get(namespace, ())):
                    request = self._take_of(is_background, (namespace, kind), now_s)
                    if request is not None:
                        return request
        return None

    def _may_send(self, now_s: float) -> bool:
        """Return True if any request may be sent."""
        young = sum(self._young(now_s))
        if self._client is not None and (young or now_s < self._client.until_s):
            return False
        return len(self._in_flight) < MOST_IN_FLIGHT and young < AT_ONCE

    def _take_of(self, is_background: bool, lane: Lane, now_s: float) -> OpenRequest | None:
        """Take the first wish of a lane whose object has no request in flight, if the lane may send."""
        namespace, kind = lane
        namespaces = self._waiting[is_background]
        waits = self._silent.get(lane)
        in_lane = [sent for sent in self._in_flight.values() if (sent.wish.namespace, sent.wish.kind) == lane]
        if waits is not None and (in_lane or now_s < waits.until_s):
            return None
        kinds = namespaces[namespace]
        free = ((key, wish) for key, wish in kinds[kind].items() if wish.object not in self._in_flight)
        key, wish = next(free, (None, None))
        if key is None or wish is None or self._number_of(kind, now_s) >= wish.at_once:
            return None
        del self._lanes[key[0]][key]
        self._discard(is_background, lane, key)
        if kind in kinds:
            kinds[kind] = kinds.pop(kind)
        if namespace in namespaces:
            namespaces[namespace] = namespaces.pop(namespace)
        reads = wish.object in self._unsettled and wish.read is not None
        request = self._in_flight[wish.object] = OpenRequest(key[0], wish, self._term, now_s, reads)
        return request

    def answered(self, request: OpenRequest, answer: Answer, now_s: float) -> None:
        """Follow the end of a request."""
        wish = request.wish
        lane = (wish.namespace, wish.kind)
        del self._in_flight[wish.object]
        self._forget_old(now_s)
        match answer:
            case Answer.DECIDED | Answer.NO_NEWS:
                if _counts(self._silent.get(lane), request):
                    self._silent.pop(lane, None)
                if _counts(self._client, request):
                    self._client = None
                if request.reads and request.term == self._term:
                    self._unsettled.pop(wish.object, None)
            case Answer.NONE:
                self._close_lane(lane, request, now_s)
                if not request.reads:
                    self._doubt(wish.object, request)
            case Answer.OVERLOADED:
                # The lane waits. The others are tried one at a time without delay, because a webhook or a quota may
                # answer so for one namespace only.
                self._close_lane(lane, request, now_s)
                if self._client is None:
                    self._client = _Waits(self._retry_s, self._jitter)
                    self._client.until_s = now_s
            case Answer.UNAVAILABLE:
                self._client = self._client or _Waits(self._retry_s, self._jitter)
                if _counts(self._client, request):
                    self._client.failed(now_s)

    def _close_lane(self, lane: Lane, request: OpenRequest, now_s: float) -> None:
        """Let a lane wait after a failure, then send one probe."""
        waits = self._silent.pop(lane, None) or _Waits(self._retry_s, self._jitter)
        self._silent[lane] = waits  # behind all earlier ones
        if _counts(waits, request):
            waits.failed(now_s)

    def _forget_old(self, now_s: float) -> None:
        """Forget failures of what was not tried again."""
        while self._unsettled and next(iter(self._unsettled.values())) + REMEMBERED_S < now_s:
            del self._unsettled[next(iter(self._unsettled))]
        while self._silent and next(iter(self._silent.values())).until_s + REMEMBERED_S < now_s:
            del self._silent[next(iter(self._silent))]

    # -- what there is -------------------------------------------------------------------------------------------------

    def next_s(self, now_s: float) -> float | None:
        """Return when a wish may be sent that may not be sent now, if no answer comes; None for never."""
        if not any(self._waiting):
            return None
        moments = [request.sent_s + self._slow_s for request in self._in_flight.values()]
        moments += [waits.until_s for waits in self._silent.values()]
        if self._client is not None:
            moments.append(self._client.until_s)
        return min((moment for moment in moments if moment > now_s), default=None)

    def has_young(self, decider: str, now_s: float) -> bool:
        """Return True if a request of a decider is in flight that is about to be answered."""
        deciders = (request.decider == decider for request in self._in_flight.values())
        return any(itertools.compress(deciders, self._young(now_s)))

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing is in flight."""
        return not self._in_flight and not any(self._waiting)

    def in_flight(self) -> frozenset[str]:
        """Return the objects that have a request in flight."""
        return frozenset(self._in_flight)

    def end_waits(self) -> None:
        """Send at once what waits for a time."""
        self._silent, self._client = {}, None

    def _young(self, now_s: float) -> Iterator[bool]:
        return (now_s < request.sent_s + self._slow_s for request in self._in_flight.values())

    def _number_in(self, namespace: str) -> int:
        return sum(request.wish.namespace == namespace for request in self._in_flight.values())

    def _number_of(self, kind: str, now_s: float) -> int:
        kinds = (request.wish.kind == kind for request in self._in_flight.values())
        return sum(itertools.compress(kinds, self._young(now_s)))
