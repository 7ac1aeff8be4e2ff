"""What was decided about each workload's queue, kept until something changes that it depends on. Pure.

A pass costs what changed, however many workloads wait. What is kept equals the decisions about all of them
(`admissions`, `decide`); a property test verifies that.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Iterator, Set

from controller.fleet.due_times import DueTimes
from controller.fleet.reserved import put
from controller.fleet.sharing import Sharing
from controller.observe.model import Admission, Workload
from controller.queue.admission import QueueView, admission_or_error
from controller.queue.decide import NOTHING, QueueDecision, Write, decide_one
from controller.queue.model import name_for


class KeptQueueDecisions:
    """The decisions by UID of the workload.

    - `workloads`: those that exist.
    - `admissions`: what each plan gets; `writes`: what is left to write, see `QueueDecision`.
    """

    def __init__(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self.admissions: dict[str, Admission] = {}
        self.writes: dict[str, Write] = {}
        self._decisions: dict[str, QueueDecision] = {}  # those that say anything
        self._errors: dict[str, QueueDecision] = {}
        self._moments = DueTimes()
        self._sharing: Sharing[str, Hashable] = Sharing()
        self._by_kueue_name: dict[str, str] = {}  # UID by namespace/name of Kueue's Workload
        self._last: QueueView | None = None

    @property
    def errors(self) -> dict[str, Exception]:
        """The errors of decisions, by workload."""
        return {name: err for each in self._errors.values() for name, err in each.errors.items()}

    def of(self, uid: str) -> QueueDecision:
        """Return the decision about one workload."""
        return self._decisions.get(uid, NOTHING)

    def put(self, uid: str, workload: Workload | None) -> None:
        """Follow a change of a workload; None: it is gone."""
        before = self.workloads.get(uid)
        if before is not None:
            self._by_kueue_name.pop(_kueue_name(before), None)
        put(self.workloads, uid, workload)
        self._sharing.put(uid, () if workload is None else _shared(workload))
        if workload is not None:
            self._by_kueue_name[_kueue_name(workload)] = uid

    def named(self, kueue_names: Set[str]) -> frozenset[str]:
        """Return the UIDs of the workloads whose Workloads of Kueue have these names, as namespace/name."""
        return frozenset(self._by_kueue_name[name] for name in kueue_names if name in self._by_kueue_name)

    def order(self, uid: str) -> tuple[str, str]:
        """Return what workloads are sorted by that are decided at the same time."""
        workload = self.workloads.get(uid)
        return (workload.ref if workload is not None else ""), uid

    def decide_all(self) -> None:
        """Decide everything again with the next `follow`."""
        self._last = None

    def follow(self, view: QueueView, changed: Set[str]) -> Set[str]:
        """Decide what has `changed`, is due, or depends on other parts of the view that changed.

        Return all of that, and the keys of the writes that are new or gone.
        """
        due = self._affected(view)
        if due is None:
            due = self.workloads.keys() | view.kueue.keys() | self._decisions.keys()
        due = due | changed | {*self._moments.take(view.now)}
        moved = set[str]()
        for uid in due:
            moved |= self._decide(view, uid)
        self._last = view
        return due | moved

    def next_moment(self) -> datetime.datetime | None:
        """Return when a decision is due although nothing changes."""
        return self._moments.next()

    def _affected(self, view: QueueView) -> Set[str] | None:
        """Return the workloads that a change of the view's common parts affects; None: all."""
        last = self._last
        if last is None or last.unknown != view.unknown:
            return None
        found = {*last.unsettled} ^ {*view.unsettled}
        found |= last.unreadable ^ view.unreadable
        found |= last.unread ^ view.unread
        found |= last.uncertain ^ view.uncertain
        for namespace in {*last.required} ^ {*view.required}:
            found |= self._sharing.of(("namespace", namespace))
        for name in last.priorities.keys() | view.priorities.keys():
            if last.priorities.get(name) != view.priorities.get(name):
                found |= self._sharing.of(("class", name))
        return found

    def _decide(self, view: QueueView, uid: str) -> Set[str]:
        """Decide about one workload; return the keys of its writes, before and now."""
        workload = self.workloads.get(uid)
        admission = None if workload is None else admission_or_error(view, workload)
        put(self.admissions, uid, admission)
        decision = NOTHING if view.unknown else decide_one(view, uid, workload)
        before = self.of(uid).writes
        for key in before:
            del self.writes[key]
        self.writes |= decision.writes
        put(self._decisions, uid, decision if decision != NOTHING else None)
        put(self._errors, uid, decision if decision.errors else None)
        self._moments.set(uid, min(decision.moments, default=None))
        return before.keys() | decision.writes.keys()


def _kueue_name(workload: Workload) -> str:
    """Return namespace/name of Kueue's Workload."""
    return f"{workload.namespace}/{name_for(workload)}"


def _shared(workload: Workload) -> Iterator[tuple[str, str]]:
    """Yield what a workload has in common with others, and its decisions depend on."""
    yield "namespace", workload.namespace
    if workload.priority_class:
        yield "class", workload.priority_class
