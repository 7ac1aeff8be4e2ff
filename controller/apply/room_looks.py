"""Looks for room for workloads whose place is scattered over the fleet, now and then: it costs more than a plan."""

from __future__ import annotations

import datetime
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final

from controller.timing import RoomTiming
from neuron_dra.core.turns import in_turn
from neuron_dra.planner.decisions.actions import Verdict
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.spares import Numbers
from neuron_dra.planner.observed.model import Known
from neuron_dra.planner.plan import room

log = logging.getLogger(__name__)

LOOKS_AT_MOST: Final = 4
"""The limit of looks in `RoomTiming.again_s`; namespaces take turns."""


def _namespace(index: FleetIndex, uid: str) -> str:
    workload = index.workload_by_uid.get(uid)
    return workload.namespace if workload is not None else ""


class RoomLooks:
    """Schedules the looks, and keeps their results: `found` has a message by the workload's UID."""

    def __init__(self, timing: RoomTiming, spares: Numbers = ()) -> None:
        """`spares` are those that are kept from new workloads."""
        self._timing = timing
        self._spares = spares
        self._next: dict[str, datetime.datetime] = {}
        self._looked: deque[datetime.datetime] = deque(maxlen=LOOKS_AT_MOST)  # when the last looks were
        self.found: dict[str, str] = {}

    def look(
        self, verdicts: Mapping[str, Verdict], index: FleetIndex, known: Known, now: datetime.datetime
    ) -> datetime.datetime | None:
        """Look for room for one workload that is due; return when the next is due, which is now if results changed.

        `verdicts` are those of a plan whose place is scattered, in the order of the queue.
        """
        uids = in_turn(verdicts, lambda uid: _namespace(index, uid))
        self._next = {uid: self._next.get(uid, now) for uid in uids}
        before = self.found
        self.found = {uid: text for uid, text in before.items() if uid in self._next}
        first = min(uids, key=lambda uid: self._next[uid], default=None)
        if first is not None and max(self._next[first], self._free_at(now)) <= now:
            self._look(first, index, known, now)
            self._looked.append(now)
            self._next[first] = now + datetime.timedelta(seconds=self._timing.again_s)
        if self.found != before:
            return now
        if not self._next:
            return None
        return max(min(self._next.values()), self._free_at(now))

    def _free_at(self, now: datetime.datetime) -> datetime.datetime:
        """Return when the next look may be."""
        if len(self._looked) < LOOKS_AT_MOST:
            return now
        return self._looked[0] + datetime.timedelta(seconds=self._timing.again_s)

    def end_waits(self) -> None:
        """Look again at once."""
        self._next = {}
        self._looked.clear()

    def _look(self, uid: str, index: FleetIndex, known: Known, now: datetime.datetime) -> None:
        workload = index.workload_by_uid.get(uid)
        try:
            room_advice = None if workload is None else room.advice(index, workload, now, known, self._spares)
        except Exception:  # advice must not end the controller
            log.exception("no room could be looked for", extra={"workload": uid})
            room_advice = None
        if room_advice is None or workload is None:
            self.found.pop(uid, None)
        else:
            self.found[uid] = room_advice.message(workload.namespace)
