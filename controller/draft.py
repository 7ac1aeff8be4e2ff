"""A plan while it is being made: what it is made of, and what has been decided so far. Pure, no I/O."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from controller.actions import Action
from controller.discovery import Group, discover
from controller.holdings import Holdings
from controller.model import ClusterNode, Snapshot, Template, Workload


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for what."""

    tag_timeout: datetime.timedelta = datetime.timedelta(seconds=60)
    starvation_threshold: datetime.timedelta = datetime.timedelta(minutes=10)
    node_failure_grace: datetime.timedelta = datetime.timedelta(minutes=5)
    fault_grace: datetime.timedelta = datetime.timedelta(minutes=1)


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Draft:
    """The state of one call of `planning.plan`."""

    snapshot: Snapshot
    now: datetime.datetime
    limits: Limits
    groups: tuple[Group, ...]
    holdings: Holdings
    nodes: dict[str, ClusterNode]
    templates: dict[tuple[str, str], Template]
    group_sizes: dict[str, int]  # nodes in each UltraServer
    before: list[Action] = field(default_factory=list)  # finalizers and templates: ahead of the reservations
    after: list[Action] = field(default_factory=list)
    statuses: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)
    starving: dict[str, Workload] = field(default_factory=dict)  # by instance type
    recheck: list[datetime.datetime] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime.datetime, limits: Limits) -> Draft:
        """Return a draft in which nothing is decided."""
        nodes = {node.name: node for node in snapshot.nodes}
        templates = {(each.namespace, each.name): each for each in snapshot.templates}
        groups = discover(snapshot)
        sizes = {group.name: len(group.topology) for group in groups}
        return cls(snapshot, now, limits, groups, Holdings(snapshot), nodes, templates, sizes)

    def look_again(self, moment: datetime.datetime) -> None:
        """Plan again at that time, if it is still to come."""
        if moment > self.now:
            self.recheck.append(moment)


def joined(*texts: str) -> str:
    """Return the texts that are not empty as one."""
    return "; ".join(text for text in texts if text)
