"""The changes of one resource, as far back as a watch can ask for them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.errors import Obj
from neuron_dra.emulation.embedded_api.resources import Resource

_LONGEST = 50_000  # changes


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `obj` is the object after it (for DELETED: as it was last), `old` the one before."""

    revision: int
    type: str
    resource: Resource
    obj: Obj
    old: Obj | None


@dataclass(slots=True)
class History:
    """The changes of one resource that a watch can still ask for.

    `since` is the oldest revision at which one can start, `lost` that of the last change which is forgotten.
    """

    since: int
    lost: int = 0
    events: list[Event] = field(default_factory=list)

    def after(self, revision: int, *, is_open: bool = False) -> list[Event]:
        """Return the changes after `revision`. Raises a 410 when some of them are forgotten.

        A watch that `is_open` need not know of revisions at which nothing happened to this resource.
        """
        if revision < (self.lost if is_open else self.since):
            raise errors.expired(f"too old resource version: {revision} ({self.since})")
        return self.events[bisect_right(self.events, revision, key=lambda event: event.revision) :]

    def add(self, event: Event) -> None:
        """Take in a change; of too many, the older half is forgotten."""
        self.events.append(event)
        if len(self.events) > _LONGEST:
            forgotten = _LONGEST // 2
            self.since = self.lost = self.events[forgotten - 1].revision
            del self.events[:forgotten]
