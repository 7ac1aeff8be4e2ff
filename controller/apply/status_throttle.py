"""Delays status writes that only change messages: 256 nodes that tag one by one do not cause 256 writes.

State, reasons and reservations of a workload are written at once. A message that names what it still waits for, and a
group that is removed, are written at most every few seconds. Where a workload waits and only numbers change, as with
each node that becomes free or is taken, its status is written about once a minute.
"""

from __future__ import annotations

import datetime
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controller.timing import WriteTiming
from neuron_dra.planner.decisions.actions import Action, Plan, WriteWorkloadStatus

_NUMBER: Final = re.compile(r"\d+", re.ASCII)


class StatusThrottle:
    """Keeps the time of the last write of each workload's status."""

    def __init__(self, timing: WriteTiming) -> None:
        self._interval = datetime.timedelta(seconds=timing.message_s)
        self._numbers = datetime.timedelta(seconds=timing.numbers_s)
        self._spread_s = timing.spread_s
        self._longest = self._numbers + datetime.timedelta(seconds=timing.spread_s)
        self._written: dict[str, datetime.datetime] = {}

    def without_deferrable(self, plan: Plan, now: datetime.datetime) -> Plan:
        """Return the plan without writes that can wait; its `recheck` is at the latest when the first is due."""
        kept: list[Action] = []
        moments = [] if plan.recheck is None else [plan.recheck]
        for action in plan.actions:
            due = self._due(action)
            if due is None or due <= now:
                kept.append(action)
            else:
                moments.append(due)
        return replace(plan, actions=tuple(kept), recheck=min(moments, default=None))

    def written(self, action: WriteWorkloadStatus, now: datetime.datetime) -> None:
        """Note that a workload's status was written."""
        self._written.pop(action.uid, None)
        self._written[action.uid] = now  # behind all earlier ones
        while self._written[first := next(iter(self._written))] + self._longest <= now:
            del self._written[first]

    def end_waits(self) -> None:
        """Let all writes be made at once."""
        self._written = {}

    def _due(self, action: Action) -> datetime.datetime | None:
        """Return when a write is due if it can wait, or None."""
        if not isinstance(action, WriteWorkloadStatus) or action.uid not in self._written:
            return None
        if _without_messages(action.before) != _without_messages(action.status):
            return None
        if _groups(action.status) - _groups(action.before):
            return None
        return self._written[action.uid] + self._interval_of(action)

    def _interval_of(self, action: WriteWorkloadStatus) -> datetime.timedelta:
        """Return how long a new message waits after the last write.

        By up to `spread_s` longer, which differs by workload: thousands are not written in the same second.
        """
        before, after = _wording(action.before), _wording(action.status)
        if action.status.get("state") != "Pending" or before != after:
            return self._interval
        return self._numbers + datetime.timedelta(seconds=zlib.crc32(action.uid.encode()) % self._spread_s)


def _wording(status: Mapping[str, Any]) -> list[str]:
    """Return the messages of a status without their numbers."""
    messages = []
    for condition in status.get("conditions") or []:
        messages.append(_NUMBER.sub("#", str(condition.get("message"))))
    return messages


def _without_messages(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without what may be written later: messages and groups."""
    conditions = [{**condition, "message": ""} for condition in status.get("conditions") or []]
    return {**status, "conditions": conditions, "groups": None}


def _groups(status: Mapping[str, Any]) -> set[str]:
    """Return the identities of the groups in a status."""
    group_ids = set()
    for group in status.get("groups") or []:
        group_ids.add(str(group.get("allocationId")) + str(group.get("ultraserverUid")))
    return group_ids
