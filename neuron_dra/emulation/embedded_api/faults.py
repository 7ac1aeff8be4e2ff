"""Injected faults: which requests of the embedded API server fail, how, and how often."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Do(enum.Enum):
    RESPOND = "respond"  # reply with `status` instead of serving the request
    NOT_FOUND = "not found"  # reply 404 with a Status that names the object, as if it were gone
    HANG = "hang"  # accept the request and never reply
    DROP = "drop"  # close the connection without a reply
    DROP_AFTER = "drop after"  # serve the request, then close the connection: the reply is lost, the write is not
    DELAY = "delay"  # serve the request `delay_s` seconds later
    ANSWER_LATE = "answer late"  # serve the request at once, and reply after `release()` or `delay_s` seconds
    CLOSE_WATCH = "close watch"  # reply to a watch with an empty stream that ends at once


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Strange:
    """A reply that a correct API server never sends, but a proxy or a broken server may."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200

    def fault(self, **matchers: object) -> InjectedFault:
        """Return a Fault with this reply; `matchers` are fields of Fault."""
        return InjectedFault(
            status=self.status,
            body=self.body,
            content_type=self.content_type,
            **matchers,  # type: ignore[arg-type]
        )


STRANGE: Final[Mapping[str, Strange]] = {
    "a page of HTML": Strange(b"<html><body>Please log in</body></html>", "text/html"),
    "a page of HTML with 502": Strange(b"<html>bad gateway</html>", "text/html", 502),
    "nothing": Strange(b""),
    "null": Strange(b"null"),
    "a list": Strange(b"[]"),
    "a number": Strange(b"1e400"),
    "an empty object": Strange(b"{}"),
    "half an object": Strange(b'{"kind": "ResourceClaim", "metadata": {"name": "a"'),
    "success": Strange(b'{"kind": "Status", "apiVersion": "v1", "status": "Success"}'),
    "failure": Strange(b'{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}'),
    "another kind": Strange(
        b'{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default", "uid": "u",'
        b' "resourceVersion": "9"}, "data": {}}'
    ),
    "fields of another type": Strange(
        b'{"metadata": {"name": 1, "uid": [], "resourceVersion": {}}, "spec": "x", "status": 7, "items": {"a": 1}}'
    ),
    "metadata that is not an object": Strange(b'{"metadata": "x", "items": ["a", null]}'),
    "deeply nested brackets": Strange(b"[" * 100_000),
    "no UTF-8": Strange(b'{"metadata": {"name": "\xff\xfe"}}'),
    "a status without a number": Strange(b'{"code": "x", "reason": [], "message": null, "details": []}', status=500),
}
"""Malformed replies by name, for parametrized tests."""

NOT_FOUND: Final[Mapping[str, Strange]] = {
    "a text": Strange(b"404 page not found\n", "text/plain", 404),
    "a page of HTML": Strange(b"<html><body>404 Not Found</body></html>", "text/html", 404),
    "nothing": Strange(b"", "text/plain", 404),
    "a Status without an object": Strange(
        b'{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,'
        b' "message": "the server could not find the requested resource"}',
        status=404,
    ),
    "a Status of another object": Strange(
        b'{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,'
        b' "message": "services \\"api\\" not found", "details": {"name": "api", "kind": "services"}}',
        status=404,
    ),
}
"""Replies with status 404 that prove nothing about an object: a kind that is not served, or a proxy.

`Do.NOT_FOUND` is the reply that does: a Status that names the object.
"""


def refused_watch(resource: str = "", **matchers: object) -> InjectedFault:
    """Return a fault that refuses every watch of a resource, as 504, while its lists work."""
    return InjectedFault(
        verb="watch",
        resource=resource,
        status=504,
        message="Timeout: Too large resource version: 91234, current: 1234",
        **{"times": None, **matchers},  # type: ignore[arg-type]
    )


@dataclass(slots=True)
class InjectedFault:
    """One fault. Empty matchers match everything.

    `verb` is get, list, watch, create, update, patch, delete or deletecollection; `resource` a plural such as
    "resourceslices" ("resourceclaims/status" for a subresource), or a path such as "/version". It begins with the
    `nth` matching request (from 1) and acts on `times` of them (None: on all). `hits` counts how often it acted.
    """

    do: Do = Do.RESPOND
    verb: str = ""
    resource: str = ""
    name: str = ""
    namespace: str = ""
    nth: int = 1
    times: int | None = 1
    status: int = 500
    reason: str = ""
    message: str = "fault on request"
    retry_after: int | str | None = None  # a Retry-After header: seconds, or the text of a date
    body: bytes | None = None  # sent instead of a Status, as proxies do
    content_type: str = "text/plain"  # of `body`
    delay_s: float = 0.0
    hits: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _seen: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not self.reason:
            self.reason = _REASONS.get(self.status, "Unknown")

    def release(self) -> None:
        """Send the delayed replies now, and later ones without delay."""
        self._released.set()

    async def held(self) -> None:
        """Wait until the reply may be sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.delay_s or None):
                await self._released.wait()

    def strikes(self, verb: str, resource: str, namespace: str, name: str) -> bool:
        """Return True if the fault acts on this request, and count the request."""
        pairs = ((self.verb, verb), (self.resource, resource), (self.namespace, namespace), (self.name, name))
        if any(expected and expected != actual for expected, actual in pairs):
            return False
        self._seen += 1
        if self._seen < self.nth or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


class Faults:
    """The active faults."""

    def __init__(self) -> None:
        self._faults: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> InjectedFault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        self._faults.clear()

    def match(self, verb: str, resource: str, namespace: str, name: str) -> InjectedFault | None:
        for fault in self._faults:
            if fault.strikes(verb, resource, namespace, name):
                return fault
        return None

    def match_path(self, verb: str, path: str) -> InjectedFault | None:
        """Return the fault on a path that is no resource, such as /version; only one that names it."""
        for fault in self._faults:
            if fault.resource == path and fault.strikes(verb, path, "", ""):
                return fault
        return None
