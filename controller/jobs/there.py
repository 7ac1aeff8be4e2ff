"""What is there: the workloads by what a job asks about them. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from controller.jobs.model import Job
from neuron_dra.planner.fleet.reserved import put, take
from neuron_dra.planner.fleet.sharing import Sharing
from neuron_dra.planner.observed.model import Workload

Subject = tuple[str, str]
"""Namespace and mark of a job that asks, or of one that is gone and has a workload."""
Shared = tuple[str, str, str]
"""What several jobs may ask for: "template" or "name", namespace, name."""


def order(subject: Subject) -> tuple[str, str, str, str]:
    """Return what subjects are sorted by: namespace, kind and name. The first gets what several ask for."""
    namespace, mark = subject
    kind, name = kind_and_name(mark)
    return namespace, kind, name, mark


def kind_and_name(mark: str) -> tuple[str, str]:
    """Return kind and name of the job that has a mark."""
    kind, _, rest = mark.partition("/")
    return kind, rest.rpartition("/")[0]


def wanted(job: Job) -> Iterator[Shared]:
    """Yield the names that a job may want for itself: those of its templates and of its workload."""
    yield "name", job.namespace, job.name
    for template_name in {template_name for pod_set in job.pods for template_name in pod_set.claim_templates}:
        yield "template", job.namespace, template_name


@dataclass(frozen=True, slots=True, order=True)
class _TemplateMaker:
    """The workload that makes a template. `for_a_job`: it has a job's mark."""

    name: str
    for_a_job: bool


class There:
    """The workloads by what a job asks about them, and those that are about to be created.

    Each decision about a job costs the same, however many there are. Two jobs never get one template or one name: the
    first in the order has it.

    - `workloads`: by UID; `named`: by namespace and name;
    - `made`: those with a mark, by their job and UID.
    """

    def __init__(self) -> None:
        self.workloads: dict[str, Workload] = {}
        self.named: dict[tuple[str, str], Workload] = {}
        self.made: dict[Subject, dict[str, Workload]] = {}
        self._makers: dict[Shared, list[_TemplateMaker]] = {}  # by template, in the order of names
        self._planned: Sharing[Subject, Shared] = Sharing()  # the names in workloads that are about to be created

    def put(self, uid: str, workload: Workload | None) -> Set[Shared]:
        """Follow a change of a workload; return the names of which the user may be another one now.

        Of one that is replaced by another one of the same name, first note that it is gone: None.
        """
        before = self.workloads.get(uid)
        changed = self._replace(before, workload)
        if before is not None:
            del self.workloads[uid], self.named[before.namespace, before.name]
            if before.made_for:
                take(self.made, (before.namespace, before.made_for), uid)
        if workload is not None:
            self.workloads[uid] = self.named[workload.namespace, workload.name] = workload
            if workload.made_for:
                self.made.setdefault((workload.namespace, workload.made_for), {})[uid] = workload
        return changed

    def _replace(self, before: Workload | None, now: Workload | None) -> Set[Shared]:
        """Follow which names are in use, and which templates are made."""
        dropped, added = (None if workload is None else _uses(workload) for workload in (before, now))
        if dropped == added:
            return frozenset()
        names, templates = set[Shared](), set[Shared]()
        for uses in (dropped, added):
            if uses is not None:
                name, template, _ = uses
                names.add(name)
                templates.add(template)
        first = {template: self._makers.get(template, [None])[0] for template in templates}
        if dropped is not None:
            _, template, maker = dropped
            self._makers[template].remove(maker)
            put(self._makers, template, self._makers[template] or None)
        if added is not None:
            _, template, maker = added
            bisect.insort(self._makers.setdefault(template, []), maker)
        return names | {template for template in templates if self._makers.get(template, [None])[0] != first[template]}

    def plan(self, subject: Subject, names: Iterable[Shared]) -> Set[Shared]:
        """Note the names that a job gets, which are about to be in use; return those that are its, or not any more."""
        before, now = self._planned.by(subject), frozenset(names)
        self._planned.put(subject, now)
        return before ^ now

    def own(self, subject: Subject) -> list[Workload]:
        """Return the workloads with a mark. The first is the one to keep."""
        workloads = self.made.get(subject, {}).values()
        return sorted(workloads, key=lambda workload: (workload.deleting, workload.created, workload.name))

    def maker(self, job: Job, template: str) -> _TemplateMaker | None:
        """Return the workload that makes a template, or is about to for a job that comes before this one."""
        shared = "template", job.namespace, template
        if shared in self._makers:
            return self._makers[shared][0]
        first = self._first(shared, job)
        return None if first is None else _TemplateMaker(first, for_a_job=True)

    def has_name(self, job: Job) -> bool:
        """Return True if the name that a job's workload would get is in use, or about to be for one before it."""
        return (job.namespace, job.name) in self.named or self._first(
            ("name", job.namespace, job.name), job
        ) is not None

    def _first(self, shared: Shared, job: Job) -> str | None:
        """Return the name of the job before this one that has a name to itself."""
        last = order((job.namespace, job.mark))
        subjects = (subject for subject in self._planned.of(shared) if order(subject) < last)
        first = min(subjects, key=order, default=None)
        return None if first is None else kind_and_name(first[1])[1]


def _uses(workload: Workload) -> tuple[Shared, Shared, _TemplateMaker]:
    """Return the names that a workload uses, and what makes its template."""
    namespace, name = workload.namespace, workload.name
    maker = _TemplateMaker(name, bool(workload.made_for))
    return ("name", namespace, name), ("template", namespace, workload.template_name), maker
