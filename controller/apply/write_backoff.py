"""How soon a write is tried again that was refused, or that had no effect: per object, later each time. Pure.

A write that succeeds and is wanted again word for word, with no other write of that object between the two, had no
effect: somebody undid it, or the server dropped it. Both kinds are tried at most a dozen times in ten minutes, and what
is wanted of other objects does not wait for them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from controller.plan.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    Evict,
)

FIRST_S: Final = 0.2
FIRST_EVICTION_S: Final = 5.0  # a pod takes its time to end, and a budget to allow it
GROWTH: Final = 3
LONGEST_S: Final = 90.0
FORGOTTEN_AFTER: Final = datetime.timedelta(minutes=10)

_VERSIONS = ("version", "before", "owners", "warning")
_TIMES = ("lastTransitionTime", "allocatedAt", "since", "restartedAt")


@dataclass(frozen=True, slots=True)
class Tries:
    """How often in a row, and when again at the earliest."""

    number: int
    next_at: datetime.datetime

    def once_more(self, first_s: float, now: datetime.datetime) -> Tries:
        """Return this after one more try."""
        wait = min(first_s * GROWTH**self.number, LONGEST_S)
        return replace(self, number=self.number + 1, next_at=now + datetime.timedelta(seconds=wait))


class Backoff:
    """Remembers tries by object and by what was written to it; forgets those of which nothing is heard for a while."""

    def __init__(self) -> None:
        self._refused: dict[str, Tries] = {}
        self._written: dict[str, Tries] = {}
        self._last: dict[str, str] = {}  # what was written to an object last
        self._swept_at: datetime.datetime | None = None

    def due(self, action: Action, now: datetime.datetime) -> datetime.datetime:
        """Return when this write may be made: now, or later."""
        name = _object(action)
        same = self._last.get(name) == _content(action)
        found = (self._refused.get(name), self._written.get(name) if same else None)
        return max((each.next_at for each in found if each is not None), default=now)

    def refused(self, action: Action, now: datetime.datetime) -> None:
        """The server said no to this write."""
        self._try(self._refused, _object(action), action, now)

    def written(self, action: Action, now: datetime.datetime) -> None:
        """The write was made. If it is wanted again it had no effect."""
        name, content = _object(action), _content(action)
        self._refused.pop(name, None)
        if self._last.get(name) != content:
            self._written.pop(name, None)
        self._try(self._written, name, action, now)
        self._last[name] = content

    def earliest(self, actions: Iterable[Action], now: datetime.datetime) -> datetime.datetime | None:
        """Return when the first of these writes that wait is due."""
        return min((moment for each in actions if (moment := self.due(each, now)) > now), default=None)

    def _try(self, tries: dict[str, Tries], key: str, action: Action, now: datetime.datetime) -> None:
        if self._swept_at is None or self._swept_at + FORGOTTEN_AFTER <= now:
            self._swept_at = now
            for every in (self._refused, self._written):
                for old in [each for each, found in every.items() if found.next_at + FORGOTTEN_AFTER <= now]:
                    del every[old]
            self._last = {name: content for name, content in self._last.items() if name in self._written}
        first_s = FIRST_EVICTION_S if isinstance(action, Evict) else FIRST_S
        tries[key] = tries.get(key, Tries(0, now)).once_more(first_s, now)


def _object(action: Action) -> str:
    """The object that is written to, and how. A Node or Pod of another UID is another object."""
    if isinstance(action, CreateUltraServer | CreateTemplate):
        meta = action.body["metadata"]
        parts = [meta.get("namespace"), meta["name"]]
    else:
        parts = [getattr(action, part, "") for part in ("namespace", "name", "uid")]
    return "/".join(str(part) for part in (type(action).__name__, *parts))


def _content(action: Action) -> str:
    """What is written, without what differs each time: versions and times."""
    told = {each.name: getattr(action, each.name) for each in fields(action) if each.name not in _VERSIONS}
    text = json.dumps(_without_times(told), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(each) for key, each in value.items() if key not in _TIMES}
    if isinstance(value, list | tuple):
        return [_without_times(each) for each in value]
    return value
