"""Reads the PriorityClasses that workloads name. Their values never change while they exist."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections import Counter
from functools import partial
from typing import Final

from controller.apply.outbox import Answer, RequestWish
from controller.apply.sender import Sender, answer_of
from controller.timing import WriteTiming
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PRIORITY_CLASSES
from neuron_dra.planner.fleet.changed_objects import ChangedObjects
from neuron_dra.planner.fleet.due_times import DueTimes
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.reserved import put
from neuron_dra.planner.observed.model import Workload

log = logging.getLogger(__name__)

MOST: Final = 100
"""The limit of classes that one look lets be read again; a cluster has a handful."""
AT_ONCE: Final = 8
"""The limit of reads at once."""
_DECIDER: Final = "priority classes"
_ALREADY_DUE: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


class Priorities:
    """`found` has the value of each class that exists, by name. Each is read again from time to time.

    Anyone may name classes that do not exist. Therefore each namespace has its own wish for a class that was not read
    yet, and the outbox takes turns between namespaces. Above the limit each class is read again more seldom.
    """

    def __init__(self, client: KubeClient, timing: WriteTiming, sender: Sender) -> None:
        self._client = client
        self._timing = timing
        self._sender = sender
        self._term = sender.fence.term
        self._changes: ChangedObjects | None = None
        self._class_of: dict[str, tuple[str, str]] = {}  # name and namespace, by UID of the workload
        self._naming: dict[str, Counter[str]] = {}  # by name, the workloads that name it in each namespace
        self._unread: set[str] = set()  # names that are due
        self._again = DueTimes()  # when the others are, by name
        self.found: dict[str, int] = {}

    def end_waits(self) -> None:
        """Read all of them again at once."""
        self._again = DueTimes()
        for class_name in self._naming:
            self._again.set(class_name, _ALREADY_DUE)

    async def begin(self, index: FleetIndex, now: datetime.datetime) -> None:
        """Forget all values, and read the classes again: a new leader has to order by them. Errors are logged.

        It reads `MOST` classes, and waits for `spec_s` at most; looks do the rest.
        """
        self.found = {}
        self._follow(index, now)
        self._begin_term()
        try:
            async with asyncio.timeout(self._timing.spec_s):
                await asyncio.gather(*(self._read(class_name) for class_name in self._take_due(now)))
        except TimeoutError:
            log.warning("PriorityClasses could not be read in time", extra={"timeout_s": self._timing.spec_s})
            self.end_waits()

    def look(self, index: FleetIndex, now: datetime.datetime) -> datetime.datetime | None:
        """Let the classes that are due be read; return when to look again."""
        self._follow(index, now)
        if self._term != self._sender.fence.term:
            self._begin_term()
        for class_name in self._take_due(now):
            self._unread.add(class_name)
            self._wish(class_name, next(iter(self._naming[class_name])))
        return self._again.next()

    def _begin_term(self) -> None:
        self._term = self._sender.fence.term
        self.end_waits()  # what was wished in the last term was not sent

    def _take_due(self, now: datetime.datetime) -> list[str]:
        names = list(itertools.islice(self._again.take(now), MOST))
        for class_name in names:
            self._again.set(class_name, now + self._period())
        return names

    def _period(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timing.class_s * max(1.0, len(self._naming) / MOST))

    def _follow(self, index: FleetIndex, now: datetime.datetime) -> None:
        """Follow which workloads name which classes."""
        if self._changes is None:
            self._changes = index.follow()
        for uid, workload in self._changes.take().workloads.items():
            before, after = self._class_of.get(uid), _class_of(workload)
            if before == after:
                continue
            put(self._class_of, uid, after)
            if after is not None:
                self._add(*after, now)
            if before is not None:
                self._remove(*before)

    def _add(self, class_name: str, namespace: str, now: datetime.datetime) -> None:
        if class_name not in self._naming:
            self._naming[class_name] = Counter()
            self._unread.add(class_name)
            self._again.set(class_name, now + self._period())
        self._naming[class_name][namespace] += 1
        if class_name in self._unread:
            self._wish(class_name, namespace)

    def _remove(self, class_name: str, namespace: str) -> None:
        naming = self._naming[class_name]
        naming[namespace] -= 1
        if naming[namespace]:
            return
        del naming[namespace]
        if not naming:
            del self._naming[class_name]
            self.found.pop(class_name, None)
            self._unread.discard(class_name)
            self._again.set(class_name, None)

    def _wish(self, class_name: str, namespace: str) -> None:
        send = partial(self._read_unread, class_name)
        key = f"PriorityClass {class_name} for {namespace}"
        wish = RequestWish(key, "value", namespace, "get priorityclasses", send, at_once=AT_ONCE)
        self._sender.put(_DECIDER, self._sender.fence.term, wish)

    async def _read_unread(self, class_name: str, term: int) -> Answer:
        if class_name not in self._unread:
            return Answer.NO_NEWS  # it was read for another namespace, or no workload names it any more
        return await self._read(class_name)

    async def _read(self, class_name: str) -> Answer:
        self._unread.discard(class_name)
        value: int | None = None
        try:
            value = value_of(await self._client.read(PRIORITY_CLASSES, "", class_name))
        except NotFound:
            pass
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "a PriorityClass could not be read", extra={"class": class_name, "error": str(err) or repr(err)}
            )
            return answer_of(err)
        if class_name not in self._naming or self.found.get(class_name) == value:
            return Answer.NO_NEWS
        put(self.found, class_name, value)
        return Answer.DECIDED


def _class_of(workload: Workload | None) -> tuple[str, str] | None:
    """Return the class that a workload names, and its namespace; None without one."""
    if workload is None or not workload.priority_class:
        return None
    return workload.priority_class, workload.namespace


def value_of(item: Wire) -> int:
    """Return the value of a PriorityClass; 0 for what is no number."""
    value = item.get("value")
    return value if type(value) is int else 0
