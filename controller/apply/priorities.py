"""Reads the PriorityClasses that workloads name. Their values never change while they exist."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections import Counter
from typing import Final

from controller.fleet.changed_objects import ChangedObjects
from controller.fleet.due_times import DueTimes
from controller.fleet.fleet_index import FleetIndex
from controller.fleet.reserved import put
from controller.observe.model import Workload
from controller.timing import WriteTiming
from neuron_dra.core.turns import Turns
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PRIORITY_CLASSES

log = logging.getLogger(__name__)

MOST: Final = 100
"""The limit of classes that are read in one look; a cluster has a handful."""
_AT_ONCE: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


class Priorities:
    """`found` has the value of each class that exists, by name. Each is read again from time to time.

    Anyone may name classes that do not exist, so namespaces take turns. Above the limit each is read more seldom.
    """

    def __init__(self, client: KubeClient, timing: WriteTiming) -> None:
        self._client = client
        self._timing = timing
        self._changes: ChangedObjects | None = None
        self._class_of: dict[str, tuple[str, str]] = {}  # name and namespace, by UID of the workload
        self._naming: dict[str, Counter[str]] = {}  # by name, the workloads that name it in each namespace
        self._turns: Turns[tuple[str, str]] = Turns()  # name and namespace
        self._read: set[str] = set()  # names that are not due
        self._again = DueTimes()  # when they are, by name
        self.found: dict[str, int] = {}

    def end_waits(self) -> None:
        """Read all of them again at once."""
        self._again = DueTimes()
        for name in self._read:
            self._again.set(name, _AT_ONCE)

    def forget(self) -> None:
        """Forget all values: a new leader reads them again."""
        self.found = {}
        self.end_waits()

    async def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Read the classes that are due; return when to read again. Errors are logged."""
        self._follow(index)
        for name in itertools.islice(self._again.take(now), MOST):
            self._read.discard(name)
            self._let_wait(name)
        due: list[str] = []
        while self._turns and len(due) < MOST:
            name, _ = self._turns.take()
            if name not in self._read:  # it may have waited in several namespaces
                self._read.add(name)
                due.append(name)
        period = datetime.timedelta(seconds=self._timing.class_s * max(1.0, len(self._naming) / MOST))
        for name in due:
            self._again.set(name, now + period)
        await asyncio.gather(*(self._one(name) for name in due))
        return now if self._turns else self._again.next()

    def _follow(self, index: FleetIndex) -> None:
        """Follow which workloads name which classes."""
        if self._changes is None:
            self._changes = index.follow()
        for uid, workload in self._changes.take().workloads.items():
            before, now = self._class_of.get(uid), _class_of(workload)
            if before == now:
                continue
            put(self._class_of, uid, now)
            if now is not None:
                self._add(*now)
            if before is not None:
                self._remove(*before)

    def _add(self, name: str, namespace: str) -> None:
        self._naming.setdefault(name, Counter())[namespace] += 1
        if name not in self._read:
            self._turns.add((name, namespace), namespace)

    def _remove(self, name: str, namespace: str) -> None:
        naming = self._naming[name]
        naming[namespace] -= 1
        if naming[namespace]:
            return
        del naming[namespace]
        self._turns.discard((name, namespace))
        if naming:
            self._let_wait(name)
            return
        del self._naming[name]
        self.found.pop(name, None)
        self._read.discard(name)
        self._again.set(name, None)

    def _let_wait(self, name: str) -> None:
        """Let a class that is due wait for the turn of a namespace that names it."""
        if name not in self._read:
            namespace = next(iter(self._naming[name]))
            self._turns.add((name, namespace), namespace)

    async def _one(self, name: str) -> None:
        try:
            self.found[name] = value_of(await self._client.read(PRIORITY_CLASSES, "", name))
        except NotFound:
            self.found.pop(name, None)
        except (ApiError, *MALFORMED) as err:
            log.warning("a PriorityClass could not be read", extra={"class": name, "error": str(err) or repr(err)})


def _class_of(workload: Workload | None) -> tuple[str, str] | None:
    """Return the class that a workload names, and its namespace; None without one."""
    if workload is None or not workload.priority_class:
        return None
    return workload.priority_class, workload.namespace


def value_of(item: Wire) -> int:
    """Return the value of a PriorityClass; 0 for what is no number."""
    value = item.get("value")
    return value if type(value) is int else 0
