"""One watch: converts the store's history into the lines of a watch stream."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.selectors import Predicate
from neuron_dra.emulation.embedded_api.store import ObjectStore

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Ahead(enum.Enum):
    """What a watch gets that starts at a resourceVersion that the server has not reached, as after an etcd restore."""

    SILENT = "silent"  # no changes and no bookmarks until the server passes it: what kube-apiserver does
    REFUSED = "refused"  # 504, Too large resource version: what it does for lists
    EXPIRED = "expired"  # 410


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A watch request. With `revision` None the watch begins with the existing objects.

    `not_older_than` is the version that a streaming list must have reached.
    """

    resource: EmbeddedResource
    namespace: str
    matches: Predicate
    revision: int | None
    bookmarks: bool
    initial_events: bool
    timeout_s: float
    not_older_than: int = 0


class Watches:
    """The open watches of a server; tests can end them or request bookmarks."""

    def __init__(self, store: ObjectStore) -> None:
        self.bookmark_interval_s = 60.0
        self.ahead = Ahead.SILENT
        self._store = store
        self._open: dict[_Stream, WatchRequest] = {}

    def check(self, request: WatchRequest) -> None:
        """Raise StatusError for a watch that the server does not begin."""
        if self.ahead is Ahead.REFUSED and request.revision is not None and request.revision > self._store.revision:
            raise errors.too_large_version(request.revision, self._store.revision)

    def count(self, plural: str = "") -> int:
        return sum(1 for request in self._open.values() if plural in ("", request.resource.plural))

    def close(self, plural: str = "") -> int:
        """End the streams of a resource (or all) as the server does after timeoutSeconds; return their number."""
        return self._for_each(plural, lambda stream: stream.close())

    def expire(self, plural: str = "") -> int:
        """Send a 410 in each stream of a resource (or all), then end it; return the number of streams."""
        status = errors.expired("The resourceVersion for the provided watch is too old.").to_status()
        return self._for_each(plural, lambda stream: stream.close({"type": "ERROR", "object": status}))

    def bookmark(self, plural: str = "") -> int:
        """Send a bookmark in each stream that requested them; return the number of streams."""
        return self._for_each(plural, lambda stream: stream.request_bookmark())

    def _for_each(self, plural: str, act: Callable[[_Stream], None]) -> int:
        chosen = [stream for stream, request in self._open.items() if plural in ("", request.resource.plural)]
        for stream in chosen:
            act(stream)
        return len(chosen)

    async def lines(self, request: WatchRequest) -> AsyncIterator[Obj]:
        """Yield watch events until the timeout, `close` or `expire`."""
        if self.ahead is Ahead.EXPIRED and request.revision is not None and request.revision > self._store.revision:
            expired = errors.expired(f"too old resource version: {request.revision} ({self._store.revision})")
            yield {"type": "ERROR", "object": expired.to_status()}
            return
        if (
            request.not_older_than > self._store.revision
        ):  # kube-apiserver waits 3 s for it, and then tells in the stream
            too_large = errors.too_large_version(request.not_older_than, self._store.revision)
            yield {"type": "ERROR", "object": too_large.to_status()}
            return
        stream = _Stream(self._store, request, self.bookmark_interval_s)
        self._open[stream] = request
        self._store.wake_on_change(stream.waker, request.resource)
        try:
            async for line in stream.lines():
                yield line
        finally:
            self._store.stop_waking(stream.waker)
            del self._open[stream]


class _Stream:
    def __init__(self, store: ObjectStore, request: WatchRequest, bookmark_interval_s: float) -> None:
        self.waker = asyncio.Event()
        self._store = store
        self._request = request
        self._bookmark_interval_s = bookmark_interval_s
        self._bookmark_wanted = False
        self._closing = False
        self._last_line: Obj | None = None

    def close(self, last_line: Obj | None = None) -> None:
        self._closing, self._last_line = True, last_line
        self.waker.set()

    def request_bookmark(self) -> None:
        self._bookmark_wanted = True
        self.waker.set()

    async def lines(self) -> AsyncIterator[Obj]:
        loop = asyncio.get_running_loop()
        request = self._request
        deadline = loop.time() + request.timeout_s
        interval_s = self._bookmark_interval_s if request.bookmarks else math.inf
        next_bookmark = loop.time() + interval_s
        revision = request.revision
        if revision is None:
            revision = self._store.revision
            for obj in self._store.list(request.resource, request.namespace):
                if request.matches(obj):
                    yield {"type": "ADDED", "object": obj}
            if request.initial_events:
                yield self._bookmark(revision, {INITIAL_EVENTS_END: "true"})
        is_open = False
        while not self._closing:
            self.waker.clear()
            try:
                events = self._store.history(request.resource).after(revision, is_open=is_open)
            except StatusError as error:
                yield {"type": "ERROR", "object": error.to_status()}
                return
            # After a restore the store is behind, and has nothing for this watch until it has passed it again.
            revision, is_open = max(revision, self._store.revision), True
            gets_bookmarks = request.bookmarks and self._store.revision >= revision
            for event in events:
                if line := _line(event, request):
                    yield line
            now = loop.time()
            if request.bookmarks and (self._bookmark_wanted or now >= next_bookmark):
                self._bookmark_wanted, next_bookmark = False, now + interval_s
                if gets_bookmarks:
                    yield self._bookmark(revision)
            if now >= deadline:
                if gets_bookmarks:
                    yield self._bookmark(revision)
                return
            try:
                async with asyncio.timeout_at(min(deadline, next_bookmark)):
                    await self.waker.wait()
            except TimeoutError:  # a bookmark is due, or the watch has lasted its time
                continue
        if self._last_line:
            yield self._last_line

    def _bookmark(self, revision: int, annotations: Obj | None = None) -> Obj:
        resource = self._request.resource
        meta: Obj = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        api_version = resource.api_version(resource.storage)
        return {"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": api_version, "metadata": meta}}


def _line(event: Event, request: WatchRequest) -> Obj | None:
    """Return the watch event of a change, if any; an object that leaves or enters the selection is DELETED or ADDED."""
    if request.namespace and event.obj["metadata"].get("namespace") != request.namespace:
        return None
    was_selected = event.old is not None and request.matches(event.old)
    if event.type == "DELETED":
        if was_selected:
            return {"type": "DELETED", "object": event.obj}
        return None
    matches = request.matches(event.obj)
    if matches:
        return {"type": "MODIFIED" if was_selected else "ADDED", "object": event.obj}
    if was_selected and event.old is not None:
        meta = {**event.old["metadata"], "resourceVersion": event.obj["metadata"]["resourceVersion"]}
        return {"type": "DELETED", "object": {**event.old, "metadata": meta}}
    return None
