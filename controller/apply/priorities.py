"""Reads the PriorityClasses that workloads name. Their values never change while they exist."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterable
from typing import Final

from controller.timing import WriteTiming
from neuron_dra.core.turns import in_turn
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import PRIORITY_CLASSES

log = logging.getLogger(__name__)

MOST: Final = 100
"""The limit of classes that are read; a cluster has a handful."""


class Priorities:
    """`found` has the value of each class that exists, by name. Each is read again from time to time."""

    def __init__(self, client: KubeClient, timing: WriteTiming) -> None:
        self._client = client
        self._timing = timing
        self._due: dict[str, datetime.datetime] = {}
        self.found: dict[str, int] = {}

    def end_waits(self) -> None:
        """Read all of them again at once."""
        self._due = {}

    async def look(self, named: Iterable[tuple[str, str]], now: datetime.datetime) -> datetime.datetime | None:
        """Read the classes that are due; return when to read again. Errors are logged.

        `named` has the namespace of each workload, and the name of its class. Anyone may name classes that do not
        exist, so above the limit namespaces take turns.
        """
        pairs = sorted({(name, namespace) for namespace, name in named if name})
        turns = in_turn(pairs, lambda pair: pair[1])
        names = list(dict.fromkeys(name for name, _ in turns))[:MOST]
        self._due = {name: self._due.get(name, now) for name in names}
        self.found = {name: value for name, value in self.found.items() if name in self._due}
        due = [name for name in names if self._due[name] <= now]
        await asyncio.gather(*(self._one(name, now) for name in due))
        return min(self._due.values(), default=None)

    async def _one(self, name: str, now: datetime.datetime) -> None:
        self._due[name] = now + datetime.timedelta(seconds=self._timing.class_s)
        try:
            self.found[name] = value_of(await self._client.read(PRIORITY_CLASSES, "", name))
        except NotFound:
            self.found.pop(name, None)
        except (ApiError, *MALFORMED) as err:
            log.warning("a PriorityClass could not be read", extra={"class": name, "error": str(err) or repr(err)})


def value_of(item: Wire) -> int:
    """Return the value of a PriorityClass; 0 for what is no number."""
    value = item.get("value")
    return value if type(value) is int else 0
