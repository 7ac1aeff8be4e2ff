"""Events on objects, as `kubectl describe` shows them; repeated Events are counted instead of created again."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from neuron_dra.core import backoff, user_text
from neuron_dra.errors import AlreadyExists, ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import EVENTS

log = logging.getLogger(__name__)

COMPONENT: Final = "neuron-dra-driver"
MESSAGE_CHARACTERS: Final = 1024
NAME_CHARACTERS: Final = 200  # of the object's name, in that of its Events
INSTANCE_CHARACTERS: Final = 128  # limit of events.k8s.io
MOST_WAITING: Final = 2048
MOST_OF_NAMESPACE: Final = 512  # more than the pods of a workload that are told of the end of their block
AT_ONCE: Final = 4  # requests that have not taken long yet
MOST_SENDING: Final = 64  # with those that take long
MOST_KEPT: Final = 4096  # Events recorded as posted; one without a record is posted again, which renews it

Kind = Literal["Normal", "Warning"]


def reference(api_version: str, kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    """Return the object that an Event is about, as its `involvedObject`; without `namespace` if that is empty."""
    within = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, **within, "name": name, "uid": uid}


@dataclass(slots=True)
class _QueuedEvent:
    """An Event that waits for its turn."""

    about: Mapping[str, Any]
    kind: Kind
    reason: str
    message: str
    posted_at: datetime.datetime
    expires_s: float | None = None  # when the API server would have deleted it, by the loop's clock; since it failed


class _Queue:
    """The Events of one namespace that wait, by name, and how its last requests went."""

    def __init__(self, retry_s: tuple[float, float]) -> None:
        self._retry_s = retry_s
        self.waiting: dict[str, _QueuedEvent] = {}
        self.is_sending = False
        self.not_before_s = 0.0
        self._waits: Iterator[float] | None = None

    @property
    def has_failed(self) -> bool:
        return self._waits is not None

    def succeeded(self) -> None:
        self._waits = None

    def failed(self, loop_s: float) -> None:
        """Let the namespace wait, longer after each failure in a row."""
        if self._waits is None:
            self._waits = backoff.delays(*self._retry_s, random.random)
        self.not_before_s = loop_s + next(self._waits)


class EventRecorder:
    """Posts the Events of one component: `post` returns immediately, and `run` sends them in the background.

    Namespaces take turns, and each has one request at a time, so that an API server or a webhook that does not answer
    for the Events of one namespace delays no others. An Event that fails is sent again, after a delay that grows, until
    the API server would have deleted it.
    """

    def __init__(self, client: KubeClient, host: str, component: str = COMPONENT) -> None:
        self._client = client
        self._timing = client.timing.events
        self._component = component
        self._host = host
        self._posted: dict[str, tuple[float, int]] = {}
        self._queues: dict[str, _Queue] = {}  # by namespace; the first one has the next turn
        self._waiting = 0  # Events in all queues
        self._overflows = False  # since the queues were empty
        self._slow: set[str] = set()  # namespaces whose request takes long
        self._sending: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.on_failure: Callable[[], None] = lambda: None
        """Called when an Event could not be posted."""

    def post(self, about: Mapping[str, Any], kind: Kind, reason: str, message: str, now: datetime.datetime) -> bool:
        """Queue an Event with `message` about the object `about`, or its renewal if it was posted long enough ago.

        `about` is a `reference`. Returns False if too many Events of its namespace wait; the caller then posts it
        again. If too many wait in all, the oldest Event of the namespace with the most of them is dropped.
        """
        namespace = str(about.get("namespace") or "default")
        digest = hashlib.sha256(json.dumps([dict(about), kind, reason, message]).encode()).hexdigest()[:16]
        # An object's name may have 253 characters, as an Event's; a part of a name must not end with "." or "-".
        name = f"{about['name'][:NAME_CHARACTERS].rstrip('.-')}.{digest}"
        self._forget(now.timestamp())
        if self._was_posted(name, now):
            return True
        queue = self._queues.setdefault(namespace, _Queue(self._timing.retry_s))
        event = _QueuedEvent(about, kind, reason, user_text.printable(message, MESSAGE_CHARACTERS), now)
        is_queued = self._put(queue, name, event)
        self._changed.set()
        return is_queued

    def _put(self, queue: _Queue, name: str, event: _QueuedEvent) -> bool:
        """Queue an Event, unless it is there or its namespace has too many of them."""
        if name in queue.waiting:
            return True
        if len(queue.waiting) >= MOST_OF_NAMESPACE:
            self._report_overflow(event)
            return False
        if self._waiting >= MOST_WAITING:
            longest = max(self._queues.values(), key=lambda queue: len(queue.waiting))
            _, dropped = self._take(longest)
            self._report_overflow(dropped)
        queue.waiting[name] = event
        self._waiting += 1
        return True

    def _report_overflow(self, event: _QueuedEvent) -> None:
        if not self._overflows:
            log.warning("too many Events wait: some are not posted", extra={"reason": event.reason})
        self._overflows = True
        self.on_failure()

    def _take(self, queue: _Queue) -> tuple[str, _QueuedEvent]:
        self._waiting -= 1
        self._overflows = self._overflows and self._waiting > 0
        name = next(iter(queue.waiting))
        return name, queue.waiting.pop(name)

    async def run(self) -> None:
        """Send the Events until cancelled."""
        try:
            while True:
                self._changed.clear()
                wait_s = self._start_requests()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            for task in self._sending:
                task.cancel()

    def _start_requests(self) -> float | None:
        """Begin the requests that may begin; return the seconds until others may, None until something changes."""
        loop = asyncio.get_running_loop()
        next_s: float | None = None
        for namespace, queue in list(self._queues.items()):
            if queue.is_sending:
                continue
            if queue.not_before_s > loop.time():
                next_s = min(next_s or queue.not_before_s, queue.not_before_s)
                continue
            if not queue.waiting:
                del self._queues[namespace]
                continue
            if len(self._sending) >= MOST_SENDING or len(self._sending) - len(self._slow) >= AT_ONCE:
                continue
            self._queues[namespace] = self._queues.pop(namespace)  # the others go first next time
            queue.is_sending = True
            task = loop.create_task(self._send_next(namespace, queue, *self._take(queue)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return None if next_s is None else max(0.0, next_s - loop.time())

    async def _send_next(self, namespace: str, queue: _Queue, name: str, event: _QueuedEvent) -> None:
        """Send one Event of a namespace; put it back if that fails."""
        loop = asyncio.get_running_loop()
        begins_to_be_slow = loop.call_later(self._timing.slow_s, self._is_slow, namespace)
        try:
            await self._send(namespace, name, event)
        except ApiError as err:
            self.on_failure()
            if not queue.has_failed:
                log.warning("an Event could not be posted", extra={"reason": event.reason, "error": str(err)})
            queue.failed(loop.time())
            event.expires_s = event.expires_s or loop.time() + self._timing.lifetime_s
            if loop.time() < event.expires_s:
                self._put(queue, name, event)
        else:
            queue.succeeded()
        finally:
            begins_to_be_slow.cancel()
            self._slow.discard(namespace)
            queue.is_sending = False
            self._changed.set()

    def _is_slow(self, namespace: str) -> None:
        """Record that a namespace's request takes long, so that another namespace may send in its place."""
        self._slow.add(namespace)
        self._changed.set()

    async def _send(self, namespace: str, name: str, event: _QueuedEvent) -> None:
        """Create an Event, or renew it if it exists. Raises ApiError."""
        if self._was_posted(name, event.posted_at):
            return  # it was posted again while it was sent
        _, count = self._posted.get(name, (0.0, 0))
        stamp = event.posted_at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            if not count:
                body = self._body(namespace, name, event, stamp)
                with contextlib.suppress(AlreadyExists):  # posted before a restart: it is renewed instead
                    await self._client.create(EVENTS, namespace, body)
                    self._keep(name, event.posted_at, 1)
                    return
                # The role allows create and patch but not get, so the count comes from the response to a patch.
                count = await self._patch(namespace, name, {"lastTimestamp": stamp})
            count = await self._patch(namespace, name, {"count": count + 1, "lastTimestamp": stamp})
            self._keep(name, event.posted_at, count)
        except NotFound:
            self._posted.pop(name, None)  # the API server has deleted it: it is created again
            raise

    def _was_posted(self, name: str, now: datetime.datetime) -> bool:
        """Return whether an Event was posted so recently that it needs no renewal."""
        last_s, count = self._posted.get(name, (0.0, 0))
        return bool(count) and 0 <= now.timestamp() - last_s < self._timing.repeat_s  # negative: the clock was set back

    def _keep(self, name: str, now: datetime.datetime, count: int) -> None:
        self._posted.pop(name, None)  # keeps the oldest first
        self._posted[name] = (now.timestamp(), count)

    def _forget(self, now_s: float) -> None:
        """Drop Events so old that the API server has deleted them, and the oldest one if there are too many."""
        while self._posted and now_s - next(iter(self._posted.values()))[0] >= self._timing.lifetime_s:
            del self._posted[next(iter(self._posted))]
        if len(self._posted) >= MOST_KEPT:
            del self._posted[next(iter(self._posted))]

    @property
    def waiting(self) -> int:
        """The number of Events that wait or are being sent."""
        return self._waiting + len(self._sending)

    @property
    def remembered(self) -> int:
        """The number of Events that are recorded as posted."""
        return len(self._posted)

    async def _patch(self, namespace: str, name: str, patch: Mapping[str, Any]) -> int:
        stored_count = (await self._client.patch(EVENTS, namespace, name, patch)).get("count")
        if isinstance(stored_count, int):
            return stored_count
        return 1

    def _body(self, namespace: str, name: str, event: _QueuedEvent, stamp: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": dict(event.about),
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host[:INSTANCE_CHARACTERS],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


class EventsAbout:
    """The Events about one object."""

    def __init__(self, about: Mapping[str, Any], recorder: EventRecorder) -> None:
        self._about = about
        self._recorder = recorder
        self.run = recorder.run

    def post(self, kind: Kind, reason: str, message: str) -> None:
        """Queue an Event."""
        self._recorder.post(self._about, kind, reason, message, datetime.datetime.now(datetime.UTC))
