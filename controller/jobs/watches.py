"""The jobs that ask for UltraServers, kept by watches of the kinds that the API server has."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from controller.fleet.reserved import put
from controller.jobs.kinds import KINDS, JobFields, Kind
from controller.jobs.model import Job
from controller.observe.caches import KEPT
from controller.timing import JobTiming
from neuron_dra.errors import Forbidden, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Item, Reflector

log = logging.getLogger(__name__)


def _kept_of(kind: Kind) -> Callable[[Item], Item | None]:
    def project(item: Item) -> Item | None:
        """Keep a job that asks for UltraServers, and nothing of the many others."""
        job = kind.job(item)
        meta = item["metadata"]
        return None if job is None else {"metadata": {key: meta[key] for key in KEPT if key in meta}, "value": job}

    return project


class JobWatches:
    """One watch for each kind. They call `on_change` when a job that asks for UltraServers changes."""

    def __init__(self, client: KubeClient, on_change: Callable[[], None], timing: JobTiming) -> None:
        self._timing = timing
        self._on_change = on_change
        self._by_kind = {
            kind.name: Reflector(
                client,
                kind.resource,
                on_change=on_change,
                gives_up_on=(NotFound, Forbidden),
                project=_kept_of(kind),
                fields=JobFields,
            )
            for kind in KINDS
        }
        self._known: dict[str, dict[str, Job]] = {kind.name: {} for kind in KINDS}  # as of the last `follow`
        self._followed: set[str] = set()  # kinds that were listed then
        self._absent: set[str] = set()  # kinds that the API server does not have
        self._forbidden: set[str] = set()

    @property
    def reflectors(self) -> dict[str, Reflector]:
        """The watches by the plural of their kind."""
        return {kind.resource.plural: self._by_kind[kind.name] for kind in KINDS}

    @property
    def _listed(self) -> dict[str, Reflector]:
        return {name: each for name, each in self._by_kind.items() if each.synced.is_set()}

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of which all jobs are known: none exist of a kind that the API server does not have."""
        return frozenset({*self._listed, *self._absent})

    @property
    def settled(self) -> bool:
        """Return True if each kind was listed, or cannot be."""
        return not self._by_kind.keys() - self.kinds - self._forbidden

    @property
    def unreadable(self) -> frozenset[tuple[str, str]]:
        """Kind, and namespace/name, of the objects that cannot be read; they may be jobs that ask."""
        found: set[tuple[str, str]] = set()
        for name, reflector in self._listed.items():
            found |= {(name, key) for key in reflector.unreadable}
        return frozenset(found)

    def follow(self) -> list[tuple[Job | None, Job | None]]:
        """Return each job that asks for UltraServers and has changed since the last call: as it was and as it is.

        None: it was not there, or is gone.
        """
        changed = []
        for name, each in self._by_kind.items():
            keys, known = each.take_touched(), self._known[name]
            items = each.items if each.synced.is_set() else {}
            if each.synced.is_set() != (name in self._followed):
                keys = known.keys() | items.keys()
                self._followed ^= {name}
            for key in keys:
                before, item = known.get(key), items.get(key)
                now: Job | None = None if item is None else item["value"]
                put(known, key, now)
                changed.append((before, now))
        return changed

    def tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the coroutine function to run for each kind. None of them ends by itself."""
        return {name: functools.partial(self._watch, name) for name in self._by_kind}

    async def relist(self) -> None:
        """List all kinds again: a new leader must not decide on a follower's caches. Raises ApiError."""
        for each in self._listed.values():
            await each.relist()

    async def resume(self) -> None:
        """Open the watches again for a leader that regained its Lease; list what has no watch. Raises ApiError."""
        for each in self._listed.values():
            await each.resume()

    async def _watch(self, name: str) -> None:
        """Watch a kind, and look for it from time to time while the API server does not have it."""
        reflector = self._by_kind[name]
        while True:
            try:
                await reflector.run()
            except NotFound:
                self._absent.add(name)
                self._forbidden.discard(name)
            except Forbidden as err:
                if name not in self._forbidden:
                    log.warning(
                        "jobs of this kind cannot reserve UltraServers: apply the ClusterRole of this release",
                        extra={"kind": name, "error": str(err)},
                    )
                self._forbidden.add(name)
                self._absent.discard(name)
            reflector.synced.clear()
            self._on_change()
            await asyncio.sleep(self._timing.absent_s)
