"""The jobs that ask for UltraServers, kept by watches of the kinds that the API server has."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from controller.jobs.kinds import KINDS, JobFields, Kind
from controller.jobs.model import Job
from controller.observe.caches import KEPT
from controller.timing import JobTiming
from neuron_dra.errors import ApiError, Forbidden, NotServed
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Item, Reflector
from neuron_dra.planner.fleet.reserved import put

log = logging.getLogger(__name__)

SURE_FAILURES: Final = 3
"""A list that fails so often in a row is reported: one failure is nothing that somebody has to act on."""


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
                gives_up_on=(NotServed, Forbidden),
                project=_kept_of(kind),
                fields=JobFields,
            )
            for kind in KINDS
        }
        self._known: dict[str, dict[str, Job]] = {kind.name: {} for kind in KINDS}  # as of the last `follow`
        self._followed: set[str] = set()  # kinds that were listed then
        self._doubted: set[str] = set()  # kinds whose list may be that of an earlier term
        self._doubts = {kind.name: asyncio.Event() for kind in KINDS}  # set for those
        self._absent: dict[str, str] = {}  # by kind that the API server does not serve, why
        self._refused: dict[str, str] = {}  # by kind that cannot be listed although it is served, why

    @property
    def reflectors(self) -> dict[str, Reflector]:
        """The watches by the plural of their kind."""
        return {kind.resource.plural: self._by_kind[kind.name] for kind in KINDS}

    @property
    def _listed(self) -> dict[str, Reflector]:
        synced = {kind_name: reflector for kind_name, reflector in self._by_kind.items() if reflector.synced.is_set()}
        return {kind_name: reflector for kind_name, reflector in synced.items() if kind_name not in self._doubted}

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of which all jobs are known.

        One that is not served is not among them: its objects may exist, and be served in another version.
        """
        return frozenset(self._listed)

    @property
    def problems(self) -> dict[str, str]:
        """By kind that cannot be read, why; also those that the API server does not serve."""
        problems = self.failing
        for kind_name, why in self._absent.items():
            if not self._is_listed(kind_name):
                problems.setdefault(kind_name, why)
        return problems

    @property
    def failing(self) -> dict[str, str]:
        """By kind that cannot be read although the API server serves it, why."""
        problems: dict[str, str] = {}
        for kind_name, reflector in self._by_kind.items():
            if reflector.failures >= SURE_FAILURES and not self._is_listed(kind_name):
                problems[kind_name] = reflector.last_error
        for kind_name, why in self._refused.items():
            if not self._is_listed(kind_name):
                problems.setdefault(kind_name, why)
        return problems

    def _is_listed(self, kind_name: str) -> bool:
        return kind_name not in self._doubted and self._by_kind[kind_name].synced.is_set()

    @property
    def unreadable(self) -> frozenset[tuple[str, str]]:
        """Kind, and namespace/name, of the objects that cannot be read; they may be jobs that ask."""
        unreadable: set[tuple[str, str]] = set()
        for kind_name, reflector in self._listed.items():
            unreadable |= {(kind_name, key) for key in reflector.unreadable}
        return frozenset(unreadable)

    def follow(self) -> list[tuple[Job | None, Job | None]]:
        """Return each job that asks for UltraServers and has changed since the last call: as it was and as it is.

        None: it was not there, or is gone.
        """
        changed = []
        for kind_name, reflector in self._by_kind.items():
            keys, jobs_by_key = reflector.take_touched(), self._known[kind_name]
            is_listed = reflector.synced.is_set() and kind_name not in self._doubted
            items = reflector.items if is_listed else {}
            if is_listed != (kind_name in self._followed):
                keys = jobs_by_key.keys() | items.keys()
                self._followed ^= {kind_name}
            for key in keys:
                before, item = jobs_by_key.get(key), items.get(key)
                now: Job | None = None if item is None else item["value"]
                put(jobs_by_key, key, now)
                changed.append((before, now))
        return changed

    def remember(self, kind_name: str, raw: bytes) -> None:
        """Keep a job of a kind that was read alone, unless the watch has shown a newer one. Raises MALFORMED."""
        self._by_kind[kind_name].remember_raw(raw)
        self._on_change()

    def tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the coroutine functions to run for each kind. None of them ends by itself."""
        function_by_task: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        for kind_name in self._by_kind:
            function_by_task[kind_name] = functools.partial(self._watch, kind_name)
            function_by_task[f"{kind_name} after a failed list"] = functools.partial(self._list_again, kind_name)
        return function_by_task

    async def relist(self) -> None:
        """List all kinds again: a new leader must not decide on a follower's caches.

        A kind that cannot be listed is not known until it can; the others are.
        """
        await asyncio.gather(
            *(self._refresh(kind_name, reflector.relist) for kind_name, reflector in self._listed.items())
        )

    async def resume(self) -> None:
        """Open the watches again for a leader that regained its Lease; list what has no watch."""
        await asyncio.gather(
            *(self._refresh(kind_name, reflector.resume) for kind_name, reflector in self._listed.items())
        )

    async def _refresh(self, kind_name: str, refresh: Callable[[], Awaitable[None]]) -> None:
        try:
            await refresh()
        except ApiError as err:
            self._fail(kind_name, err)
            self._doubted.add(kind_name)
            self._doubts[kind_name].set()

    async def _list_again(self, kind_name: str) -> None:
        """List a kind whose list has failed, until that succeeds."""
        while True:
            await self._doubts[kind_name].wait()
            try:
                await self._by_kind[kind_name].relist()
            except ApiError as err:
                self._fail(kind_name, err)
                await asyncio.sleep(self._timing.absent_s)
            else:
                self._doubted.discard(kind_name)
                self._doubts[kind_name].clear()
                self._refused.pop(kind_name, None)
                self._on_change()

    async def _watch(self, kind_name: str) -> None:
        """Watch a kind, and look for it from time to time while the API server does not have it."""
        reflector = self._by_kind[kind_name]
        while True:
            try:
                await reflector.run()
            except NotServed as err:
                self._absent[kind_name] = f"the API server does not serve it ({err})"
                self._refused.pop(kind_name, None)
            except Forbidden as err:
                self._fail(kind_name, err)
                self._absent.pop(kind_name, None)
            reflector.synced.clear()
            self._on_change()
            await asyncio.sleep(self._timing.absent_s)

    def _fail(self, kind_name: str, err: ApiError) -> None:
        """Note, and log once, that a kind cannot be read."""
        why = f"apply the ClusterRole of this release ({err})" if isinstance(err, Forbidden) else str(err)
        if self._refused.get(kind_name) != why:
            log.warning("jobs of this kind cannot be read", extra={"kind": kind_name, "error": str(err)})
        self._refused[kind_name] = why
        self._on_change()
