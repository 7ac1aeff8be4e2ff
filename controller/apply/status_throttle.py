"""Holds back status writes that only change words: 256 nodes that answer one by one are not 256 writes.

What a workload is in (state, reasons, reservations) is always written at once; the sentence that counts and names what
is still waited for, and that a group is given back, at most every few seconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controller.plan.actions import Action, Plan, WriteWorkloadStatus

WORDS_EVERY: Final = datetime.timedelta(seconds=5)  # a person who watches reads no faster


class StatusThrottle:
    """Remembers when each workload's status was written last."""

    def __init__(self) -> None:
        self._written: dict[str, datetime.datetime] = {}

    def unhurried(self, plan: Plan, now: datetime.datetime) -> Plan:
        """Return the plan without the writes that can wait; it is made again when the first of them is due."""
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
        """A workload's status was written."""
        recent = {uid: moment for uid, moment in self._written.items() if now < moment + WORDS_EVERY}
        self._written = {**recent, action.uid: now}

    def _due(self, action: Action) -> datetime.datetime | None:
        if not isinstance(action, WriteWorkloadStatus) or action.uid not in self._written:
            return None
        if _without_words(action.before) != _without_words(action.status):
            return None
        if _groups(action.status) - _groups(action.before):
            return None
        return self._written[action.uid] + WORDS_EVERY


def _without_words(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = [{**one, "message": ""} for one in status.get("conditions") or []]
    return {**status, "conditions": conditions, "groups": None}


def _groups(status: Mapping[str, Any]) -> set[str]:
    return {str(one.get("allocationId")) + str(one.get("ultraserverUid")) for one in status.get("groups") or []}
