"""Looks for room for workloads whose place is scattered over the fleet, now and then: it costs more than a plan."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Final

from controller.decisions.actions import Verdict
from controller.fleet.fleet_index import FleetIndex
from controller.fleet.spares import Numbers
from controller.observe.model import Known
from controller.plan import room
from controller.timing import RoomTiming

log = logging.getLogger(__name__)

WORKLOADS_AT_MOST: Final = 4
"""The workloads, the first in the queue, for which room is looked for."""


class RoomLooks:
    """Schedules the looks, and keeps their results: `found` has a message by the workload's UID."""

    def __init__(self, timing: RoomTiming, spares: Numbers = ()) -> None:
        """`spares` are those that are kept from new workloads."""
        self._timing = timing
        self._spares = spares
        self._next: dict[str, datetime.datetime] = {}
        self.found: dict[str, str] = {}

    def look(
        self, verdicts: Mapping[str, Verdict], index: FleetIndex, known: Known, now: datetime.datetime
    ) -> datetime.datetime | None:
        """Look for room for one workload that is due; return when the next is due, which is now if results changed.

        `verdicts` are those of a plan whose place is scattered, in the order of the queue.
        """
        asked = [*verdicts][:WORKLOADS_AT_MOST]
        self._next = {uid: self._next.get(uid, now) for uid in asked}
        before = self.found
        self.found = {uid: text for uid, text in before.items() if uid in asked}
        due = [uid for uid in asked if self._next[uid] <= now]
        if due:
            self._look(due[0], index, known, now)
            self._next[due[0]] = now + datetime.timedelta(seconds=self._timing.again_s)
        if self.found != before:
            return now
        return min(self._next.values(), default=None)

    def end_waits(self) -> None:
        """Look again at once."""
        self._next = {}

    def _look(self, uid: str, index: FleetIndex, known: Known, now: datetime.datetime) -> None:
        workload = index.workload_by_uid.get(uid)
        try:
            found = None if workload is None else room.advice(index, workload, now, known, self._spares)
        except Exception:  # advice must not end the controller
            log.exception("no room could be looked for", extra={"workload": uid})
            found = None
        if found is None or workload is None:
            self.found.pop(uid, None)
        else:
            self.found[uid] = found.message(workload.namespace)
