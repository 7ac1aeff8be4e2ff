"""Says which kinds of jobs cannot be read: in Events on their reservations, and on the namespaces that may reserve.

The kinds that can be read go on. Of the others nothing is released, because nobody knows which of their jobs are gone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

from controller.jobs.there import kind_and_name
from controller.jobs.watches import JobWatches
from controller.timing import JobTiming
from neuron_dra.core.event_turns import EventTurns
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.planner.observed.model import API_VERSION, WORKLOAD_KIND, Namespace, Workload

AT_ONCE: Final = 16
"""The limit of Events in one look."""
REASON: Final = "JobKindUnreadable"


class UnreadKinds:
    """The Events about kinds of jobs that cannot be read."""

    def __init__(self, events: EventRecorder, timing: JobTiming) -> None:
        self._events = events
        self._timing = timing
        self._problems: Mapping[str, str] = {}
        self._followed_at: datetime.datetime | None = None
        self._turns: EventTurns[str] = EventTurns()  # by UID of the object
        self._about: dict[str, tuple[Mapping[str, str], str]] = {}  # by UID: the object, and the text

    def look(
        self,
        watches: JobWatches,
        workloads: Iterable[Workload],
        namespaces: Mapping[str, Mapping[str, Any]],
        now: datetime.datetime,
    ) -> datetime.datetime | None:
        """Post Events that are new; return when to look again, None if every kind is read."""
        problems = watches.problems
        if not problems and not self._about:
            return None
        period = datetime.timedelta(seconds=self._timing.absent_s)
        is_due = self._followed_at is None or now >= self._followed_at + period or now < self._followed_at
        if problems != self._problems or is_due:
            self._problems, self._followed_at = dict(problems), now
            self._follow(watches, workloads, namespaces)
        for uid in self._turns.take(AT_ONCE):
            about, text = self._about[uid]
            self._events.post(about, "Warning", REASON, text, now)
        if self._turns:
            return now
        return now + period if self._about else None

    def _follow(
        self, watches: JobWatches, workloads: Iterable[Workload], namespaces: Mapping[str, Mapping[str, Any]]
    ) -> None:
        about: dict[str, tuple[Mapping[str, str], str]] = {}
        namespace_by_uid: dict[str, str] = {}  # by UID, the namespace
        for workload in workloads:
            kind, _ = kind_and_name(workload.made_for)
            if kind in self._problems:
                text = f"the reservation stays, because {kind}s cannot be read: {self._problems[kind]}"
                about[workload.uid] = reference_to(workload), text
                namespace_by_uid[workload.uid] = workload.namespace
        failing = "; ".join(f"{kind}s: {why}" for kind, why in sorted(watches.failing.items()))
        for item in namespaces.values() if failing else ():
            namespace: Namespace = item["value"]
            if namespace.jobs:
                uid = str(item["metadata"]["uid"])
                text = f"jobs of these kinds reserve and release nothing, because they cannot be read: {failing}"
                about[uid] = reference("v1", "Namespace", "", namespace.name, uid), text
                namespace_by_uid[uid] = namespace.name
        for uid in self._about.keys() - about.keys():
            self._turns.forget(uid)
        self._about = about
        for uid, namespace_name in namespace_by_uid.items():
            self._turns.put(uid, namespace_name, about[uid][1])


def reference_to(workload: Workload) -> dict[str, str]:
    """Return the reference of an Event about a workload."""
    return reference(API_VERSION, WORKLOAD_KIND, workload.namespace, workload.name, workload.uid)
