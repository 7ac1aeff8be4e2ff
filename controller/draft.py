"""A plan while it is being made: what it is made of, and what has been decided so far. Pure, no I/O."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from controller import placement
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


class Room:
    """What is free at this point of a plan. Each answer is kept until a reservation is made or dropped.

    A thousand workloads may wait for the same groups, or be served one after the other.
    """

    def __init__(self, groups: tuple[Group, ...], stored: tuple[Group, ...], holdings: Holdings) -> None:
        self._groups = groups
        self._stored = stored
        self._holdings = holdings
        self._version = -1
        self._taken: frozenset[str] = frozenset()
        self._free: dict[tuple[str, int], tuple[placement.Slot, ...]] = {}
        self._shortages: dict[tuple[str, int, int], placement.Shortage] = {}
        self._by_group: dict[tuple[str, str, int], tuple[frozenset[str], tuple[placement.Slot, ...]]] = {}
        self._group_of = {node: group for group in groups for node in group.node_names}

    def free(self, instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the free slots in UltraServers that are stored: only there a reservation can be written."""
        self._renew()
        key = (instance_type, size)
        if key not in self._free:
            mine = (group for group in self._stored if group.instance_type == instance_type)
            self._free[key] = tuple(slot for group in mine for slot in self._slots(group, size))
        return self._free[key]

    def shortage(self, workload: Workload, count: int) -> placement.Shortage:
        """Return why `count` slots more cannot be had."""
        free = self.free(workload.instance_type, workload.size)
        key = (workload.instance_type, workload.size, count)
        if key not in self._shortages:
            self._shortages[key] = placement.shortage(self._groups, self._taken, workload, free, count)
        return self._shortages[key]

    def of_nodes(self, names: set[str], instance_type: str, size: int) -> tuple[placement.Slot, ...]:
        """Return the slots that these nodes make, whoever holds them."""
        groups = {group.name: group for name in sorted(names) if (group := self._group_of.get(name)) is not None}
        others = frozenset(name for group in groups.values() for name in group.node_names) - names
        return placement.slots(groups.values(), others, instance_type, size)

    def _slots(self, group: Group, size: int) -> tuple[placement.Slot, ...]:
        taken = self._taken.intersection([node.name for node in group.usable.values()])
        key = (group.name, group.instance_type, size)
        have = self._by_group.get(key)
        if have is None or have[0] != taken:
            have = self._by_group[key] = (taken, placement.slots((group,), taken, group.instance_type, size))
        return have[1]

    def _renew(self) -> None:
        if self._version != self._holdings.version:
            self._version, self._taken = self._holdings.version, self._holdings.taken()
            self._free, self._shortages = {}, {}


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
    room: Room
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
        holdings = Holdings(snapshot)
        stored = {each.name for each in snapshot.ultraservers}
        room = Room(groups, tuple(group for group in groups if group.name in stored), holdings)
        return cls(snapshot, now, limits, groups, holdings, nodes, templates, sizes, room)

    def look_again(self, moment: datetime.datetime) -> None:
        """Plan again at that time, if it is still to come."""
        if moment > self.now:
            self.recheck.append(moment)


def joined(*texts: str) -> str:
    """Return the texts that are not empty as one."""
    return "; ".join(text for text in texts if text)
