"""The recent changes of one resource, from which watches start."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource

_LONGEST = 50_000  # changes


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `obj` is the object after it (for DELETED: its last state), `old` the one before."""

    revision: int
    type: str
    resource: EmbeddedResource
    obj: Obj
    old: Obj | None


@dataclass(slots=True)
class History:
    """The recent changes of one resource.

    `since` is the oldest revision at which a watch can start; `lost` is the revision of the last discarded change.
    """

    since: int
    lost: int = 0
    events: list[Event] = field(default_factory=list)

    def after(self, revision: int, *, is_open: bool = False) -> list[Event]:
        """Return the changes after `revision`. Raises ApiError 410 if some of them were discarded.

        A watch that `is_open` already has all changes up to its `revision`, which may therefore be older than `since`.
        """
        if revision < (self.lost if is_open else self.since):
            raise errors.expired(f"too old resource version: {revision} ({self.since})")
        return self.events[bisect_right(self.events, revision, key=lambda event: event.revision) :]

    def add(self, event: Event) -> None:
        """Add a change; at the limit, discard the older half."""
        self.events.append(event)
        if len(self.events) > _LONGEST:
            forgotten = _LONGEST // 2
            self.since = self.lost = self.events[forgotten - 1].revision
            del self.events[:forgotten]
