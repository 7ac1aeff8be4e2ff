"""Faults on request: what the server does wrong, for whom, and how often."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Do(enum.Enum):
    RESPOND = "respond"  # answer with `status` instead of serving the request
    HANG = "hang"  # accept the request and never answer
    DROP = "drop"  # close the connection without an answer
    DROP_AFTER = "drop after"  # serve the request, then close the connection: the answer is lost, the write is not
    DELAY = "delay"  # serve the request `delay_s` seconds later
    CLOSE_WATCH = "close watch"  # answer a watch with an empty stream that ends at once


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


@dataclass(slots=True)
class Fault:
    """One fault. Empty matchers match everything.

    `verb` is get, list, watch, create, update, patch, delete or deletecollection; `resource` a plural such as
    "resourceslices" ("resourceclaims/status" for a subresource). The fault begins with the `nth` matching request
    (from 1) and acts on `times` of them (None: for ever). `hits` counts how often it acted.
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
    retry_after: int | None = None  # seconds, a Retry-After header
    body: bytes | None = None  # sent as text instead of a Status, as proxies do
    delay_s: float = 0.0
    hits: int = 0
    _seen: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not self.reason:
            self.reason = _REASONS.get(self.status, "Unknown")

    def strikes(self, verb: str, resource: str, namespace: str, name: str) -> bool:
        """Tell whether the fault acts on this request, and count it."""
        pairs = ((self.verb, verb), (self.resource, resource), (self.namespace, namespace), (self.name, name))
        if any(wanted and wanted != present for wanted, present in pairs):
            return False
        self._seen += 1
        if self._seen < self.nth or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        self._faults.clear()

    def match(self, verb: str, resource: str, namespace: str, name: str) -> Fault | None:
        for fault in self._faults:
            if fault.strikes(verb, resource, namespace, name):
                return fault
        return None
