"""What was decided about each workload's queue, kept until something changes that it depends on. Pure.

A pass costs what changed, however many workloads wait. What is kept equals what a look at everything decides; a
property test verifies that.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Set

from controller.queue.admission import QueueView, admission_or_error
from controller.queue.decide import QueueDecision, QueueEvent, Write, decide_one
from controller.queue.model import name_for
from neuron_dra.planner.fleet.due_times import DueTimes
from neuron_dra.planner.fleet.memo import EVERYTHING, Memo
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.observed.model import Admission, Workload


class KeptQueueDecisions(Memo[str, Write, QueueEvent]):
    """The decisions by UID of the workload.

    - `workloads`: those that exist; `admissions`: what each plan gets.
    """

    def __init__(self) -> None:
        super().__init__(self.order)
        self.workloads: dict[str, Workload] = {}
        self.admissions: dict[str, Admission] = {}
        self._moments = DueTimes()
        self._by_kueue_name: dict[str, str] = {}  # UID by namespace/name of Kueue's Workload

    def put(self, uid: str, workload: Workload | None) -> None:
        """Follow a change of a workload; None: it is gone."""
        before = self.workloads.get(uid)
        if before is not None:
            self._by_kueue_name.pop(_kueue_name(before), None)
        put(self.workloads, uid, workload)
        if workload is not None:
            self._by_kueue_name[_kueue_name(workload)] = uid
        self.mark(uid)

    def named(self, kueue_names: Set[str]) -> frozenset[str]:
        """Return the UIDs of the workloads whose Workloads of Kueue have these names, as namespace/name."""
        return frozenset(self._by_kueue_name[name] for name in kueue_names if name in self._by_kueue_name)

    def follow(self, view: QueueView, changed: Iterable[str]) -> list[str]:
        """Decide what has `changed`, is due, or depends on other parts of the view that changed; return all that."""
        self._mark_affected(view)
        for uid in (*changed, *self._moments.take(view.now)):
            self.mark(uid)
        decided = [*self.take()]
        for uid in decided:
            self._decide(view, uid)
        return decided

    def next_moment(self) -> datetime.datetime | None:
        """Return when a decision is due although nothing changes."""
        return self._moments.next()

    def _mark_affected(self, view: QueueView) -> None:
        """Let decisions be made again of which a common input has changed."""
        if self.differences("unknown", [view.unknown]):
            self.mark_with(EVERYTHING)
        uids_by_name = (
            ("unsettled", view.unsettled),
            ("uncertain", view.uncertain),
            ("unreadable", view.unreadable),
            ("unread", view.unread),
        )
        for name, uids in uids_by_name:
            for uid in self.differences(name, uids):
                self.mark(uid)
        for namespace in self.differences("required", view.required):
            self.mark_with(("namespace", namespace))
        for priority_class, _ in self.differences("priorities", view.priorities.items()):
            self.mark_with(("class", priority_class))

    def _decide(self, view: QueueView, uid: str) -> None:
        workload = self.workloads.get(uid)
        put(self.admissions, uid, None if workload is None else admission_or_error(view, workload))
        decision = QueueDecision() if view.unknown else decide_one(view, uid, workload)
        self._moments.set(uid, min(decision.moments, default=None))
        inputs: Iterable[tuple[str, str]] | None = () if uid in view.kueue else None
        if workload is not None:
            inputs = _inputs(workload)
        self.keep(uid, decision, inputs)

    def order(self, uid: str) -> tuple[str, str, str]:
        """Return what workloads are sorted by that are decided at the same time."""
        workload = self.workloads.get(uid)
        return (workload.namespace, workload.name, uid) if workload is not None else ("", "", uid)


def _kueue_name(workload: Workload) -> str:
    """Return namespace/name of Kueue's Workload."""
    return f"{workload.namespace}/{name_for(workload)}"


def _inputs(workload: Workload) -> Iterator[tuple[str, str]]:
    """Yield what a workload has in common with others, and its decisions depend on."""
    yield "namespace", workload.namespace
    if workload.priority_class:
        yield "class", workload.priority_class
