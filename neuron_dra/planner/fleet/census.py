"""Counts of the nodes of all UltraServers by instance type, updated as single UltraServers change. No I/O."""

from __future__ import annotations

import bisect
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from neuron_dra.planner.fleet.placement import Tally
from neuron_dra.planner.observed.discovery import Group


@dataclass(frozen=True, slots=True)
class Counts:
    """What one UltraServer adds to the counts of its type."""

    instance_type: str
    nodes: int
    free: int
    cordoned: tuple[str, ...]


@dataclass(slots=True)
class _Counted:
    """The counts of one instance type. The lists are sorted by UltraServer."""

    ultraservers: int = 0
    nodes: int = 0
    free: int = 0
    parts: list[tuple[str, int]] = field(default_factory=list)
    cordoned: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


class Census:
    """What the message of a shortage says about the fleet; `put` follows one UltraServer."""

    def __init__(self) -> None:
        self._types: dict[str, _Counted] = {}
        self._groups: dict[str, tuple[Group, int]] = {}  # with the number of free nodes

    def put(self, ultraserver_name: str, group: Group | None, taken: Container[str]) -> None:
        """Follow a change of an UltraServer; None: it is gone. `taken` are names of nodes that are not free."""
        before = self._groups.pop(ultraserver_name, None)
        if before is not None:
            self._count(*before, -1)
        if group is not None:
            after = self._groups[ultraserver_name] = group, group.free_nodes(taken)
            self._count(*after, 1)

    def counted(self, ultraserver_name: str) -> Counts | None:
        """Return what an UltraServer adds to the counts; None for an unknown one."""
        group_and_free = self._groups.get(ultraserver_name)
        if group_and_free is None:
            return None
        group, free = group_and_free
        return Counts(group.instance_type, len(group.topology), free, group.cordoned)

    def members(self, instance_type: str) -> int:
        """Return the number of nodes of all UltraServers of a type, healthy or not."""
        counted = self._types.get(instance_type)
        return counted.nodes if counted is not None else 0

    def tally(self, instance_type: str, free: Mapping[str, int]) -> Tally:
        """Return the counts of an instance type; `free` are the free nodes of UltraServers that a plan changes."""
        counted = self._types.get(instance_type)
        if counted is None:
            return Tally(tuple(sorted(self._types)), 0, 0, 0, (), ())
        parts, total = list(counted.parts) if free else counted.parts, counted.free
        for ultraserver_name, number in free.items():
            group, before = self._groups.get(ultraserver_name, (None, 0))
            if group is None or group.instance_type != instance_type:
                continue
            total += number - before
            _replace(parts, ultraserver_name, before, number)
        cordoned = tuple(node for _, nodes in counted.cordoned for node in nodes)
        return Tally((), counted.ultraservers, counted.nodes, total, parts, cordoned)

    def _count(self, group: Group, free: int, sign: int) -> None:
        """Add an UltraServer to the counts; with `sign` -1, subtract it."""
        counted = self._types.setdefault(group.instance_type, _Counted())
        counted.ultraservers += sign
        counted.nodes += sign * len(group.topology)
        counted.free += sign * free
        _replace(counted.parts, group.name, *((0, free) if sign > 0 else (free, 0)))
        if group.cordoned and sign > 0:
            bisect.insort(counted.cordoned, (group.name, group.cordoned))
        elif group.cordoned:
            counted.cordoned.remove((group.name, group.cordoned))
        if not counted.ultraservers:
            del self._types[group.instance_type]


def _replace(parts: list[tuple[str, int]], ultraserver_name: str, before: int, after: int) -> None:
    """Replace an UltraServer's number of free nodes in a sorted list, which has no zeros."""
    if before:
        del parts[bisect.bisect_left(parts, (ultraserver_name, before))]
    if after:
        bisect.insort(parts, (ultraserver_name, after))
