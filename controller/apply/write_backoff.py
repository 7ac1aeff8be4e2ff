"""Back-off of writes that were rejected or had no effect: per object, with growing waits. Pure.

A write had no effect if it succeeded and is planned again unchanged, with no other write of that object between the
two: something reverted it, or the server dropped it. Both kinds are tried at most a dozen times in ten minutes. Writes
to other objects do not wait for them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from controller.timing import WriteTiming
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    Evict,
)

GROWTH: Final = 3
ENOUGH: Final = 20
"""The wait no longer grows after so many tries: 3 to the power of 646, after 16 hours, is too large for a float."""

SETTLED: Final = datetime.timedelta(minutes=1)
"""A write that is not planned again for so long after its wait has had its effect.

It is forgotten then: a tenant that creates and deletes workloads all the time makes many.
"""

_VERSIONS = ("version", "before", "owners", "warning")
_TIMES = ("lastTransitionTime", "allocatedAt", "since", "restartedAt")


@dataclass(frozen=True, slots=True)
class Tries:
    """The number of tries in a row, and the earliest time of the next one."""

    number: int
    next_at: datetime.datetime

    def once_more(self, first_s: float, now: datetime.datetime, longest_s: float) -> Tries:
        """Return the value after one more try."""
        wait = min(first_s * GROWTH ** min(self.number, ENOUGH), longest_s)
        return replace(self, number=self.number + 1, next_at=now + datetime.timedelta(seconds=wait))


class Backoff:
    """Tries by object and written content. Old ones are removed."""

    def __init__(self, timing: WriteTiming) -> None:
        self._timing = timing
        self._refused: dict[str, Tries] = {}
        self._written: dict[str, Tries] = {}
        self._last: dict[str, str] = {}  # the last content by object
        self._swept_at: datetime.datetime | None = None

    def next_try(self, action: Action) -> datetime.datetime | None:
        """Return when a write that was rejected, or had no effect, may be tried again; None for other writes."""
        object_key = _object(action)
        tries_of_write = [self._refused.get(object_key)]
        tries_of_content = self._written.get(object_key)
        # A digest costs more than all else here, and a plan may have a write for each node of the cluster.
        if tries_of_content is not None and self._last.get(object_key) == _content(action):
            tries_of_write.append(tries_of_content)
        return max((tries.next_at for tries in tries_of_write if tries is not None), default=None)

    def refused(self, action: Action, now: datetime.datetime) -> None:
        """Note that the server rejected this write."""
        self._try(self._refused, _object(action), action, now)

    def written(self, action: Action, now: datetime.datetime) -> None:
        """Note that the write succeeded. If it is planned again, it had no effect."""
        object_key, content = _object(action), _content(action)
        self._refused.pop(object_key, None)
        if self._last.get(object_key) != content:
            self._written.pop(object_key, None)
        self._try(self._written, object_key, action, now)
        self._last[object_key] = content

    def _try(self, tries: dict[str, Tries], key: str, action: Action, now: datetime.datetime) -> None:
        """Count a try, and remove old entries."""
        forgotten_after = datetime.timedelta(seconds=self._timing.forgotten_s)
        if self._swept_at is None or self._swept_at + SETTLED <= now:
            self._swept_at = now
            for tries_by_object, after_first_try in ((self._refused, forgotten_after), (self._written, SETTLED)):
                for object_key, tries_of_object in list(tries_by_object.items()):
                    kept_for = after_first_try if tries_of_object.number == 1 else forgotten_after
                    if tries_of_object.next_at + kept_for <= now:
                        del tries_by_object[object_key]
            self._last = {
                object_key: content for object_key, content in self._last.items() if object_key in self._written
            }
        if isinstance(action, Evict):
            first_s = self._timing.first_eviction_s
        else:
            first_s = self._timing.first_s
        tries[key] = tries.get(key, Tries(0, now)).once_more(first_s, now, self._timing.longest_s)


def _object(action: Action) -> str:
    """Return a key for the written object and the kind of write. A Node or Pod with another UID is another object."""
    if isinstance(action, CreateUltraServer | CreateTemplate):
        meta = action.body["metadata"]
        owners = [owner.get("uid") for owner in meta.get("ownerReferences") or ()]
        parts = [meta.get("namespace"), meta["name"], *owners]
    else:
        parts = [getattr(action, part, "") for part in ("namespace", "name", "uid")]
    return "/".join(str(part) for part in (type(action).__name__, *parts))


def _content(action: Action) -> str:
    """Return a digest of the written content without versions and times."""
    content = {}
    for field in fields(action):
        if field.name not in _VERSIONS:
            content[field.name] = getattr(action, field.name)
    text = json.dumps(_without_times(content), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_times(value: Any) -> Any:
    """Return a value without the fields that hold times."""
    if isinstance(value, Mapping):
        without_times = {}
        for key, element in value.items():
            if key not in _TIMES:
                without_times[key] = _without_times(element)
        return without_times
    if isinstance(value, list | tuple):
        return [_without_times(element) for element in value]
    return value
